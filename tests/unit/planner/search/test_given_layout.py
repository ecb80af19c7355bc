"""A given layout is written as fully as one that was searched for."""

from dataclasses import replace

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.measurement import Measurement
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.analysis.schedule import stage_seconds
from planner.placement.cost import placement_words
from planner.placement.nodes import place_on_nodes
from planner.plan import Plan, PlanRequest
from planner.search.given_layout import plan_of_layout
from planner.search.search import search
from topology.builders import default_cluster
from topology.spec import ClusterSpec, SwitchSpec

PINS = {
    "tp": 4,
    "pp": 2,
    "dp": 1,
    "cp": 1,
    "ep": 1,
    "microbatch_size": 1,
    "zero_stage": 0,
    "schedule": "1f1b",
    "recompute": "none",
    "sequence_parallel": True,
}
REQUEST = PlanRequest(
    model=model("llama-3.1-8b"),
    cluster=default_cluster("h100-sxm", 8).spec,
    job=TrainingJob(sequence_length=4096, global_batch_size=32),
    pins=PINS,
)


def test_an_estimate_says_all_that_the_plan_of_the_same_layout_says() -> None:
    """Same layout, two verbs: step, simulation, ranks, provenance and the estimate's assumptions are equal."""
    cal = load_calibration()
    searched = search(REQUEST, cal)
    assert isinstance(searched, Plan)
    given = plan_of_layout(replace(REQUEST, pins={**PINS, "layers_of_stage": searched.layers_of_stage}), cal)
    assert isinstance(given, Plan)
    assert given.layout == searched.layout
    assert given.simulated_s is not None
    assert (given.simulated_s, given.provenance, given.mesh) == (
        searched.simulated_s,
        searched.provenance,
        searched.mesh,
    )
    assert given.estimate == searched.estimate
    assert set(searched.assumptions) <= set(given.assumptions)


def test_a_given_layout_on_an_irregular_fabric_says_where_its_ranks_run() -> None:
    """One node behind a leaf and two behind another: ranks and words are those of the search's placement."""
    node = replace(default_cluster("h100-sxm", 8).spec.nodes[0], count=1)
    leaves = [SwitchSpec(name=name, parent="spine", uplink_bandwidth_bytes_per_s=4e11) for name in ("a", "b")]
    cluster = ClusterSpec(
        name="torn",
        nodes=(replace(node, name="one", switch="a"), replace(node, name="two", switch="b", count=2)),
        switches=(SwitchSpec(name="spine"), *leaves),
    )
    pins = {**PINS, "tp": 8}
    given = plan_of_layout(replace(REQUEST, cluster=cluster, pins=pins), load_calibration())
    assert isinstance(given, Plan)
    problem = given.problem
    assert given.mesh == place_on_nodes(problem, given.layout, given.estimate)
    notes = placement_words(problem, given.layout, given.mesh, given.estimate)
    assert notes[0].startswith("ranks are not on GPUs in order")
    assert set(notes) <= set(given.assumptions)


@pytest.mark.parametrize("gpus", [3, 5, 6, 7])
def test_any_part_of_one_node_is_planned_for(gpus: int) -> None:
    """Three GPUs of eight: the layout that is best of them, and no more GPUs than there are."""
    request = replace(REQUEST, cluster=default_cluster("h100-sxm", gpus).spec, pins={})
    found = search(request, load_calibration())
    assert isinstance(found, Plan)
    assert found.layout.num_gpus + found.idle_gpus == gpus


def test_a_schedule_is_timed_by_the_calibration_it_is_given() -> None:
    """Where products were measured to be slower, every stage of the picture takes longer."""
    shipped = load_calibration()
    slow = Measurement(
        what="gemm",
        cluster="any",
        gpu="h100-sxm",
        dtype="bf16",
        inputs={"m": 4096, "n": 4096, "k": 4096},
        value=1.0,
        unit="s",
        repeats=20,
        p10=1.0,
        p50=1.0,
        p90=1.0,
        software={},
        when="2026-11-21",
    )
    given = plan_of_layout(REQUEST, shipped)
    assert isinstance(given, Plan)
    fast_s, slow_s = (stage_seconds(given, cal).forward_s for cal in (shipped, load_calibration([slow])))
    assert all(after > before for before, after in zip(fast_s, slow_s, strict=True))
