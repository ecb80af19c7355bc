"""What free memory costs is the difference to the plan that leaves none."""

from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.measurement import Measurement, measurements_json
from costmodel.kernels.saved import calibration_for, measurement_folder
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.analysis.explain import explain
from planner.analysis.headroom import headroom_price
from planner.plan import Plan, PlanRequest
from planner.search.search import search
from topology.builders import default_cluster

CAL = load_calibration()


def planned(name: str, gpus: int, **fields: object) -> Plan:
    job = TrainingJob(sequence_length=8192, global_batch_size=16 * gpus)
    cluster = default_cluster("h100-sxm", gpus).spec
    plan = search(PlanRequest(model=model(name), cluster=cluster, job=job, top=1, **fields), CAL)
    assert isinstance(plan, Plan)
    return plan


@pytest.mark.parametrize(("name", "gpus"), [("llama-3.1-70b", 32), ("llama-3.1-8b", 8)])
def test_it_is_the_difference_to_the_plan_that_leaves_nothing_free(name: str, gpus: int) -> None:
    plan = planned(name, gpus)
    full = planned(name, gpus, memory_headroom=0.0)
    price = headroom_price(plan, CAL)
    assert price is not None
    assert price.step_time_s == pytest.approx(full.estimate.step_time_s, rel=1e-9)
    assert price.costs_s == pytest.approx(plan.estimate.step_time_s - full.estimate.step_time_s, abs=1e-9)
    assert price.out_of_memory_chance == pytest.approx(full.estimate.out_of_memory_chance, rel=1e-6)
    assert price.free_bytes == pytest.approx(
        plan.problem.cluster.gpu.memory_bytes * plan.problem.memory_headroom
    )


def test_nothing_is_said_where_nothing_is_left_free_or_nothing_was_searched() -> None:
    assert headroom_price(planned("llama-3.1-8b", 8, memory_headroom=0.0), CAL) is None
    plan = planned("llama-3.1-8b", 8)
    given = replace(plan, optimality=replace(plan.optimality, enumerated=1))
    assert headroom_price(given, CAL) is None


def test_a_plan_is_explained_by_the_measurements_it_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the shipped tables, which would price the plan without headroom by other kernels."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    slow = Measurement(
        what="gemm", cluster="any", gpu="h100-sxm", dtype="bf16",
        inputs={"m": 4096, "n": 4096, "k": 4096},
        value=1.0, unit="s", repeats=20, p10=1.0, p50=1.0, p90=1.0, software={}, when="2026-11-21",
    )  # fmt: skip
    measurement_folder().mkdir(parents=True)
    (measurement_folder() / "slow.json").write_text(measurements_json([slow]), encoding="utf-8")
    job = TrainingJob(sequence_length=8192, global_batch_size=128)
    cluster = default_cluster("h100-sxm", 8).spec
    plan = search(
        PlanRequest(model=model("llama-3.1-8b"), cluster=cluster, job=job, top=1), calibration_for(cluster)
    )
    assert isinstance(plan, Plan)
    price = explain(plan).headroom
    assert price == headroom_price(plan, calibration_for(cluster))
    shipped = headroom_price(plan, CAL)
    assert price is not None
    assert shipped is not None
    assert price.step_time_s > 10 * shipped.step_time_s
