"""`plan rule`: what a name means by which layouts are dismissed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from app.flags.completion import rule_completion
from app.flags.shared import AsJson, OutputFile, OutputFormat

if TYPE_CHECKING:
    from app.reports.answer import Answer
    from planner.rules.meanings import Meaning


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="A rule, a limit of an engine or a bound.", autocompletion=rule_completion
        ),
    ] = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Say what a rule, an engine's limit or a bound of the search means: the names under *dismissed by*.

    Without a name all are listed.
    """
    from app.reports.answer import emit
    from planner.rules.meanings import meanings
    from topology.base.names import resolve

    known = meanings()
    answer = _list(known) if name is None else _describe(known[resolve(name, tuple(known), "rule")])
    return emit(answer, wanted=output_format, as_json=as_json, output=output)


def _list(known: dict[str, Meaning]) -> Answer:
    """Every name with its sentence."""
    from app.reports.answer import Answer, Table, json_text

    records = tuple(asdict(meaning) for meaning in known.values())
    rows = tuple((meaning.name, meaning.text) for meaning in known.values())
    return Answer(
        headline=f"{len(known)} names by which layouts are dismissed",
        sections=(Table(title="", columns=("name", "means"), rows=rows, align="ll", wraps=(1,)),),
        document=lambda: json_text({"rules": list(records)}),
        records=records,
    )


def _describe(meaning: Meaning) -> Answer:
    """One name, whole."""
    from app.reports.answer import Answer, Facts, json_text

    pairs = (
        ("means", meaning.text),
        ("is", f"a {meaning.kind}"),
        ("then", meaning.follows),
        ("decided by", ", ".join(meaning.reads)),
        *((engine, how) for engine, how in meaning.runners.items()),
        ("source", meaning.source),
    )
    return Answer(
        headline=meaning.name,
        sections=(Facts(title="", pairs=tuple((name, text) for name, text in pairs if text)),),
        document=lambda: json_text(asdict(meaning)),
        records=(asdict(meaning),),
    )
