"""The memory that the cost model estimates for a rank is the memory that the rank's trace shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.updates.adapters import parse_adapter

pytest.importorskip("torch")

from executor.model.products.formats import EightBits
from executor.parallel.stages import even_layers
from executor.validation import memory_trace
from executor.validation.fake_rank import RankTask
from executor.validation.memory_trace import (
    few_microbatches,
    layers_of_rank,
    peak,
    traced_memory,
)
from tests.counts import cases_of_run

TOLERANCE = 0.05
SP = {"sequence_parallel": True}
ZERO_1 = {"zero_stage": 1, **SP}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A stage of a job: the model, cut to `layers` where its depth does not matter, and the layout."""

    model: str
    layout: ParallelLayout
    sequence_length: int = 4096
    stage: int = 0
    layers: int | None = None
    num_microbatches: int = 32
    adapter: str = ""
    eight_bits: EightBits | None = None

    @property
    def task(self) -> RankTask:
        """The rank to trace: an even split, everything recomputed if anything is."""
        spec, layout = model(self.model), self.layout
        depth = self.layers or spec.num_layers
        sliding = spec.num_sliding_layers * depth // spec.num_layers
        spec = replace(spec, num_layers=depth, num_sliding_layers=sliding)
        split = even_layers(spec.num_layers, layout.pp * layout.virtual_stages)
        full = layout.recompute == "full"
        recomputed = tuple(full * sum(layers_of_rank(spec, layout, split, rank)) for rank in range(layout.pp))
        return RankTask(
            spec=spec,
            layout=layout,
            sequence_length=self.sequence_length,
            num_microbatches=self.num_microbatches,
            layers_of_stage=split,
            recompute_of_stage=recomputed,
            stage=self.stage,
            adapter=parse_adapter(self.adapter) if self.adapter else None,
            eight_bits=self.eight_bits,
        )


SEVEN, EIGHT, SEVENTY = "llama-2-7b", "llama-3.1-8b", "llama-3.1-70b"
V_PIPELINE = {"tp": 4, "pp": 2, "virtual_stages": 2, **ZERO_1}
CASES = {
    "7b tensor parallel": Case(model=SEVEN, layout=ParallelLayout(tp=4, dp=2, **ZERO_1)),
    "8b adapted": Case(
        model=EIGHT, layout=ParallelLayout(tp=2, dp=4, **ZERO_1), layers=4, adapter="lora:r=16"
    ),
    "8b adapted ZeRO-3": Case(
        model=EIGHT,
        layout=ParallelLayout(dp=8, zero_stage=3),
        layers=4,
        adapter="lora:r=16,targets=attention",
    ),
    "8b adapted ZeRO-0": Case(model=EIGHT, layout=ParallelLayout(dp=2), layers=4, adapter="lora:r=64"),
    "7b ZeRO-3": Case(model=SEVEN, layout=ParallelLayout(dp=8, zero_stage=3)),
    "8b ZeRO-3 recomputed": Case(
        model=EIGHT, layout=ParallelLayout(dp=8, zero_stage=3, recompute="full"), sequence_length=8192
    ),
    "8b ZeRO-3 in eight bits": Case(model=EIGHT, layout=ParallelLayout(dp=8, zero_stage=3), eight_bits="fp8"),
    "8b ZeRO-3 in blocks of eight bits": Case(
        model=EIGHT, layout=ParallelLayout(dp=8, zero_stage=3), layers=8, eight_bits="mxfp8"
    ),
    "70b first stage in eight bits": Case(
        model=SEVENTY,
        layout=ParallelLayout(tp=8, pp=4, **ZERO_1),
        sequence_length=8192,
        eight_bits="fp8",
    ),
    "8b recomputed by operator": Case(
        model=EIGHT,
        layout=ParallelLayout(tp=2, dp=4, recompute="selective-op", **ZERO_1),
        sequence_length=8192,
    ),
    "70b first stage": Case(model=SEVENTY, layout=ParallelLayout(tp=8, pp=4, **ZERO_1), sequence_length=8192),
    "70b last stage": Case(
        model=SEVENTY, layout=ParallelLayout(tp=8, pp=4, **ZERO_1), sequence_length=8192, stage=3
    ),
    "405b recomputed": Case(
        model="llama-3.1-405b",
        layout=ParallelLayout(tp=8, pp=16, dp=4, recompute="full", **ZERO_1),
        sequence_length=8192,
        stage=15,
    ),
    "7b gpipe middle stage": Case(
        model=SEVEN,
        layout=ParallelLayout(tp=2, pp=4, schedule="gpipe", **ZERO_1),
        sequence_length=2048,
        stage=2,
        layers=12,
        num_microbatches=6,
    ),
    "7b zb-h1 first stage": Case(
        model=SEVEN, layout=ParallelLayout(tp=4, pp=2, schedule="zb-h1", **ZERO_1), layers=8
    ),
    "7b zb-h1 last stage": Case(
        model=SEVEN, layout=ParallelLayout(tp=4, pp=2, schedule="zb-h1", **ZERO_1), layers=8, stage=1
    ),
    "7b zbv first stage": Case(model=SEVEN, layout=ParallelLayout(schedule="zbv", **V_PIPELINE), layers=12),
    "7b zbv last stage": Case(
        model=SEVEN, layout=ParallelLayout(schedule="zbv", **V_PIPELINE), layers=12, stage=1
    ),
    "7b zbv whole matrices": Case(
        model=SEVEN,
        layout=ParallelLayout(schedule="zbv", pp=2, dp=2, virtual_stages=2, zero_stage=1),
        layers=4,
        stage=1,
        num_microbatches=6,
    ),
    "7b dualpipev last stage": Case(
        model=SEVEN,
        layout=ParallelLayout(schedule="dualpipev", **V_PIPELINE),
        layers=4,
        stage=1,
        num_microbatches=6,
    ),
    "7b interleaved": Case(
        model=SEVEN, layout=ParallelLayout(schedule="interleaved", **V_PIPELINE), layers=12
    ),
    "7b ring": Case(
        model=SEVEN,
        layout=ParallelLayout(cp=4, zero_stage=1),
        sequence_length=65536,
        layers=4,
    ),
    "7b heads swapped": Case(
        model=SEVEN,
        layout=ParallelLayout(cp=4, cp_kind="ulysses", zero_stage=1),
        sequence_length=65536,
        layers=4,
    ),
    "experts": Case(model="mixtral-8x7b", layout=ParallelLayout(ep=8, dp=8, pp=2, zero_stage=1), stage=1),
    "windows and sinks": Case(
        model="gpt-oss-20b",
        layout=ParallelLayout(ep=8, dp=8, zero_stage=3),
        sequence_length=8192,
        layers=2,
    ),
    "windows and soft caps": Case(
        model="gemma-2-9b", layout=ParallelLayout(tp=4, dp=2, **ZERO_1), sequence_length=8192
    ),
    "keys gathered": Case(
        model=SEVEN,
        layout=ParallelLayout(cp=4, cp_kind="allgather", zero_stage=1),
        sequence_length=65536,
        layers=4,
    ),
    "experts in eight bits": Case(
        model="qwen3-30b-a3b", layout=ParallelLayout(dp=8, ep=8, **ZERO_1), layers=2, eight_bits="fp8"
    ),
    "experts in blocks of eight bits": Case(
        model="deepseek-v3", layout=ParallelLayout(ep=8, dp=8, zero_stage=1), layers=5, eight_bits="mxfp8"
    ),
    "cut experts put off": Case(
        model="mixtral-8x7b",
        layout=ParallelLayout(schedule="dualpipev", ep=2, expert_tp=2, dp=2, **{**V_PIPELINE, "tp": 2}),
        sequence_length=32768,
        layers=8,
        stage=1,
        num_microbatches=6,
    ),
    "experts recomputed by operator": Case(
        model="mixtral-8x7b",
        layout=ParallelLayout(ep=8, dp=8, zero_stage=3, recompute="selective-op"),
        layers=4,
    ),
}
LIKE_OTHERS = (
    "8b ZeRO-3 in eight bits",
    "70b first stage in eight bits",
    "experts in blocks of eight bits",
    "experts recomputed by operator",
    "7b zb-h1 first stage",
    "7b zbv last stage",
    "8b adapted ZeRO-0",
    "8b adapted",
    "8b ZeRO-3 recomputed",
    "7b tensor parallel",
    "70b first stage",
    "7b heads swapped",
    "7b zbv first stage",
    "windows and soft caps",
)
"""Of the nightly run: their mechanisms are those of other cases, one or two of each."""


@pytest.mark.slow
@pytest.mark.parametrize("name", cases_of_run(CASES, LIKE_OTHERS))
def test_estimate_is_within_five_percent_of_the_trace(name: str) -> None:
    """What the allocator hands out at the peak of a full-size rank."""
    task = CASES[name].task
    (found,) = traced_memory(task, task.num_microbatches * task.layout.dp, (task.stage,), processes=1)
    assert found.estimate.allocated_bytes == pytest.approx(found.peak_bytes, rel=TOLERANCE)
    assert found.optimizer_bytes == pytest.approx(found.estimate.optimizer_bytes, rel=1e-3)
    assert found.kept_gradients_bytes == pytest.approx(found.estimate.gradients_bytes, rel=1e-3)


DEEP = {
    "last of eight": Case(model=SEVENTY, layout=ParallelLayout(tp=8, pp=8, **ZERO_1), layers=64, stage=7),
    "after dense layers": Case(
        model="deepseek-v2-lite", layout=ParallelLayout(ep=8, dp=8, pp=2, zero_stage=1), layers=14
    ),
    "after dense layers of deepseek-v3": Case(
        model="deepseek-v3", layout=ParallelLayout(ep=8, dp=8, pp=2, zero_stage=1), layers=18
    ),
    "gathered": Case(model=SEVEN, layout=ParallelLayout(dp=8, zero_stage=3), layers=8, sequence_length=1024),
}


def traced(task: RankTask) -> Mapping[str, float]:
    """Bytes by purpose at the peak of a stage, extrapolated when it is deep."""
    return memory_trace.extrapolate(task, [memory_trace.peak(each) for each in memory_trace.traces_of(task)])


@pytest.mark.parametrize("name", cases_of_run(DEEP, ["after dense layers of deepseek-v3", "gathered"]))
def test_extrapolated_peak_is_the_traced_peak(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shallow traces say the same of a deep stage as a trace of the whole stage."""
    task = DEEP[name].task
    assert memory_trace.is_extrapolated(task)
    extrapolated = traced(task)
    monkeypatch.setattr(memory_trace, "is_extrapolated", lambda _: False)
    assert extrapolated == pytest.approx(traced(task), rel=1e-6)


def test_few_microbatches_show_the_peak_of_many() -> None:
    """A stage is traced with as many microbatches as fill its pipeline: more change nothing."""
    task = CASES["70b last stage"].task
    few = replace(task, spec=replace(task.spec, num_layers=8), layers_of_stage=(2, 2, 2, 2))
    many = replace(few_microbatches(few), num_microbatches=6)
    assert few_microbatches(few).num_microbatches == 3
    assert sum(peak(few_microbatches(few)).values()) == pytest.approx(sum(peak(many).values()), rel=2e-3)
