"""`plan diagnose`: from traces of a step to the term that is off, by how much, why, and what changes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.job import SEARCH_ONLY, SIZE, takes_job
from app.flags.shared import AsJson, OutputFile, OutputFormat
from planner.questions.flags import Flags


@takes_job(*SEARCH_ONLY, "tokens", "deadline", "budget", common=SIZE)
def command(
    flags: Flags,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="Traces of one or many ranks (Kineto JSON, nsys SQLite, rocprofv3 JSON) or folders of them; "
            "beside them the script, PLAN.json or log of the job, flight records, memory snapshots, and what "
            "nvidia-smi or DCGM printed.",
        ),
    ],
    *,
    step: Annotated[
        int | None, typer.Option("--step", help="Look at the step of this number alone.", min=0, metavar="N")
    ] = None,
    fail_above: Annotated[
        str | None,
        typer.Option(
            "--fail-above",
            help="Leave with exit code 4 if one cause costs more of a step, such as 15%.",
            metavar="SHARE",
        ),
    ] = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Say where the time of recorded steps went, what is off, why, and what changes it.

    Nothing is executed. Parts of a step exclude each other and sum to it. With traces of several ranks
    waiting is told from transfer, and the rank that is waited for is named. With a script or a plan each
    part stands beside what it should take. Exit code 4: the job hangs, or a cause costs more
    than --fail-above.
    """
    from app.analysis.diagnose import DiagnoseQuestion, diagnosis_of
    from app.reports.answer import check_destination, emit
    from app.reports.diagnose import diagnose_answer
    from app.terminal.progress import waiting

    check_destination(wanted=output_format, as_json=as_json, output=output)
    question = DiagnoseQuestion(files=tuple(files), step=step, fail_above=fail_above)
    with waiting("reading traces"):
        diagnosis, exit_code = diagnosis_of(question, flags)
    return emit(diagnose_answer(diagnosis, exit_code), wanted=output_format, as_json=as_json, output=output)
