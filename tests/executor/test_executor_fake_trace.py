"""The memory that the cost model estimates for a rank is the memory that the rank's trace shows."""

from __future__ import annotations

import dataclasses

import pytest

from costmodel.layout import ParallelLayout
from costmodel.model_catalog import model

pytest.importorskip("torch")

from executor import fake_trace
from executor.fake_rank import RankTask
from executor.fake_trace import memory_of_stages, trace_stage
from executor.pipeline import even_split

TOLERANCE = 0.05
SP = {"sequence_parallel": True}
CASES: dict[str, tuple[str, ParallelLayout, int, int]] = {
    "7b tensor parallel": ("llama-2-7b", ParallelLayout(tp=4, dp=2, zero_stage=1, **SP), 4096, 0),
    "7b ZeRO-3": ("llama-2-7b", ParallelLayout(dp=8, zero_stage=3), 4096, 0),
    "70b first stage": ("llama-3.1-70b", ParallelLayout(tp=8, pp=4, zero_stage=1, **SP), 8192, 0),
    "70b last stage": ("llama-3.1-70b", ParallelLayout(tp=8, pp=4, zero_stage=1, **SP), 8192, 3),
    "405b recomputed": (
        "llama-3.1-405b",
        ParallelLayout(tp=8, pp=16, dp=4, zero_stage=1, recompute="full", **SP),
        8192,
        15,
    ),
    "mixture of experts": ("mixtral-8x7b", ParallelLayout(ep=8, dp=8, pp=2, zero_stage=1), 4096, 1),
}


def task_of(name: str, layout: ParallelLayout, sequence_length: int, stage: int) -> RankTask:
    """A rank of a job with many microbatches and an even split."""
    spec = model(name)
    split = even_split(spec.num_layers, layout.pp)
    return RankTask(
        spec=spec,
        layout=layout,
        sequence_length=sequence_length,
        num_microbatches=32,
        layers_of_stage=split,
        recompute_of_stage=split if layout.recompute == "full" else (0,) * layout.pp,
        stage=stage,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_estimate_is_within_five_percent_of_the_trace(name: str) -> None:
    """What the allocator hands out at the peak of a full-size rank."""
    task = task_of(*CASES[name])
    (found,) = memory_of_stages(task, 32 * task.layout.dp, (task.stage,))
    assert found.estimate.allocated_bytes == pytest.approx(found.peak_bytes, rel=TOLERANCE)
    assert found.optimizer_bytes == pytest.approx(found.estimate.optimizer_bytes, rel=1e-3)
    assert found.gradients_bytes == pytest.approx(found.estimate.gradients_bytes, rel=1e-3)


@pytest.mark.slow
def test_extrapolated_peak_is_the_traced_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shallow traces say the same of a deep stage as a trace of the whole stage."""
    task = task_of("llama-3.1-70b", ParallelLayout(tp=8, pp=8, zero_stage=1, **SP), 8192, 7)
    monkeypatch.setattr(fake_trace, "MOST_LAYER_STEPS", 1)
    extrapolated = trace_stage(task)
    monkeypatch.setattr(fake_trace, "MOST_LAYER_STEPS", 1000)
    assert extrapolated == pytest.approx(trace_stage(dataclasses.replace(task)), rel=1e-6)
