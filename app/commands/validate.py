"""`plan validate`: what a plan claims, one verdict each, as far as this machine can tell."""

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
    """Check each claim of a plan: counts, its memory, whether it fits, numerics, launch, step time.

    A claim holds, does not hold, or is not checked here. Counts and memory come from one process that
    plays single ranks of the plan; numerics from the plan shrunk to what this machine can run. Needs the
    extra `run` (torch). A plan of more memory than its GPU has is refused before anything starts.
    """
    from app.actions.validate import validated
    from app.reports.answer import check_destination, emit, note
    from app.requests.plan_file import read_plan, require_built

    check_destination(wanted=output_format, as_json=as_json, output=output)
    read = require_built(read_plan(plan, accept_changes=accept_changes, say=note), "plan validate")
    answer = validated(read, "plan validate")
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
