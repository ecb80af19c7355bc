"""What was read where: facts of files with the words and the line that state them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from app.reports.answer import Table
from planner.audit.facts import JobFact
from planner.audit.read import Reading
from topology.base.errors import shortened

_MOST_FACTS = 60
_LONGEST_SOURCE = 160
"""Characters of a file's words that a screen shows, whole words only; JSON has all."""


def shown_facts(reading: Reading, groups: Sequence[str]) -> list[JobFact]:
    """Facts of some groups, in their order."""
    facts = reading.facts.by_field.values()
    return [fact for group in groups for fact in facts if fact.name.partition(".")[0] == group]


def facts_table(reading: Reading, shown: Sequence[JobFact]) -> Table:
    """What was read where: by its line, and its file where there are several."""
    several = len(reading.kinds) > 1
    rows = tuple(
        (
            fact.name.partition(".")[2],
            _text(fact.value),
            file_and_line(fact.file, fact.line) if several else str(fact.line or ""),
            _source(fact),
        )
        for fact in shown[:_MOST_FACTS]
    )
    columns = ("field", "value", "where" if several else "line", "said")
    return Table(title="Read", columns=columns, rows=rows, align="lrll" if several else "lrrl", wraps=(3,))


def _source(fact: JobFact) -> str:
    """The word that states a fact, or how else it is known."""
    source = textwrap.shorten(fact.source, _LONGEST_SOURCE, placeholder=" …")
    source = shortened(fact.source, _LONGEST_SOURCE) if source == "…" else source
    if fact.how != "stated":
        return f"{fact.how}: {source}"
    return fact.word if fact.word and fact.source == f"{fact.word} {fact.value}" else source


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def file_and_line(file: str, line: int) -> str:
    """File and line, as editors take them."""
    return f"{file.rpartition('/')[2]}:{line}" if file and line else ""


def fact_record(fact: JobFact) -> dict[str, Any]:
    """A fact with its place."""
    return {
        "field": fact.name,
        "value": fact.value,
        "how": fact.how,
        "file": fact.file,
        "line": fact.line,
        "said": fact.source,
    }
