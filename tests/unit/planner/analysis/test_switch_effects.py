"""What a switch would change is what an estimate of the same layout with that switch says."""

from dataclasses import replace
from typing import Any

import pytest

from app.reports.answer import Lines
from app.reports.explain import explain_answer, explanation_answer
from app.reports.plan_brief import brief_facts
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.switches.profile import with_switches
from costmodel.switches.switch import switches
from planner.analysis.explain import explain
from planner.analysis.switch_effects import WORTH_NAMING, SwitchEffect, best_switch, switch_effects
from planner.engines.fields import is_numeric
from planner.plan import Plan, PlanRequest, problem_of
from planner.pricing import estimate_split, split_of
from planner.rules.check import check
from planner.search.search import search
from topology.builders import default_cluster


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Thirty billion parameters of experts on sixteen GPUs."""
    request = PlanRequest(
        model=model("qwen3-30b-a3b"),
        cluster=default_cluster("h100-sxm", 16).spec,
        job=TrainingJob(sequence_length=4096, global_batch_size=256),
        pins={"tp": 1, "pp": 1, "ep": 8, "microbatch_size": 1, "recompute": "full"},
    )
    result = search(request)
    assert isinstance(result, Plan)
    return result


@pytest.fixture(scope="module")
def effects(plan: Plan) -> tuple[SwitchEffect, ...]:
    """Of all its switches."""
    return switch_effects(plan, load_calibration())


def test_each_is_the_estimate_of_the_same_layout(plan: Plan, effects: tuple[SwitchEffect, ...]) -> None:
    """Set by the request instead: the same step and peak, to the last digit."""
    split = split_of(plan.request.model, plan.layout, plan.layers_of_stage, plan.recompute_of_stage)
    for effect in effects:
        asked = replace(plan.request, switches={effect.name: effect.after})
        estimate = estimate_split(problem_of(asked, load_calibration()), plan, plan.layout, split)[0]
        assert (estimate.step_time_s, estimate.peak_memory_bytes) == (
            effect.step_time_s,
            effect.peak_memory_bytes,
        )


def test_the_fastest_comes_first_and_numerics_are_kept(effects: tuple[SwitchEffect, ...]) -> None:
    """Types of what is kept are no advice; a switch of an axis that the layout has not is none either."""
    assert [e.faster_by for e in effects] == sorted((e.faster_by for e in effects), reverse=True)
    names = {effect.name for effect in effects}
    assert {"dispatcher", "attention_kernel"} <= names
    assert not names & {"gradient_dtype", "moment_dtype", "weight_dtype", "master_dtype", "tp_overlap"}
    for effect in effects:
        sets = switches()[effect.name].value_of(effect.after).sets
        assert not any(is_numeric(f"stack.{field}") for field in sets)


def test_none_breaks_a_rule_of_the_engine_with_this_layout(
    plan: Plan, effects: tuple[SwitchEffect, ...]
) -> None:
    """Megatron-LM has no HybridEP beside dropless experts; without limits of an engine it is a choice."""
    planned = search(replace(plan.request, engine="megatron", top=1))
    assert isinstance(planned, Plan)
    of_megatron = switch_effects(planned, load_calibration())
    assert ("dispatcher", "hybridep") in {(effect.name, effect.after) for effect in effects}
    assert ("dispatcher", "hybridep") not in {(effect.name, effect.after) for effect in of_megatron}
    for effect in of_megatron:
        stack = with_switches(planned.problem.stack, {effect.name: effect.after})
        assert not check(planned.problem.of(stack=stack), planned.layout)


@pytest.mark.parametrize(
    ("name", "gpus", "fields"),
    [
        ("qwen3-30b-a3b", 16, {}),
        ("mixtral-8x7b", 16, {}),
        ("llama-3.1-8b", 8, {}),
        ("llama-3.1-8b", 8, {"stack": "pytorch"}),
        ("llama-3.1-8b", 8, {"stack": "torchtitan", "engine": "torchtitan"}),
        ("llama-3.2-1b", 8, {"switches": {"tp_overlap": "off", "gradient_overlap": "off"}}),
    ],
)
def test_the_switch_worth_most_is_the_best_of_all(name: str, gpus: int, fields: dict[str, Any]) -> None:
    """Only some are tried for it; none of the others would be faster and fit."""
    request = PlanRequest(
        model=model(name),
        cluster=default_cluster("h100-sxm", gpus).spec,
        job=TrainingJob(sequence_length=4096, global_batch_size=128),
        top=1,
        **fields,
    )
    plan = search(request)
    assert isinstance(plan, Plan)
    room = max(plan.problem.memory_budget_bytes, plan.estimate.peak_memory_bytes)
    fitting = [e for e in switch_effects(plan, load_calibration()) if e.peak_memory_bytes <= room]
    best = best_switch(plan, load_calibration())
    if best is None:
        assert all(effect.faster_by < WORTH_NAMING for effect in fitting)
    else:
        assert best.faster_by == max(effect.faster_by for effect in fitting)
        assert best.flag in " ".join(text for _, text in brief_facts(plan, best).pairs)


@pytest.mark.parametrize(
    ("name", "gpus", "pins"), [("qwen3-30b-a3b", 64, {}), ("mixtral-8x7b", 32, {"ep": 8})]
)
def test_a_search_with_the_switch_is_as_fast_as_the_layout_that_it_names(
    name: str, gpus: int, pins: dict[str, Any]
) -> None:
    """An engine that recomputes no layer beside the overlap of exchanges still runs layouts that recompute none."""
    request = PlanRequest(
        model=model(name),
        cluster=default_cluster("h100-sxm", gpus).spec,
        job=TrainingJob(sequence_length=8192, global_batch_size=512),
        engine="megatron",
        pins=pins,
        top=1,
    )
    plan = search(request)
    assert isinstance(plan, Plan)
    effects = switch_effects(plan, load_calibration())
    (overlap,) = (each for each in effects if each.name == "exchange_overlap")
    best = search(replace(request, switches={"exchange_overlap": "on"}))
    assert isinstance(best, Plan)
    if overlap.peak_memory_bytes <= plan.problem.memory_budget_bytes:
        assert best.estimate.step_time_s <= overlap.step_time_s * (1 + 1e-9)
    none = search(replace(request, switches={"exchange_overlap": "on"}, pins={**pins, "recompute": "none"}))
    assert isinstance(none, Plan)
    assert best.estimate.step_time_s <= none.estimate.step_time_s * (1 + 1e-9)


def test_the_answer_names_the_switch_that_would_help_most(
    plan: Plan, effects: tuple[SwitchEffect, ...]
) -> None:
    """With the flag that sets it."""
    (table,) = (s for s in explain_answer(plan).sections if s.title == "Which switch would help most")
    assert table.rows[0][-1] == effects[0].flag


def test_an_answer_without_a_better_switch_says_so(plan: Plan, effects: tuple[SwitchEffect, ...]) -> None:
    """No table stands without a row."""
    worse = tuple(replace(effect, faster_by=-0.1) for effect in effects)
    explanation = replace(explain(plan), switches=worse)
    (lines,) = (
        s for s in explanation_answer(plan, explanation).sections if s.title == "Which switch would help most"
    )
    assert lines == Lines(
        title="Which switch would help most",
        lines=(f"none: of {len(worse)} tried, none is faster or leaner",),
    )
