"""`plan export`: a plan as another tool's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.shared import AcceptChanges
from planner.launch.bundle import LAUNCHERS
from planner.launch.targets import TARGETS


def command(
    *,
    plan: Annotated[Path, typer.Argument(help="A plan written by plan --json.", metavar="PLAN.json")],
    target: Annotated[
        str,
        typer.Option(
            "--to",
            help=f"Tool to write for: {', '.join(TARGETS)}.",
            metavar="TOOL",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to a file instead of stdout.", metavar="FILE")
    ] = None,
    accept_changes: AcceptChanges = False,
    launcher: Annotated[
        str | None,
        typer.Option("--launcher", help=f"With --save-dir: {', '.join(LAUNCHERS)}.", metavar="LAUNCHER"),
    ] = None,
    save_dir: Annotated[
        Path | None,
        typer.Option("--save-dir", help="Write every file into a folder, to start it there.", metavar="DIR"),
    ] = None,
    nearest: Annotated[
        bool,
        typer.Option("--nearest", help="Write what comes nearest where the tool cannot be told the plan."),
    ] = False,
) -> int:
    """Write a plan for another trainer or scheduler.

    What was written is read back and estimated. Unless that is the plan, it is refused, with the fields that
    differ, what they cost and the change that fixes it.
    """
    from app.reports.answer import note, print_text, write_file, write_folder
    from app.requests.plan_file import read_plan, require_described
    from planner.launch.bundle import bundle, require_launcher
    from planner.launch.targets import export_plan

    require_launcher(target, launcher, save_dir)
    read = require_described(read_plan(plan, accept_changes=accept_changes, say=note), "plan export")
    if save_dir is not None:
        files, notes = bundle(read, target, launcher or "torchrun", nearest=nearest)
        for text in notes:
            note(text)
        write_folder(save_dir, files)
        return 0
    exported = export_plan(read, target, nearest=nearest)
    for text in exported.notes:
        note(text)
    if exported.others:
        note(f"{', '.join(exported.others)} goes with it: --save-dir writes all files")
    if output is None:
        print_text(exported.text, is_json=exported.text.startswith("{"))
    else:
        write_file(output, exported.text)
    return 0
