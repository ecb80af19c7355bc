"""A plan as one page for a memo: HTML that needs nothing else, made to be printed (a browser's PDF)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from app.figures.measured.bands import narrowed_band
from app.figures.memory import estimate_bars
from app.figures.step_time import waterfall
from app.figures.style import alt_text
from app.reports.answer import Answer, Facts, Section, Table, html_list
from app.reports.explain import explain_answer
from app.reports.layout_words import layer_words
from app.reports.plan import plan_answer
from app.reports.plan_headline import headline_of
from planner.plan import Plan
from planner.pricing import capacity_of_fullest

WIDTH_PX = 720
"""Of a picture: what an A4 sheet holds between its margins."""
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 780px; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 1.6rem; break-after: avoid; }
table { border-collapse: collapse; width: 100%; font-size: 0.85rem; } th, td { text-align: left; padding: 0.2rem 0.5rem;
border-bottom: 1px solid #d5d9de; vertical-align: top; } .r { text-align: right; white-space: nowrap; } caption, figcaption, .note {
color: #4a525b; font-size: 0.85rem; text-align: left; } figure { margin: 1rem 0; break-inside: avoid; } tr { break-inside: avoid; }
code { overflow-wrap: anywhere; } @page { size: A4; margin: 15mm; } @media print { body { margin: 0; max-width: none; } }
"""  # noqa: E501 - a style sheet


def report_html(plan: Plan, command: str, without: Plan | None = None) -> str:
    """Write the page: pictures first, then what `plan` and `plan explain` say.

    Args:
        plan: The plan.
        command: What gives it.
        without: The plan without the user's own runs, where it has any: the band is shown before and after.
    """
    title = headline_of(plan)
    answers = (plan_answer(plan), explain_answer(plan))
    body = [
        f"<h1>{escape(title)}</h1>", f"<p><code>{escape(command)}</code></p>", *_pictures(plan, without),
        *(text for answer in answers for text in _answer(answer)),
    ]  # fmt: skip
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><main>{''.join(body)}</main></body></html>"
    )


def _pictures(plan: Plan, without: Plan | None) -> list[str]:
    """Pictures with their sentences; plotly comes along once, nothing is fetched."""
    estimate = plan.estimate
    drawn: list[tuple[str, Callable[[], object]]] = [("Where does the step go?", lambda: waterfall(estimate))]
    if not plan.kind_of_stage:
        layers = layer_words(plan.layers_of_stage, plan.layout)
        capacity = capacity_of_fullest(plan)
        drawn.insert(
            0,
            ("Does it fit?", lambda: estimate_bars(estimate, capacity, layers)),
        )
    if without is not None and plan.request.anchor is not None:
        runs = plan.request.anchor.runs
        drawn.append(("How sure is it?", lambda: narrowed_band(without.estimate, estimate, runs)))
    pictures = []
    for number, (question, draw) in enumerate(drawn):
        picture: object = draw()
        picture.update_layout(width=WIDTH_PX, template="plotly_white")  # type: ignore[attr-defined]  # untyped
        html = picture.to_html(  # type: ignore[attr-defined]
            full_html=False,
            include_plotlyjs=number == 0,
            config={"staticPlot": True},
            div_id=f"picture{number}",
        )
        alt = escape(alt_text(picture))
        pictures.append(
            f'<h2>{question}</h2><figure><div role="img" aria-label="{alt}">{html}</div>'
            f"<figcaption>{alt}</figcaption></figure>"
        )
    return pictures


def _answer(answer: Answer) -> list[str]:
    """An answer as HTML."""
    head = [f"<h2>{escape(answer.headline)}</h2>"] if answer.headline else []
    return [*head, *(_section(section) for section in answer.sections)]


def _section(section: Section) -> str:
    """One section; whatever comes from files is text."""
    title = f"<h2>{escape(section.title)}</h2>" if section.title else ""
    if isinstance(section, Facts):
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
            for name, value in section.pairs
        )
        return f"{title}<table>{rows}</table>"
    if isinstance(section, Table):
        align = section.align or "l" + "r" * (len(section.columns) - 1)
        heads = "".join(
            f'<th scope="col"{_right(at)}>{escape(head)}</th>'
            for head, at in zip(section.columns, align, strict=False)
        )
        rows = "".join(f"<tr>{_cells(row, align)}</tr>" for row in section.rows)
        note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
        return f"{title}<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{note}"
    return f"{title}{html_list(section)}"


def _cells(row: Sequence[str], align: str) -> str:
    """Cells of a row, numbers to the right."""
    return "".join(f"<td{_right(at)}>{escape(cell)}</td>" for cell, at in zip(row, align, strict=False))


def _right(align: str) -> str:
    return ' class="r"' if align == "r" else ""
