"""Predicted peak memory against published measurements, and against layouts that did not fit."""

import dataclasses
from typing import Any

import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.memory.stage import MemoryBreakdown, memory_by_stage
from costmodel.memory.state import bytes_per_parameter, state_bytes
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec
from costmodel.stack import stack
from topology.base.units import GIB


def peak_gib(stages: tuple[MemoryBreakdown, ...]) -> float:
    """Allocated memory of the fullest stage."""
    return max(stage.allocated_bytes for stage in stages) / GIB


def truncated(name: str, layers: int, **changes: int) -> ModelSpec:
    """A published model cut to a few layers, as benchmarks on one node run it."""
    return dataclasses.replace(model(name), num_layers=layers, **changes)


@pytest.mark.parametrize(
    ("spec", "layout", "layers", "measured_gib"),
    [
        (truncated("llama-3.1-70b", 12), {"pp": 2, "dp": 4}, [[6], [6]], 66.55),
        (truncated("llama-3.1-70b", 12), {"tp": 2, "dp": 4}, [[12]], 60.68),
        (truncated("llama-3.1-70b", 12), {"tp": 8}, [[12]], 28.29),
        (truncated("llama-3.1-405b", 4, num_key_value_heads=16), {"pp": 2, "dp": 4}, [[2], [2]], 87.08),
        (truncated("llama-3.1-405b", 4, num_key_value_heads=16), {"tp": 4, "dp": 2}, [[4]], 52.89),
        (truncated("deepseek-v2", 4), {"dp": 8, "ep": 8}, [[1, 3]], 45.63),
        (truncated("deepseek-v3", 4, num_dense_layers=1), {"dp": 8, "ep": 8}, [[1, 3]], 104.30),
        (truncated("deepseek-v3", 4, num_dense_layers=1), {"pp": 2, "dp": 4, "ep": 4}, [[1, 1], [0, 2]], 114.00),
    ],
)  # fmt: skip
def test_simumax_runs_on_b200_are_met_within_two_percent(
    spec: ModelSpec, layout: dict[str, int], layers: list[list[int]], measured_gib: float
) -> None:
    """Max allocated memory of Megatron-Core on 8 B200, sequence 4096 (SimuMax v1.2 benchmark results, Apache-2.0)."""
    chosen = ParallelLayout(zero_stage=1, sequence_parallel=layout.get("tp", 1) > 1, **layout)
    job = TrainingJob(sequence_length=4096, global_batch_size=16)
    none = [[0] * len(counts) for counts in layers]
    stages = memory_by_stage(
        Workload(model=spec, job=job, stack=stack("megatron-core-noov")), chosen, layers, none
    )
    assert peak_gib(stages) == pytest.approx(measured_gib, rel=0.02)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "pp", "microbatch", "virtual", "measured_gib"),
    [
        (30, 4096, 32, 8, 3, 1, 39),
        (30, 4096, 32, 8, 3, 4, 48),
        (46, 5120, 40, 16, 1, 3, 39),
        (62, 6144, 48, 32, 1, 1, 43),
        (62, 6144, 48, 32, 1, 2, 58),
    ],
)
def test_zero_bubble_paper_baselines_are_met_within_three_percent(
    layers: int, hidden: int, heads: int, pp: int, microbatch: int, virtual: int, measured_gib: float
) -> None:
    """1F1B and interleaved 1F1B of Qi et al. 2023, table 4; first and last stage hold a layer less."""
    sizes = {
        "num_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": heads,
    }
    spec = dataclasses.replace(
        model("megatron-22b"),
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        learned_positions=1024,
        **sizes,
    )
    per_stage = (layers + 2) // pp
    split = [[per_stage - (stage in (0, pp - 1))] for stage in range(pp)]
    layout = ParallelLayout(
        pp=pp,
        microbatch_size=microbatch,
        virtual_stages=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
    )
    job = TrainingJob(sequence_length=1024, global_batch_size=4 * pp * microbatch)
    stages = memory_by_stage(
        Workload(model=spec, job=job, stack=stack("megatron-lm-2021")), layout, split, [[0]] * pp
    )
    assert peak_gib(stages) == pytest.approx(measured_gib, rel=0.03)


def test_zero_paper_example_of_a_seven_and_a_half_billion_model() -> None:
    """Rajbhandari et al. 2020, figure 1: 120, 31.4, 16.6 and 1.9 GB for ZeRO 0 to 3 over 64 ranks at 2 + 2 + 12."""
    shipped = stack("megatron-core")
    profile = dataclasses.replace(shipped, memory=dataclasses.replace(shipped.memory, gradient_bytes=2))
    table = LayoutTable.from_rows([ParallelLayout(dp=64, zero_stage=stage) for stage in range(4)])
    job = TrainingJob(sequence_length=1, global_batch_size=64)
    total = state_bytes(
        bytes_per_parameter(Workload(model=model("llama-2-7b"), job=job, stack=profile), table), 7.5e9
    ).total_bytes
    assert [round(float(found) / 1e9, 1) for found in total] == [120.0, 31.4, 16.6, 1.9]


def test_a_405b_model_on_eight_small_gpus_does_not_fit() -> None:
    """Eight A100-40GB hold 320 GB; the state alone of 405 B parameters needs 18 bytes each."""
    layout = ParallelLayout(tp=8, sequence_parallel=True, recompute="full")
    job = TrainingJob(sequence_length=4096, global_batch_size=8)
    (stage,) = memory_by_stage(
        Workload(model=model("405b"), job=job, stack=stack("megatron-core")), layout, [[126]], [[126]]
    )
    assert stage.total_bytes > 20 * 40 * GIB


@pytest.mark.parametrize(
    ("name", "layout", "fits_gib"),
    [
        ("llama-3.1-8b", {"dp": 8, "zero_stage": 3, "recompute": "selective-op"}, 80),
        ("llama-3.1-8b", {"dp": 8, "zero_stage": 0}, 0),
        ("llama-3.1-70b", {"tp": 8, "dp": 2, "zero_stage": 3, "sequence_parallel": True}, 0),
    ],
)
def test_known_fits_and_misfits_on_eighty_gib(name: str, layout: dict[str, Any], fits_gib: float) -> None:
    """FSDP2 trains 8B on 8 H100 with op-level recompute (torchtitan); DDP of 8B at 18 B/parameter cannot fit."""
    spec = model(name)
    chosen = ParallelLayout(**layout)
    job = TrainingJob(sequence_length=8192, global_batch_size=64)
    (stage,) = memory_by_stage(
        Workload(model=spec, job=job, stack=stack("torchtitan")), chosen, [[spec.num_layers]], [[0]]
    )
    assert (stage.total_bytes <= 80 * GIB) is bool(fits_gib)
