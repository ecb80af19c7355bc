"""`plan validate`: is a plan legal, and does this machine's executor confirm what it promises?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.shared import AcceptChanges, AsJson, OutputFile, OutputFormat


def command(
    *,
    plan: Annotated[Path, typer.Argument(help="A plan written by plan --json.", metavar="PLAN.json")],
    accept_changes: AcceptChanges = False,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Check a plan: its rules, exact counts, memory of full-size ranks, numerics, and a rank on a GPU.

    Counts and memory come from one process that plays single ranks of the plan; numerics from the plan shrunk
    to what this machine can run. Needs the extra `run` (torch).
    """
    from app.actions.rule_check import check_rules
    from app.extras import require_torch
    from app.reports.answer import check_destination, emit, note
    from app.reports.validation import validation_answer
    from app.requests.plan_file import read_plan

    check_destination(wanted=output_format, as_json=as_json, output=output)
    wanted = read_plan(plan, accept_changes=accept_changes, say=note)
    require_torch("plan validate")
    from executor.torch_internals import quiet_known_warnings
    from executor.validation.validate import validate

    quiet_known_warnings()
    report = validate(wanted, check_rules(wanted), note)
    return emit(validation_answer(report), wanted=output_format, as_json=as_json, output=output)
