"""A training run leaves a measured step that predictions are compared with and anchored to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from app.store.steps import keep_measured_step
from costmodel.accuracy.kept_anchors import kept_anchor
from costmodel.kernels.measurement import read_measurements
from costmodel.layout import ParallelLayout
from executor.bench.host_profile import cpu_cluster
from executor.bench.kernels import Benchmark, Timing
from executor.bench.local_ranks import run_ranks
from executor.bench.measured_run import steady_steps
from executor.launch.supervise import with_plan, write_run
from executor.parallel.planned_device import is_device
from executor.training import loop
from executor.training.settings import METRICS_FILE, RunSettings, RunStatus
from executor.training.trainer import prepare
from planner.plan import Plan
from topology.base.units import GIB
from topology.spec import ClusterSpec

STEPS = 10


def two_cpu_ranks() -> ClusterSpec:
    """A CPU slow enough that a small model's matrices take most of its step."""

    def entry(what: str, inputs: dict[str, float], seconds: float) -> Benchmark:
        timing = Timing(p10_s=seconds, p50_s=seconds, p90_s=seconds, repeats=5)
        return Benchmark(what=what, dtype="bf16", inputs=inputs, timing=timing)

    sizes = {"m": 256.0, "n": 256.0, "k": 256.0}
    message = {"bytes": 2.0**20, "size": 2.0, "stride": 1.0}
    return cpu_cluster(
        [
            entry("gemm", sizes, 0.01),
            entry("elementwise", {"bytes": 2.0**24}, 0.01),
            entry("all_reduce", message, 0.01),
        ],
        2,
        "2026-11-21",
    )


def test_median_is_of_steady_steps_since_the_last_start(tmp_path: Path) -> None:
    """Steps of an earlier start and those that warm up do not count."""
    seconds = [9.0] * 6 + [5.0, 4.0, 3.0] + [1.0, 1.1, 1.2, 1.3, 1.4]
    steps = [*range(1, 7), *range(4, 12)]
    rows = [
        {"step": step, "step_time_s": s, "peak_memory_bytes": 7.0}
        for step, s in zip(steps, seconds, strict=True)
    ]
    (tmp_path / METRICS_FILE).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    times = steady_steps(tmp_path)
    assert times is not None
    assert (times.p10_s, times.p50_s, times.p90_s, times.steps) == (1.0, 1.2, 1.4, 5)


def test_a_torn_line_costs_that_step_alone(tmp_path: Path) -> None:
    """Wherever a disk that was full has cut the file; lines of something else are left out, too."""
    rows = [{"step": step, "step_time_s": 1.0, "peak_memory_bytes": 7.0} for step in range(1, 13)]
    lines = [json.dumps(row) for row in rows]
    lines[8] = lines[8][:20]
    lines.insert(3, '{"step": 1e999}')
    (tmp_path / METRICS_FILE).write_text("\n".join(lines) + "\n" + lines[0][:9])
    times = steady_steps(tmp_path)
    assert times is not None
    assert times.steps == 12 - 1 - 3
    (tmp_path / METRICS_FILE).unlink()
    assert steady_steps(tmp_path) is None


def test_a_plan_for_another_device_is_not_anchored(plan_of: Callable[..., Plan]) -> None:
    """CPU ranks say nothing of an H100; its own name is recognised."""
    plan = plan_of(ParallelLayout(dp=2))
    names = ("cpu", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA A100-SXM4-80GB")
    assert [is_device(plan, name, 79.1 * GIB) for name in names] == [False, True, False, False]


@pytest.mark.slow
def test_measured_step_of_a_gloo_run_anchors_predictions(
    plan_of: Callable[..., Plan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Train on two ranks, keep the step, and correct the stack's level by it under a name."""
    from app.cli import run

    monkeypatch.setenv("MESHPLAN_DATA", str(tmp_path / "data"))
    plan = plan_of(ParallelLayout(dp=2, zero_stage=1))
    plan = replace(plan, request=replace(plan.request, cluster=two_cpu_ranks()))
    settings = with_plan(
        RunSettings(folder="", plan_file="", steps=STEPS, device="cpu", checkpoint_every=100),
        tmp_path / "run",
    )
    write_run(settings, plan)
    status: RunStatus = run_ranks(_train, 2, settings, plan)[0]
    told = keep_measured_step(tmp_path / "run", plan, status.device)
    row = tmp_path / "run" / "measured.csv"
    (measurement,) = read_measurements(tmp_path / "run" / "measured.json")
    assert str(row) in told[-1]
    assert (measurement.what, measurement.repeats) == ("training_step", STEPS - 3)

    assert run(["accuracy", str(row), "--trust-paths", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["rows"]
    assert found["status"] == "ok", found
    assert found["measured_step_time_s"] == pytest.approx(measurement.value, rel=1e-4)

    slower = f"{1.5 * found['predicted_step_time_s']:.6g}"  # how fast this computer is shall not matter
    row.write_text(row.read_text().replace(f"{measurement.value:.6g}", slower))
    assert run(["accuracy", str(row), "--trust-paths", "--anchor", str(row), "--name", "gloo", "--json"]) == 0
    capsys.readouterr()
    level = kept_anchor("gloo").level_of("meshplan")
    assert level is not None
    assert 1.0 < level.level < 1.5


def _train(_rank: int, settings: RunSettings, plan: Plan) -> RunStatus:
    return loop.train(prepare(settings, plan, torch.device("cpu")))
