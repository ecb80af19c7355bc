"""A plan has one chance of OOM and one word for it, and every surface shows both beside the peak."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from app.analysis.plan_diff import diff_answer
from app.analysis.sweep import sweep_answer
from app.figures.memory import estimate_bars
from app.figures.style import alt_text
from app.pages.answer.headline import FIT_COLOURS, numbers
from app.reports.notebook import markdown
from app.reports.plan import alternatives_table, estimate_answer, plan_answer
from costmodel.memory.fit import FITS_BELOW, fit_of, fit_text
from planner.analysis.sweep import Point
from planner.plan import Plan, from_json, to_json
from planner.pricing import capacity_of_fullest
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from topology.base.units import format_chance

QUESTIONS = {
    "dense": {"model": "8b", "gpus": "8"},
    "not measured in fp8": {"model": "8b", "gpus": "16", "precision": "fp8"},
    "a wide band": {"model": "8b", "gpus": "8", "stack": "torchtitan"},
    "filled": {"model": "8b", "gpus": "8", "stack": "torchtitan", "memory_headroom": "0"},
    "experts": {"model": "mixtral-8x7b", "gpus": "32"},
}


@pytest.fixture(scope="module", params=QUESTIONS.values(), ids=QUESTIONS.keys())
def plan(request: pytest.FixtureRequest) -> Plan:
    """The plan of a question, with others beside it."""
    found = search(understand(Flags(top="3", **request.param)).request)
    assert isinstance(found, Plan)
    return found


def test_a_default_plan_fits_on_every_surface(plan: Plan) -> None:
    """Text, Markdown, JSON, CSV, tile and picture have the same chance; the word is that of the chance."""
    chance, words = plan.estimate.out_of_memory_chance, fit_text(plan.estimate.out_of_memory_chance)
    if plan.request.memory_headroom is None:
        assert chance < FITS_BELOW
        assert words.startswith("fits, ")
    facts = dict(plan_answer(plan).sections[0].pairs)
    assert facts["peak memory"].endswith(words)
    assert words in markdown(plan)
    assert json.loads(to_json(plan))["estimate"]["out_of_memory_chance"] == chance
    assert plan.rows()[0]["out_of_memory_chance"] == chance
    (tile,) = [number for number in numbers(plan) if number.label == "Peak memory"]
    assert (tile.verdict, tile.colour) == (words, FIT_COLOURS[fit_of(chance)])
    assert words in alt_text(estimate_bars(plan.estimate, capacity_of_fullest(plan)))
    (row,) = sweep_answer([Point(request=plan.request, plan=plan)]).sections[0].rows
    assert format_chance(chance) in row


def test_plans_beside_it_have_theirs(plan: Plan) -> None:
    """In the table, the rows and the document, which reads back; a plan of before has none."""
    shown = [row[-1] for row in alternatives_table(plan).rows]
    assert shown == [format_chance(other.out_of_memory_chance) for other in plan.alternatives]
    assert [row["out_of_memory_chance"] for row in plan.rows()[1:]] == [
        other.out_of_memory_chance for other in plan.alternatives
    ]
    if plan.request.memory_headroom is None:
        assert all(other.fit_text.startswith("fits, ") for other in plan.alternatives)
    assert from_json(to_json(plan)) == plan
    document = json.loads(to_json(plan))
    for other in document["alternatives"]:
        del other["out_of_memory_chance"], other["fit"]
    assert {other.fit_text for other in from_json(json.dumps(document)).alternatives} <= {"–"}


@pytest.mark.parametrize(
    ("chance", "code"), [(0.01, 0), (0.42, 0), (0.8, 0), (0.95, 1)], ids=["fits", "tight", "full", "not"]
)
def test_an_estimate_leaves_with_1_where_it_does_not_fit(plan: Plan, chance: float, code: int) -> None:
    """What is tight is said, with what would ease it."""
    grown = plan.estimate.peak_memory_bytes * (10 if chance > FITS_BELOW else 1)
    stages = tuple(
        replace(stage, buffers_bytes=stage.buffers_bytes + grown - plan.estimate.peak_memory_bytes)
        for stage in plan.estimate.memory_by_stage
    )
    estimate = replace(
        plan.estimate, out_of_memory_chance=chance, peak_memory_bytes=grown, memory_by_stage=stages
    )
    answer = estimate_answer(replace(plan, estimate=estimate))
    assert answer.exit_code == code
    said = [section for section in answer.sections if section.title.lower() == fit_text(chance).lower()]
    assert len(said) == (chance >= FITS_BELOW)


def test_a_difference_of_plans_has_both_chances(plan: Plan) -> None:
    """As a quantity of its own."""
    other = replace(plan, estimate=replace(plan.estimate, out_of_memory_chance=0.42))
    (row,) = [row for row in diff_answer(plan, other).sections[-1].rows if row[0] == "chance of OOM"]
    chance = plan.estimate.out_of_memory_chance
    assert row[1:] == (format_chance(chance), "42 %", f"{100 * (0.42 - chance):+.1f} points")
