"""`plan bench` measures what is here and the cost model then reproduces it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costmodel.kernels.collectives import collective_time
from costmodel.kernels.compute import attention_prefill, elementwise_time, gemm_time
from costmodel.kernels.measurement import Measurement, measurements_json, read_measurements
from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.layout import ParallelLayout
from planner.plan import Plan
from tests.cli.documents import held_to_schema
from topology.builders import build
from topology.cluster import Cluster
from topology.cluster_file import read_cluster, to_toml
from topology.spec import ClusterSpec

pytest.importorskip("torch")

from executor.bench.host_profile import cpu_cluster
from executor.bench.kernels import Benchmark, BenchSizes, Timing, bench_cpu, measurements, summarize

SMALL = BenchSizes(
    gemm=((32, 32, 32), (64, 64, 64)),
    attention=((1, 2, 32, 16),),
    copy_bytes=(4096, 65536),
    message_bytes=(4096, 65536),
)


@pytest.fixture(scope="module")
def entries() -> list[Benchmark]:
    """One small benchmark of two ranks."""
    return bench_cpu(SMALL, 2)


@pytest.fixture(scope="module")
def cluster(entries: list[Benchmark]) -> ClusterSpec:
    """This computer as measured."""
    return cpu_cluster(entries, 2, "2026-01-01")


def test_every_kernel_and_collective_is_measured(entries: list[Benchmark]) -> None:
    """Each kind as often as it has sizes, with a positive time and ordered percentiles."""
    kinds = [entry.what for entry in entries]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "gemm": 2, "attention_prefill": 1, "elementwise": 2,
        "all_reduce": 2, "all_gather": 2, "reduce_scatter": 2, "all_to_all": 2, "p2p": 2,
    }  # fmt: skip
    assert all(0 < e.timing.p10_s <= e.timing.p50_s <= e.timing.p90_s for e in entries)


def test_percentiles_of_known_repetitions() -> None:
    """Tenth, fiftieth and ninetieth percentile of 0…10."""
    timing = summarize([float(value) for value in range(11)])
    assert timing == Timing(p10_s=1.0, p50_s=5.0, p90_s=9.0, repeats=11)


def test_measurements_survive_their_file(
    entries: list[Benchmark], cluster: ClusterSpec, tmp_path: Path
) -> None:
    """What is written is what is read."""
    found = measurements(entries, cluster=build(cluster).fingerprint(), gpu="cpu-2")
    path = tmp_path / "cpu.json"
    path.write_text(measurements_json(found), encoding="utf-8")
    assert [(m.what, m.value) for m in read_measurements(path)] == [(m.what, m.value) for m in found]


def test_the_cluster_file_keeps_the_fingerprint(cluster: ClusterSpec, tmp_path: Path) -> None:
    """Measurements are found again for the cluster that was saved beside them."""
    path = tmp_path / "cpu.toml"
    path.write_text(to_toml(cluster), encoding="utf-8")
    assert build(read_cluster(path)).fingerprint() == build(cluster).fingerprint()


def modelled_s(cal: Calibration, cluster: Cluster, measured: Measurement) -> float:
    """Seconds that the cost model gives for what was measured."""
    inputs: dict[str, Any] = dict(measured.inputs)
    if measured.what == "gemm":
        return float(gemm_time(cal, cluster.gpu, "bf16", **inputs).seconds)
    if measured.what == "elementwise":
        return float(elementwise_time(cal, cluster.gpu, inputs["bytes"]).seconds)
    if measured.what == "attention_prefill":
        return float(attention_prefill(cal, cluster.gpu, **inputs).seconds)
    group = int(inputs["size"]), int(inputs["stride"])
    return float(collective_time(cal, cluster.hierarchy, measured.what, inputs["bytes"], *group))


def test_the_cost_model_reproduces_measurements(entries: list[Benchmark], cluster: ClusterSpec) -> None:
    """At a measured point the calibrated time is the measured time."""
    built = build(cluster)
    for measured in measurements(entries, cluster=built.fingerprint(), gpu=built.gpu.name):
        plausible = dataclasses.replace(measured, value=1.5 * modelled_s(load_calibration(), built, measured))
        mine = load_calibration([plausible], cluster=built.fingerprint())
        assert modelled_s(mine, built, measured) == pytest.approx(plausible.value, rel=1e-3)


@pytest.mark.slow
def test_command_saves_and_later_estimates_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bench, then estimate for the cluster it described: provenance names the measurements."""
    from app.cli import run

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert run(["bench", "--device", "cpu", "--ranks", "2", "--json"]) == 0
    assert len(held_to_schema("bench", capsys.readouterr().out)) > 20
    (cluster,) = tmp_path.rglob("*.toml")
    model = tmp_path / "config.json"
    model.write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "vocab_size": 256,
                "max_position_embeddings": 128,
                "hidden_act": "silu",
                "tie_word_embeddings": False,
                "rms_norm_eps": 1e-5,
            }
        ),
        encoding="utf-8",
    )
    words = ["estimate", "--model", str(model), "--cluster", str(cluster), "-s", "64", "-b", "8", "--json"]
    assert run([*words, "--stack", "meshplan", "--set", "layout.dp=2"]) == 0
    estimate = json.loads(capsys.readouterr().out)["estimate"]
    assert any("measurements of your own" in line for line in estimate["provenance"])
    assert 0 < estimate["step_time_s"] < 60


def test_check_compares_the_shapes_of_a_plan(plan_of: Callable[..., Plan]) -> None:
    """Matrix products and messages of the plan's layers, each with a prediction."""
    from app.actions.bench import check_plan

    found = check_plan(plan_of(ParallelLayout(tp=2, sequence_parallel=True)), device="cpu", ranks=2)
    kinds = {comparison.measurement.what for comparison in found}
    assert kinds == {"gemm", "all_gather", "reduce_scatter"}
    assert all(math.isfinite(c.predicted_s) and c.predicted_s > 0 for c in found)
