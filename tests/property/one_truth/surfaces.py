"""Every surface of one question as labelled lines: what the command prints, writes and draws."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.cli.commands import plan
from tests.property.one_truth.lines import (
    Line,
    lines_of_csv,
    lines_of_html,
    lines_of_json,
    lines_of_markdown,
    lines_of_page,
    lines_of_table,
)
from tests.property.one_truth.questions import Question

ANSWERED, NO_PLAN, REFUSED, AUDIT_FAILS = 0, 1, 2, 4
PAGES = {
    "training": ("what_if", "topology"),
    "campaign": ("what_if", "campaign"),
    "serving": ("serving",),
    "audit": ("audit",),
}
PICTURES = ("What else was close?", "What would help most?", "When is it finished?", "Which link hurts?")
"""Tabs of the first page that print numbers which other surfaces print too."""


def limited(question: Question) -> Question:
    """A campaign's question with its deadline and budget near what the run takes, so that both verdicts occur."""
    if question.deadline_share is None and question.budget_share is None:
        return question
    answer = plan(*question.words, "--json")
    if answer.returncode != ANSWERED:
        return question
    campaign = json.loads(answer.stdout)["campaign"]
    words, query = list(question.words), dict(question.query)
    if question.deadline_share is not None:
        query["deadline"] = f"{campaign['days']['p50'] * question.deadline_share:.3g}d"
        words += ["--deadline", query["deadline"]]
    if question.budget_share is not None:
        query["budget"] = f"{campaign['usd']['p50'] * question.budget_share:.0f}"
        words += ["--budget", query["budget"]]
    return replace(question, words=tuple(words), query=query)


def surfaces(question: Question, folder: Path, *, every: bool = True) -> tuple[int, list[Line]]:
    """Ask a question through every door.

    Args:
        question: What is asked; its limits already drawn.
        folder: Where files are written.
        every: Whether also Markdown, CSV, a notebook, the report and the tabs of the first page are read.

    Returns:
        The exit code of the command, and the lines of all surfaces; only an answered question has lines.
    """
    document = plan(*question.words, "--json")
    code = document.returncode
    if code not in (ANSWERED, AUDIT_FAILS):
        return code, []
    lines = list(lines_of_json("--json", document.stdout))
    saved = ("--save-dir", str(folder / "saved")) if question.kind == "serving" else ()
    lines += lines_of_table("table", _text(code, *question.words, *saved))
    if saved:
        lines += lines_of_table("table in full", _text(code, *question.words, "--full"))
        lines += lines_of_markdown("README.md of --save-dir", (folder / "saved" / "README.md").read_text())
    if every:
        lines += lines_of_markdown("markdown", _text(code, *question.words, "--format", "markdown"))
        lines += lines_of_csv("csv", _text(code, *question.words, "--format", "csv"))
    if question.kind in ("training", "campaign"):
        lines += _of_a_plan_file(document.stdout, folder, every=every)
    for name in PAGES[question.kind]:
        lines += _of_a_page(name, question)
    if every and "what_if" in PAGES[question.kind]:
        for picture in PICTURES:
            lines += _of_a_page("what_if", question, picture)
    return code, lines


def _text(code: int, *words: str) -> str:
    """What a command prints; it ends as the same question did in JSON."""
    answer = plan(*words)
    assert answer.returncode == code, (
        f"plan {shlex.join(words)} ends in {answer.returncode}, in JSON in {code}"
    )
    return answer.stdout


def _of_a_plan_file(document: str, folder: Path, *, every: bool) -> Iterator[Line]:
    """What is said of the plan once it is read again: `plan explain`, a notebook, the report that is taken home."""
    from app.pages.answer.report import report_html
    from app.reports.notebook import markdown
    from planner.plan import from_json

    path = folder / "plan.json"
    path.write_text(document)
    yield from lines_of_table("plan explain", plan("explain", str(path)).stdout)
    if every:
        read = from_json(document)
        yield from lines_of_markdown("notebook", markdown(read))
        yield from lines_of_html("report.html", report_html(read, "plan"))


def _of_a_page(name: str, question: Question, picture: str = "") -> Iterator[Line]:
    """Draw one page of the dashboard at the question's link."""
    from streamlit.testing.v1 import AppTest

    page = AppTest.from_function(_draw, args=(name,), default_timeout=240)
    for key, value in question.query.items():
        page.query_params[key] = value
    if picture:
        page.query_params["picture"] = picture
    page.run()
    if question.kind == "audit":
        path = Path(question.words[1])
        page.file_uploader(key="audit_files").upload(path.name, path.read_bytes()).run()
    failures = [str(error.value) for error in page.exception]
    assert not failures, f"page {name} of {shlex.join(question.words)}: {failures}"
    yield from lines_of_page(f"page {name}" + (f", {picture}" if picture else ""), page)


def _draw(name: str) -> None:
    """Draw one page; the page's script holds this function alone."""
    import importlib

    importlib.import_module(f"app.pages.{name}").render()
