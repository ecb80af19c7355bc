"""An answer of the command line on a page: its facts, tables and sentences, with the same numbers."""

from __future__ import annotations

import streamlit as st

from app.pages.base.frame import draw_table, plain
from app.reports.answer import Answer, Facts, Section, Table, markdown_list


def show_answer(answer: Answer) -> None:
    """Draw the headline and every section."""
    if answer.headline:
        st.subheader(plain(answer.headline), anchor=False)
    for section in answer.sections:
        show_section(section)


def show_section(section: Section) -> None:
    """Draw one section."""
    if section.title:
        st.markdown(f"#### {plain(section.title)}")
    if isinstance(section, Facts):
        show_facts(section)
    elif isinstance(section, Table):
        draw_table(table_columns(section), alt=section.title)
        if section.note:
            st.caption(plain(section.note))
    else:
        lines = ["\n".join(map(plain, line.split("\n"))) for line in section.lines]
        st.markdown(markdown_list(lines, ordered=section.ordered))


def show_facts(section: Facts) -> None:
    """Draw named values as a table that wraps; commands are something to copy."""
    copied = list(section.pairs) if section.copied else []
    rows = [
        f"| {plain(name)} | {plain(value)} |" for name, value in section.pairs if (name, value) not in copied
    ]
    if rows:
        st.markdown("\n".join(["| | |", "|---|---|", *rows]))
    for name, value in copied:
        st.caption(plain(name))
        st.code(value, language="bash", wrap_lines=True)


def table_columns(table: Table) -> dict[str, list[str]]:
    """Columns of a table; equal or empty heads are told apart by invisible spaces."""
    heads = [
        head + "\N{ZERO WIDTH SPACE}" * table.columns[:n].count(head) for n, head in enumerate(table.columns)
    ]
    return {head: [row[number] for row in table.rows] for number, head in enumerate(heads)}
