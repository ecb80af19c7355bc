"""`plan diff A.json B.json`: what differs between two plans, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.shared import AcceptChanges, AsJson, OutputFile, OutputFormat


def command(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="A plan written by plan --json.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="The plan to compare it with.")],
    accept_changes: AcceptChanges = False,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Compare two plans: request, layout, time, memory, money."""
    from app.analysis.plan_diff import diff_answer
    from app.reports.answer import emit, note
    from app.requests.plan_file import read_plan

    plan, other = (read_plan(path, accept_changes=accept_changes, say=note) for path in (first, second))
    answer = diff_answer(plan, other, str(first), str(second))
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
