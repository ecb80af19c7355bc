"""`plan watch`: how a run stands against its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.shared import AcceptChanges, AsJson, OutputFile, OutputFormat


def command(
    *,
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_DIR|LOG…", help="The folder of plan run, or logs, oldest first."),
    ],
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="Its plan, with --tokens; that of the folder.", metavar="FILE"),
    ] = None,
    accept_changes: AcceptChanges = False,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Hold a running job against its plan: useful share so far, days left with their band, what is off.

    Reads the metrics of plan run and the logs of Megatron-LM and torchtitan.
    """
    from app.commands.watch.answer import watch_answer
    from app.commands.watch.read import plan_of_run, steps_of_runs
    from app.reports.answer import check_destination, emit, note
    from app.requests.plan_file import read_plan
    from planner.analysis.campaign.watch import watched

    check_destination(wanted=output_format, as_json=as_json, output=output)
    read = read_plan(plan or plan_of_run(runs), accept_changes=accept_changes, say=note)
    answer = watch_answer(watched(read, steps_of_runs(runs)))
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
