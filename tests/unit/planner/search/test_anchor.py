"""A plan at the level of the user's own runs: the same layout, every time of it by that factor."""

from dataclasses import replace

import pytest

from costmodel.estimate import Estimate
from costmodel.job import TrainingJob
from costmodel.kernels.level import StackLevel
from costmodel.models.catalog import model
from planner.plan import Plan, PlanRequest, from_json, to_json
from planner.search.search import search
from topology.builders import default_cluster

LEVELS = {"faster": 0.8, "slower": 1.25}


def planned(level: float | None) -> Plan:
    """The 8B model on 16 GPUs, by someone whose steps take `level` times the prediction."""
    anchored = StackLevel(stack="megatron-core", level=level or 1.0, deviation=0.02, runs=3, name="mine")
    found = search(
        PlanRequest(
            model=model("llama-3.1-8b"),
            cluster=default_cluster("h100-sxm", 16).spec,
            job=TrainingJob(sequence_length=8192, global_batch_size=128),
            anchor=anchored if level else None,
        )
    )
    assert isinstance(found, Plan)
    return found


@pytest.fixture(scope="module")
def plain() -> Plan:
    """The plan of someone who has measured nothing."""
    return planned(None)


@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
def test_every_time_scales_and_the_choice_stays(plain: Plan, level: float) -> None:
    """Step, parts, bound, simulation and alternatives are `level` times as long; the layout is the same."""
    anchored = planned(level)
    assert anchored.layout == plain.layout
    assert anchored.estimate.step_time_s == pytest.approx(level * plain.estimate.step_time_s)
    assert anchored.estimate.time.total_s == pytest.approx(anchored.estimate.step_time_s)
    for part in (name for name in plain.estimate.time.__slots__ if name != "hidden_s"):
        assert getattr(anchored.estimate.time, part) == pytest.approx(
            level * getattr(plain.estimate.time, part)
        )
    assert anchored.optimality.status == "proven"
    assert anchored.optimality.bound_s == pytest.approx(level * plain.optimality.bound_s)
    assert anchored.simulated_s == pytest.approx(level * (plain.simulated_s or 0.0))
    assert [a.step_time_s for a in anchored.alternatives] == pytest.approx(
        [level * a.step_time_s for a in plain.alternatives]
    )


def test_the_band_is_narrower_and_the_estimate_says_why(plain: Plan) -> None:
    """What is known of the level no longer widens the band; provenance names the runs."""

    def width(estimate: Estimate) -> float:
        return estimate.upper_s / estimate.lower_s

    anchored = planned(1.25)
    assert width(anchored.estimate) < width(plain.estimate)
    assert "times ×1.250, the level of 3 measured steps of your own (mine)" in anchored.estimate.provenance


def test_an_anchored_plan_reads_back(plain: Plan) -> None:
    """The level travels with the plan, and one without it still reads."""
    anchored = replace(plain, request=replace(plain.request, anchor=StackLevel(
        stack="megatron-core", level=1.1, deviation=0.02, runs=3, name="mine",
    )))  # fmt: skip
    assert from_json(to_json(anchored)) == anchored
    assert from_json(to_json(plain)) == plain
