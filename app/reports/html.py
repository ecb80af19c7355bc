"""An answer as HTML for a notebook: plain elements that take the notebook's own style."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from app.reports.answer import Answer, Facts, Section, Table


def answer_html(answer: Answer, pictures: Sequence[str] = ()) -> str:
    """Headline, pictures, then every section; pictures are HTML already, everything else is escaped."""
    parts = [f"<h3>{escape(answer.headline)}</h3>", *pictures]
    for section in answer.sections:
        parts += [f"<h4>{escape(section.title)}</h4>"] if section.title else []
        parts.append(_section(section))
    return "<div>" + "\n".join(parts) + "</div>"


def _section(section: Section) -> str:
    """One section's body."""
    if isinstance(section, Facts):
        return _table(("", ""), section.pairs, "ll")
    if isinstance(section, Table):
        align = section.align or "l" + "r" * (len(section.columns) - 1)
        note = f"<p><small>{escape(section.note)}</small></p>" if section.note else ""
        return _table(section.columns, section.rows, align) + note
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in section.lines) + "</ul>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """A table; columns without any title have no head.

    >>> _table(("", ""), [("MFU", "50 %")], "lr")
    '<table><tr><td>MFU</td><td style="text-align: right">50 %</td></tr></table>'
    """
    head = [_row("th", columns, align)] if any(columns) else []
    return "<table>" + "".join([*head, *(_row("td", row, align) for row in rows)]) + "</table>"


def _row(tag: str, cells: Sequence[str], align: str) -> str:
    """One row of cells, numbers to the right."""
    styles = [' style="text-align: right"' if side == "r" else "" for side in align]
    drawn = (f"<{tag}{style}>{escape(cell)}</{tag}>" for cell, style in zip(cells, styles, strict=True))
    return f"<tr>{''.join(drawn)}</tr>"
