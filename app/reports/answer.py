"""What a command answers, and how it is written: as a table, JSON, CSV or Markdown.

A command builds one `Answer`. Its sections are what a person reads, its document is what a program reads, its
records are what a spreadsheet reads; all three carry the same numbers. Data goes to stdout or a file,
everything else (notes, progress, errors) to stderr.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias, get_args

from app.errors import ANSWERED
from app.terminal.streams import json_for, tell
from topology.base.atomic import write_atomically
from topology.base.errors import InputError

Format = Literal["table", "json", "csv", "markdown"]
FORMATS: tuple[Format, ...] = get_args(Format)
_FORMAT_OF_SUFFIX: Mapping[str, Format] = {".json": "json", ".csv": "csv", ".md": "markdown", ".txt": "table"}
_BOLD, _DIM, _ACCENT = "1", "2", "36"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_DEFAULT_WIDTH = 110
NO_BREAK = "\u00a0"
"""A space at which no line is broken: of a flag and its value, of a command."""
_NARROWEST = 16
"""Characters of a column that is wrapped, at least."""
_ROWS_AT_ONCE = 20
"""Of a table whose columns stand in parts, so that a screen holds all parts of its rows."""
_HANGING = 6
"""Blanks before a cell that has no room beside the others of its row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Named values, one a line; those that are `copied` into a shell or a file are never wrapped."""

    title: str
    pairs: tuple[tuple[str, str], ...]
    copied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under column heads; `align` has an `l` or `r` per column (default: first left, others right).

    Cells of the columns in `wraps` are broken at spaces where a row is wider than the screen; a no-break
    space keeps two words together.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str = ""
    note: str = ""
    wraps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Sentences, one a line, wrapped; numbered if `ordered`, what follows a line break below."""

    title: str
    lines: tuple[str, ...]
    ordered: bool = False


Section: TypeAlias = Facts | Table | Lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything one command has to say; the document is written only where a program reads it.

    `brief` is what a screen shows of it, unless the whole is asked for; without any it shows the sections.
    """

    headline: str
    sections: tuple[Section, ...]
    document: Callable[[], str]
    records: tuple[Mapping[str, Any], ...] = field(default=())
    brief: tuple[Section, ...] = field(default=())
    exit_code: int = ANSWERED


def json_text(value: object) -> str:
    """Give the JSON text of plain data; refuses NaN, which no JSON reader accepts."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)


def choose_format(*, wanted: str | None, as_json: bool, output: Path | None) -> Format:
    """Decide the format from `--format`, `--json` and the ending of `--output`, in that order."""
    if wanted is not None and wanted not in FORMATS:
        raise InputError(
            what=f"unknown format {wanted!r}",
            cause="no answer is written in it",
            fix=f"use {', '.join(FORMATS)}",
        )
    if as_json and wanted not in (None, "json"):
        raise InputError(
            what="two formats asked for", cause=f"--json and --format {wanted}", fix="give one of them"
        )
    if as_json:
        return "json"
    if wanted is not None:
        return next(known for known in FORMATS if known == wanted)
    return _FORMAT_OF_SUFFIX.get(output.suffix.lower(), "table") if output is not None else "table"


def emit(
    answer: Answer,
    *,
    wanted: str | None = None,
    as_json: bool = False,
    output: Path | None = None,
    full: bool = True,
) -> int:
    """Write the answer where and how it was asked for; returns the exit code.

    Args:
        answer: What the command has to say.
        wanted: Format that was named.
        as_json: Whether JSON was asked for.
        output: File to write to; it has the whole answer.
        full: Whether a screen shows all of it, not the brief alone.
    """
    chosen = choose_format(wanted=wanted, as_json=as_json, output=output)
    if answer.brief and not full and output is None and chosen == "table":
        answer = replace(answer, sections=answer.brief)
    colour = output is None and wants_colour(sys.stdout)
    on_screen = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    width = shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns if on_screen else _DEFAULT_WIDTH
    text = render(answer, chosen, width=width, colour=colour, folds=on_screen and output is None)
    if output is None:
        print_text(text, is_json=chosen == "json")
    else:
        write_file(output, text)
    return answer.exit_code


def print_text(text: str, *, is_json: bool = False) -> None:
    """Write to stdout; JSON stays JSON where stdout cannot encode a letter."""
    sys.stdout.write(json_for(sys.stdout, text) if is_json else text)
    sys.stdout.flush()


def check_destination(*, wanted: str | None, as_json: bool, output: Path | None) -> None:
    """Refuse a format or a file that cannot be written, before any work is done for it."""
    choose_format(wanted=wanted, as_json=as_json, output=output)
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        reason = "it is a directory" if output.is_dir() else "its folder does not exist"
        raise InputError(
            what=f"cannot write {output}", cause=reason, fix="give --output a file you may write"
        )


def render(
    answer: Answer,
    chosen: Format,
    *,
    width: int = _DEFAULT_WIDTH,
    colour: bool = False,
    folds: bool = False,
) -> str:
    """Give the text of an answer in one of the formats.

    A table `folds` where it is wider than a screen: its heads are broken, then its columns stand in parts one
    under the other. In a pipe a row stays a line.
    """
    if chosen == "json":
        return answer.document().rstrip("\n") + "\n"
    if chosen == "csv":
        return csv_text(answer.records)
    if chosen == "markdown":
        return _markdown(answer).replace(NO_BREAK, " ")
    return _screen(answer, width, colour=colour, folds=folds).replace(NO_BREAK, " ")


def write_file(path: Path, text: str, *, fix: str = "give --output a file you may write") -> None:
    """Write a text file whole or not at all, naming the reason when that cannot be done."""
    try:
        write_atomically(path, text)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        raise InputError(
            what=f"cannot write {path}",
            cause=getattr(error, "strerror", None) or str(error),
            fix=fix,
        ) from error


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder that is new or empty: nothing of another run is mixed in."""
    fix = "give --save-dir a new or empty folder you may write"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        crowded = any(folder.iterdir())
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise InputError(what=f"cannot write into {folder}", cause=cause, fix=fix) from error
    if crowded:
        raise InputError(what=f"cannot write into {folder}", cause="there are files in it", fix=fix)
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_file(folder / name, text, fix=fix)


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Give CSV with the union of the records' keys as columns, in order of first appearance.

    A cell holds one value: a record inside a record is columns of its own, a list is joined.

    >>> csv_text([{"tp": 8}, {"tp": 4, "pp": 2}]).split()
    ['tp,pp', '8,', '4,2']
    >>> csv_text([{"ttft": {"p50_s": 0.1, "p99_s": 0.4}, "gpus": ["h100", "h200"]}]).splitlines()
    ['ttft.p50_s,ttft.p99_s,gpus', '0.1,0.4,h100; h200']
    """
    rows = [dict(_cells(record)) for record in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _cells(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Columns and values of a record."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", cell) for key, cell in _cells(value))
        elif isinstance(value, list | tuple):
            yield name, "; ".join(_listed(item) for item in value)
        else:
            yield name, value


def _listed(item: object) -> str:
    """An item of a list in a cell."""
    if isinstance(item, Mapping):
        return ", ".join(f"{key}: {_listed(value)}" for key, value in item.items() if value is not None)
    if isinstance(item, list | tuple):
        return " ".join(_listed(each) for each in item)
    return str(item)


def wants_colour(stream: TextIO) -> bool:
    """Whether escape codes are welcome: a terminal, and neither NO_COLOR nor a dumb one."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def note(text: str) -> None:
    """Say something beside the answer, on stderr."""
    tell(f"note: {text}\n")


def bar(fraction: float, width: int = 24) -> str:
    """Draw a fraction in 0…1 with eighths of a block.

    >>> bar(0.5, 4)
    '██'
    """
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    return (_EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _screen(answer: Answer, width: int, *, colour: bool, folds: bool) -> str:
    """Lay an answer out for a terminal."""
    head = answer.headline
    sections = [_screen_section(section, width, colour=colour, folds=folds) for section in answer.sections]
    if head and answer.sections and _is_summary(answer.sections[0]):
        lines = [_paint(line, _BOLD, colour=colour) for line in _wrapped(head, width, first="", rest="    ")]
        return "\n\n".join(("\n".join((*lines, sections[0])), *sections[1:])) + "\n"
    lines = [_paint(line, _BOLD, colour=colour) for line in _wrapped(head, width, first="", rest="    ")]
    return "\n\n".join(("\n".join(lines), *sections) if lines else sections) + "\n"


def _is_summary(section: Section) -> bool:
    """Whether a section is sentences without a title, which go on where the headline ends."""
    return isinstance(section, Lines) and not section.title


def _screen_item(text: str, width: int, mark: str) -> list[str]:
    r"""A sentence behind its mark, and what belongs to it.

    >>> _screen_item("late\nfix: start earlier", 80, "1.")
    ['  1. late', '     fix: start earlier']
    """
    first, *further = text.split("\n")
    rest = " " * (len(mark) + 3)
    lines = list(_wrapped(first, width, first=f"  {mark} ", rest=rest))
    return lines + [line for each in further for line in _wrapped(each, width, first=rest, rest=rest)]


def _screen_section(section: Section, width: int, *, colour: bool, folds: bool) -> str:
    """Lay one section out: a title, then indented lines."""
    title = [_paint(section.title, f"{_BOLD};{_ACCENT}", colour=colour)] if section.title else []
    if isinstance(section, Facts):
        body = _screen_facts(section, width, colour=colour)
    elif isinstance(section, Table):
        body = _screen_table(section, width, colour=colour, folds=folds)
    else:
        body = [
            line
            for number, text in enumerate(section.lines, 1)
            for line in _screen_item(text, width, f"{number}." if section.ordered else "·")
        ]
    return "\n".join([*title, *body])


def _screen_facts(section: Facts, width: int, *, colour: bool) -> list[str]:
    """Align the names of facts in one column."""
    column = max((len(name) for name, _ in section.pairs), default=0) + 2
    lines = []
    for name, value in section.pairs:
        head = _paint(f"  {name:<{column}}", _DIM, colour=colour)
        start = " " * (column + 2)
        if section.copied:
            wrapped = [start + line for line in value.splitlines()] or [""]
        else:
            wrapped = _wrapped(value, width, first=start, rest=start) or [""]
        lines.append(head + wrapped[0].lstrip(" "))
        lines += wrapped[1:]
    return lines


def _screen_table(section: Table, width: int, *, colour: bool, folds: bool) -> list[str]:
    """Align columns; two spaces between them, no rules."""
    columns = list(zip(section.columns, *section.rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    align = section.align or "l" + "r" * (len(section.columns) - 1)
    last = len(columns) - 1  # a word that it has no room for gets a line of its own
    narrowest = {
        column: max(_NARROWEST, 0 if column == last else max(map(_longest_word, columns[column])))
        for column in section.wraps
    }
    while _row_width(widths) > width:
        wide = [column for column, least in narrowest.items() if widths[column] > least]
        if not wide:
            break
        widths[max(wide, key=lambda column: widths[column])] -= 1
    parts: list[Sequence[int]] = [range(len(columns))]
    if folds and _row_width(widths) > width:
        least = [max(map(len, (*head.split(), *cells))) for head, *cells in columns]
        key = _key(section.rows)
        widest = max(_NARROWEST, width - _row_width(least[:key]) - 2)
        shortest = [
            max(_NARROWEST, *map(_longest_word, column)) if side == "l" else width
            for column, side in zip(columns, align, strict=True)
        ]
        parts, widths = _parts([min(most, widest) for most in least], shortest, width, key)
    hangs = last if last in section.wraps and len(parts) == 1 else None
    at_once = len(section.rows) if len(parts) == 1 else _ROWS_AT_ONCE
    lines = list[str]()
    for start in range(0, max(1, len(section.rows)), max(1, at_once)):
        for part in parts:
            those = [widths[i] for i in part], "".join(align[i] for i in part)
            heads = _rows([section.columns[i] for i in part], *those)
            lines += [""] * bool(lines) + [_paint(line, _DIM, colour=colour) for line in heads]
            for row in section.rows[start : start + at_once]:
                if hangs is not None and _longest_word(row[hangs]) > widths[hangs]:
                    lines += _rows((*row[:hangs], ""), *those)
                    lines += _wrapped(row[hangs], width, first=" " * _HANGING, rest=" " * _HANGING)
                else:
                    lines += _rows([row[i] for i in part], *those)
    if section.note:
        note = _wrapped(section.note, width, first="  ", rest="  ") if folds else [f"  {section.note}"]
        lines += [_paint(line, _DIM, colour=colour) for line in note]
    return lines


def _longest_word(cell: str) -> int:
    """Characters of the longest word that breaking a cell at spaces leaves."""
    return max(map(len, cell.replace(NO_BREAK, " ").split()), default=0)


def _row_width(widths: Sequence[int]) -> int:
    """Characters of a row whose columns are so wide."""
    return sum(widths) + 2 * len(widths)


def _key(rows: Sequence[Sequence[str]]) -> int:
    """How many of the first columns tell the rows apart.

    >>> _key((("1", "2", "x"), ("1", "4", "y"))), _key((("a", "x"), ("a", "x")))
    (2, 1)
    """
    counts = range(1, len(rows[0]) if rows else 1)
    return next((count for count in counts if len({tuple(row[:count]) for row in rows}) == len(rows)), 1)


def _parts(
    widths: Sequence[int], shortest: Sequence[int], width: int, key: int
) -> tuple[list[Sequence[int]], list[int]]:
    """Columns of each part of a table that is wider than a screen, and how wide each column is then.

    Each part begins with the `key` first columns. A column that has no room takes what is left, if that is no
    less than its `shortest`, or begins the next part.

    >>> _parts((4, 10, 10, 10), (30, 30, 30, 30), 30, 1)
    ([[0, 1, 2], [0, 3]], [4, 10, 10, 10])
    >>> _parts((4, 10, 30), (30, 30, 12), 34, 1)
    ([[0, 1, 2]], [4, 10, 14])
    """
    kept, parts = list(widths), [list(range(key))]
    for column in range(key, len(kept)):
        room = width - _row_width([kept[i] for i in parts[-1]]) - 2
        if kept[column] > room and len(parts[-1]) > key:
            if room >= shortest[column]:
                kept[column] = room
            else:
                parts.append(list(range(key)))
        parts[-1].append(column)
    return [*parts], kept


def _row(cells: Sequence[str], widths: Sequence[int], align: str) -> str:
    """Pad one row of cells."""
    padded = [
        cell.rjust(width) if side == "r" else cell.ljust(width)
        for cell, width, side in zip(cells, widths, align, strict=True)
    ]
    return "  " + "  ".join(padded).rstrip()


def _rows(cells: Sequence[str], widths: Sequence[int], align: str) -> list[str]:
    """The lines of one row: a cell that is wider than its column is broken at spaces."""
    columns = [
        [cell] if len(cell) <= width else _broken(cell, width)
        for cell, width in zip(cells, widths, strict=True)
    ]
    return [_row(row, widths, align) for row in itertools.zip_longest(*columns, fillvalue="")]


def _broken(cell: str, width: int) -> list[str]:
    """The lines of one cell; words that are kept together are not where they are too long for that."""
    parts = [part.replace(NO_BREAK, " ") if len(part) > width else part for part in cell.split(" ")]
    return textwrap.wrap(" ".join(parts), width, break_long_words=False, break_on_hyphens=False)


def _wrapped(text: str, width: int, *, first: str, rest: str) -> list[str]:
    """Break a sentence at spaces so that it fits the screen."""
    return textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _paint(text: str, code: str, *, colour: bool) -> str:
    """Put an escape code around a text when colours are wanted."""
    return f"\033[{code}m{text}\033[0m" if colour else text


def _markdown(answer: Answer) -> str:
    """Lay an answer out as Markdown."""
    blocks = [f"# {answer.headline}"] if answer.headline else []
    for section in answer.sections:
        blocks += [f"## {section.title}"] if section.title else []
        blocks.append(_markdown_body(section))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _markdown_body(section: Section) -> str:
    """Give one section's body as Markdown."""
    if isinstance(section, Lines):
        return markdown_list(section.lines, ordered=section.ordered)
    if isinstance(section, Facts):
        return _markdown_table(("", ""), section.pairs, "ll")
    align = section.align or "l" + "r" * (len(section.columns) - 1)
    table = _markdown_table(section.columns, section.rows, align)
    return f"{table}\n\n{section.note}" if section.note else table


def markdown_list(lines: Sequence[str], *, ordered: bool) -> str:
    r"""A list of sentences; what follows a line break in one stays in its item, on a line of its own.

    >>> markdown_list(("late\nfix: start earlier", "slow"), ordered=True).splitlines()
    ['1. late\\', '   fix: start earlier', '2. slow']
    """
    marks = (f"{number}." if ordered else "-" for number in range(1, len(lines) + 1))
    return "\n".join(
        f"{mark} " + ("\\\n" + " " * (len(mark) + 1)).join(line.split("\n"))
        for mark, line in zip(marks, lines, strict=True)
    )


def html_list(section: Lines) -> str:
    """The same in HTML."""
    tag = "ol" if section.ordered else "ul"
    items = (escape(line).replace("\n", "<br>") for line in section.lines)
    return f"<{tag}>" + "".join(f"<li>{item}</li>" for item in items) + f"</{tag}>"


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Give a pipe table."""
    rule = ["---:" if side == "r" else "---" for side in align]
    lines = [list(columns), rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
