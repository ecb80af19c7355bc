"""A CSV of measured runs as rows of text by column, whatever program wrote it.

A byte order mark, tabs or semicolons in place of commas, blank lines and short rows are read; a file that
holds no table is refused with the reason. What the cells mean is decided by
`costmodel.runs.cells`, `training_runs` and `serving_runs`.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from costmodel.runs.cells import SURPLUS, Row
from topology.base.errors import InputError
from topology.base.files import read_text

MOST_ROWS = 100_000
"""Predicted in less than a minute and a gigabyte; the largest published table has 2,300."""
MOST_CELLS = 5_000_000
"""Of all rows together; a hundred thousand rows of the published columns fit."""
_DELIMITERS = ",;\t"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """Column names and rows of one CSV file; every cell is stripped text, empty where the row ends early."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def read_table(path: Path | str) -> RunTable:
    """Read a CSV of runs; raises `InputError` when it holds no rows."""
    text = read_text(path).removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    header = text.lstrip().partition("\n")[0]
    if not header.strip():
        raise InputError(what=f"{path} is empty", cause="it has no header line", fix=_SCHEMA)
    reader = csv.DictReader(
        io.StringIO(text.lstrip("\r\n"), newline=""),
        delimiter=max(_DELIMITERS, key=header.count), restkey=SURPLUS, restval="",
    )  # fmt: skip
    try:
        columns = tuple(name.strip() for name in reader.fieldnames or ())
        reader.fieldnames = columns
        most = min(MOST_ROWS, MOST_CELLS // max(1, len(columns)))
        rows = tuple(_stripped(row) for row in itertools.islice(reader, most + 1))
    except csv.Error as broken:
        raise InputError(
            what=f"{path} is not a CSV table", cause=f"line {reader.line_num}: {broken}", fix=_SCHEMA
        ) from broken
    if len(rows) > most:
        raise InputError(
            what=f"{path} is too large",
            cause=f"it has more than {most:,} rows of {len(columns)} columns",
            fix="split it into several tables",
        )
    if not rows:
        raise InputError(
            what=f"{path} holds no runs", cause="a header line and no row below it", fix="add one row per run"
        )
    return RunTable(columns=columns, rows=rows)


_SCHEMA = "use the columns of training_runs_v2.csv or serving_runs.csv (docs/accuracy.md lists them)"


def require_columns(table: RunTable, names: tuple[str, ...], path: Path | str, kind: str) -> None:
    """Refuse a table without a column that every run of this kind needs."""
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise InputError(
            what=f"{path} is not a table of {kind} runs",
            cause=f"it has no column {', '.join(missing)}",
            fix=_SCHEMA,
        )


def _stripped(row: Mapping[str, str | list[str]]) -> Row:
    """Strip the cells of one row; surplus cells are kept as one text."""
    return {
        name: cell.strip() if isinstance(cell, str) else ",".join(cell).strip(", ")
        for name, cell in row.items()
    }
