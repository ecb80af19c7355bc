"""A CSV of measured runs as rows of text by column, whatever program wrote it.

A byte order mark, tabs or semicolons in place of commas, blank lines and short rows are read; a file that
holds no table is refused with the reason. What the cells mean is decided by
`costmodel.accuracy.training_runs` and `costmodel.accuracy.serving_runs`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from topology.base.decode import read_text
from topology.base.errors import InputError

Row = Mapping[str, str]
SURPLUS = "(cells beyond the last column)"
"""Column that holds what a row has beyond the header; such a row is misaligned."""
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
        rows = tuple(_stripped(row) for row in reader)
    except csv.Error as broken:
        raise InputError(
            what=f"{path} is not a CSV table", cause=f"line {reader.line_num}: {broken}", fix=_SCHEMA
        ) from broken
    if not rows:
        raise InputError(
            what=f"{path} holds no runs", cause="a header line and no row below it", fix="add one row per run"
        )
    return RunTable(columns=columns, rows=rows)


_SCHEMA = "use the columns of training_runs.csv or serving_runs.csv (docs/accuracy.md lists them)"


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


class UnsupportedRunError(Exception):
    """A row that does not say enough, or something the cost model cannot express; the message says which."""


def number(row: Row, name: str, default: float | None = None) -> float:
    """A positive finite number; `default` where the cell is empty."""
    text = row.get(name, "")
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf") or (value == 0 and default != 0):
        raise UnsupportedRunError(f"{name} = {text!r} is not a positive number")
    return value


def count(row: Row, name: str, default: int | None = None) -> int:
    """A positive whole number; `default` where the cell is empty."""
    value = number(row, name, None if default is None else float(default))
    if value != int(value):
        raise UnsupportedRunError(f"{name} = {row.get(name)} is not a whole number")
    return int(value)


def flag(row: Row, name: str, *, default: bool) -> bool:
    """A yes or no."""
    text = row.get(name, "").lower()
    return default if not text else text in ("1", "1.0", "true", "yes")
