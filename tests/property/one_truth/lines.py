"""Rendered output as labelled lines: what a reader sees, with the label that stands at it.

A `Line` is one cell, metric or sentence of one surface: ``place`` is the heading above it, ``label`` the name of
its row, column or tile (empty for a sentence), ``text`` what is printed. Nothing here knows a plan: lines are read
from the text of a command, from a Markdown or CSV file, from a JSON document and from the elements of a page.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

_GAP = re.compile(r"\s{2,}")
_TAG = re.compile(r"<[^>]+>")
_RULE = re.compile(r"[\s:|]*-[\s:|-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that a reader sees."""

    surface: str
    place: str
    label: str
    text: str

    @property
    def whole(self) -> str:
        """Place, label and text in one string, as patterns read it."""
        return f"{self.place} › {self.label}: {self.text}"


def lines_of_table(surface: str, text: str) -> Iterator[Line]:
    """Read what a terminal shows: a headline, titles, and below each aligned names and values, or sentences.

    A value that was wrapped is joined again: a continuation starts at the column of the values.
    """
    blocks = text.rstrip().split("\n\n")
    yield Line(surface=surface, place="", label="headline", text=" ".join(blocks[0].split()))
    for block in blocks[1:]:
        rows = block.split("\n")
        place = "" if rows[0].startswith("  ") else rows.pop(0)
        joined: list[str] = []
        column = _column_of_values(rows)
        for row in rows:
            if joined and column and not row[:column].strip():
                joined[-1] += " " + row.strip()
            else:
                joined.append(row)
        for row in joined:
            name, _, value = row.strip().partition("  ")
            yield Line(
                surface=surface, place=place, label=name if value else "", text=(value or name).strip()
            )


def _column_of_values(rows: Sequence[str]) -> int:
    """Where the values of aligned names start; 0 where the first row has none."""
    start = re.match(r"  \S+(?: \S+)*\s{2,}", rows[0]) if rows else None
    return start.end() if start else 0


def lines_of_markdown(surface: str, text: str) -> Iterator[Line]:
    """Read headings, tables of two columns (facts), tables with column heads, and sentences."""
    place, heads = "", None
    for raw in text.splitlines():
        row = raw.strip()
        if row.startswith("#"):
            title = row.lstrip("#").strip()
            yield Line(surface=surface, place=place, label="headline", text=title)
            place, heads = (title if row.startswith("##") else ""), None
        elif row.startswith("|"):
            if _RULE.fullmatch(row):
                continue
            cells = [plain(cell) for cell in re.split(r"(?<!\\)\|", row.strip("|"))]
            if heads is None:
                heads = cells
            elif not any(heads):
                yield Line(surface=surface, place=place, label=cells[0], text=" | ".join(cells[1:]))
            else:
                yield from _cells(surface, place, heads, cells)
        else:
            heads = None
            if row:
                yield Line(surface=surface, place=place, label="", text=plain(row.removeprefix("- ")))


def _cells(surface: str, place: str, heads: Sequence[str], cells: Sequence[str]) -> Iterator[Line]:
    """The cells of one row, each named by its row and its column; a row with a layout is named by that."""
    row = dict(zip(heads, cells, strict=False))
    key = row.get("layout") or cells[0]
    for head, cell in row.items():
        if head:
            yield Line(surface=surface, place=place, label=f"{key} › {head}", text=cell)


def lines_of_csv(surface: str, text: str) -> Iterator[Line]:
    """Read a header and rows: each cell is named by its row's number and its column."""
    for number, row in enumerate(csv.DictReader(io.StringIO(text))):
        for head, cell in row.items():
            yield Line(surface=surface, place="csv", label=f"{number} › {head}", text=cell or "")


def lines_of_json(surface: str, text: str) -> Iterator[Line]:
    """Read a document: each leaf is named by its path; elements of a list by their number."""
    yield from _leaves(surface, "", json.loads(text))


def _leaves(surface: str, path: str, value: Any) -> Iterator[Line]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(surface, f"{path}.{key}" if path else str(key), inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(surface, f"{path}[{number}]", inner)
    elif value is not None:
        shown = value if isinstance(value, str) else json.dumps(value)
        yield Line(surface=surface, place="json", label=path, text=shown)


def lines_of_html(surface: str, text: str) -> Iterator[Line]:
    """Read the tables, headings and sentences of a report, without its pictures."""
    text = re.sub(r"<(script|style|svg)\b.*?</\1>", "", text, flags=re.DOTALL)
    place, heads = "", None
    for tag, inner in re.findall(r"<(h[1-4]|tr|p|li|figcaption)\b[^>]*>(.*?)</\1>", text, flags=re.DOTALL):
        if tag.startswith("h"):
            place, heads = _untagged(inner), None
            yield Line(surface=surface, place="", label="headline", text=place)
        elif tag == "tr":
            cells = [
                _untagged(cell) for cell in re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", inner, flags=re.DOTALL)
            ]
            if "<td" not in inner:
                heads = cells
            elif heads is None or not any(heads):
                yield Line(surface=surface, place=place, label=cells[0], text=" | ".join(cells[1:]))
            else:
                yield from _cells(surface, place, heads, cells)
        else:
            yield Line(surface=surface, place=place, label="", text=_untagged(inner))


def _untagged(html: str) -> str:
    return " ".join(unescape(_TAG.sub(" ", html)).split())


def lines_of_page(surface: str, page: Any) -> Iterator[Line]:
    """Read the elements of a drawn page in their order: tiles, tables, headings, captions, boxes."""
    place = ""
    for element in _elements(page.main):
        kind, value = element.type, getattr(element, "value", None)
        if kind == "metric":
            yield Line(surface=surface, place="tile", label=element.label, text=str(element.value))
            if element.delta:
                yield Line(surface=surface, place="delta", label=element.label, text=str(element.delta))
        elif kind in ("arrow_data_frame", "dataframe", "table"):
            heads = [str(head) for head in value.columns]
            for row in value.astype(str).itertuples(index=False):
                yield from _cells(surface, place, heads, list(row))
        elif kind in ("header", "subheader"):
            yield Line(surface=surface, place="", label="headline", text=plain(str(value)))
        elif kind in ("markdown", "caption", "info", "warning", "error", "success", "code"):
            text = str(value)
            if text.startswith("#"):
                place = plain(text.lstrip("#").strip())
            else:
                yield from _prose(surface, place, kind, text)


def _prose(surface: str, place: str, kind: str, text: str) -> Iterator[Line]:
    """Lines of a table in Markdown, of chips, or of a sentence."""
    if text.startswith("|"):
        for line in lines_of_markdown(surface, text):
            yield Line(surface=surface, place=place, label=line.label, text=line.text)
    elif "-badge[" in text:
        for chip in re.findall(r"-badge\[((?:\\.|[^\]\\])*)\]", text):
            yield Line(surface=surface, place="chip", label="", text=plain(chip))
    else:
        yield Line(
            surface=surface,
            place=kind if not place else f"{place} {kind}",
            label="",
            text=plain(text),
        )


def _elements(node: Any) -> Iterator[Any]:
    children = getattr(node, "children", None)
    if children:
        for child in children.values():
            yield from _elements(child)
    else:
        yield node


def plain(text: str) -> str:
    """Text without the marks of Markdown."""
    text = text.replace("&nbsp;", " ").replace("**", "").replace("`", "")
    return " ".join(re.sub(r"\\(.)", r"\1", text).split())
