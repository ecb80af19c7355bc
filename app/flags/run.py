"""Flags of `plan run`: the settings of a run as they are declared, and those that say where and whether."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from app.flags.sections import OUTPUT, QUESTION, further
from executor.training.option import asked_form, options_of
from executor.training.settings import Endurance, RunSettings

PlanFile: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="[PLAN.json]", help="A plan written by plan --json.")
]
RunFolder: TypeAlias = Annotated[
    Path,
    typer.Option(
        "--run-dir",
        help="Folder for checkpoints and metrics; resumes what is there.",
        metavar="DIR",
        rich_help_panel=QUESTION,
    ),
]
ExportHF: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--export-hf",
        help="Write the result for transformers when the run ends.",
        metavar="DIR",
        rich_help_panel=further(OUTPUT),
    ),
]
Prometheus: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--prometheus",
        help="Answer Prometheus on this address; loopback without a host.",
        metavar="HOST:PORT",
        rich_help_panel=further(OUTPUT),
    ),
]
DryRun: TypeAlias = Annotated[
    bool,
    typer.Option("--dry-run", help="Write the run, print its command, do not start.", rich_help_panel=OUTPUT),
]
Engine: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Start a plan by the engine that it is for, once Meshplan's executor has checked it.",
        metavar="ENGINE",
        rich_help_panel=QUESTION,
    ),
]
RunKey: TypeAlias = Annotated[
    Path | None,
    typer.Option("--run-key", help=options_of(RunSettings)["run_key"].help, metavar="FILE"),
]

RECORDS: Final = (RunSettings, Endurance)
KEY_OF: Final = {name: option.key for name, option in options_of(*RECORDS).items()}
"""The flag's name of every setting, by the name that ranks read it under."""


def annotated_options(*records: type) -> dict[str, tuple[Any, Any]]:
    """The annotated option of every setting of some records and its default, by the flag's name."""
    return {
        option.key: (
            Annotated[
                form,
                typer.Option(
                    option.flag,
                    help=option.help,
                    metavar=option.metavar or None,
                    min=option.least,
                    rich_help_panel=option.group if option.common else further(option.group),
                ),
            ],
            default,
        )
        for record in records
        for name, option in options_of(record).items()
        for form, default in [asked_form(record, name)]
    }


OPTIONS: Final = annotated_options(*RECORDS)


def by_setting(**given: Any) -> dict[str, Any]:
    """Flags as they were given, by the names of the settings."""
    return {name: given[key] for name, key in KEY_OF.items()}
