"""FlexAttention's kernels on a GPU, beside plain products: the same numbers, without scores, and faster.

``pytest -n 0 -m gpu --junitxml=found.xml tests/executor/gpu`` on a machine with one GPU also writes times and
names of kernels. Torch is 2.13 or later. None has run it yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from costmodel.layout import ParallelLayout
from tests.executor.gpu.test_one_rank import MEMORY, gpu_here, planned

torch = pytest.importorskip("torch")

from executor.model.attention import flex, kernels, plain
from executor.model.attention.masks import Mask
from executor.validation.validate import check_gpu
from tests.executor.gpu.marks import ON_GPU

pytestmark = [
    *ON_GPU,
    pytest.mark.skipif(
        torch.__version__ < flex.FIRST_TORCH, reason="torch is too old: plain products stand in"
    ),
]

LENGTH = 8192
ROUNDED = 2**-7  # of bf16, once more than the result is


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Attention of one layer of a model."""

    mask: Mask
    heads: int
    kv_heads: int
    size: int
    cap: float | None = None
    sinks: bool = False

    def drawn(self) -> tuple[list[torch.Tensor], torch.Tensor | None, torch.Tensor]:
        """Queries, keys, values, sinks and a gradient to come."""
        torch.manual_seed(0)
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        queries = LENGTH // self.mask.ranks
        shapes = (
            (queries, self.heads),
            (LENGTH, self.kv_heads),
            (LENGTH, self.kv_heads),
            (queries, self.heads),
        )
        drawn = [torch.randn(1, *shape, self.size, **options).transpose(1, 2) for shape in shapes]
        sinks = torch.randn(self.heads, **options).requires_grad_() if self.sinks else None
        return [x.requires_grad_() for x in drawn[:3]], sinks, drawn[3]

    def run(self, inputs: list[torch.Tensor], sinks: torch.Tensor | None) -> torch.Tensor:
        """Forward."""
        scale = self.size**-0.5
        return kernels.attend_masked(*inputs, self.mask, scale=scale, cap=self.cap, sinks=sinks)


GEMMA, OSS = {"heads": 16, "kv_heads": 8, "size": 256}, {"heads": 64, "kv_heads": 8, "size": 64}
PACKED = ((3000, 1, 191, 5000),)
LAYERS = {
    "gemma-2 whole": Layer(mask=Mask(length=LENGTH), cap=50.0, **GEMMA),
    "gemma-2 window": Layer(mask=Mask(length=LENGTH, window=4096), cap=50.0, **GEMMA),
    "gpt-oss whole": Layer(mask=Mask(length=LENGTH), sinks=True, **OSS),
    "gpt-oss window": Layer(mask=Mask(length=LENGTH, window=128), sinks=True, **OSS),
    "gpt-oss documents": Layer(mask=Mask(length=LENGTH, window=128, documents=PACKED), sinks=True, **OSS),
    "second rank of two": Layer(mask=Mask(length=LENGTH, window=128, ranks=2, rank=1), sinks=True, **OSS),
}


def both_ways(layer: Layer, inputs: list[Any], sinks: Any, towards: Any) -> list[torch.Tensor]:
    """Result and every gradient."""
    out = layer.run(inputs, sinks)
    leaves = [*inputs, *([] if sinks is None else [sinks])]
    return [out, *torch.autograd.grad(out, leaves, towards)]


def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have plain products compute from here on."""
    monkeypatch.setattr(kernels, "_computes", lambda _: plain)


def check_near(found: list[torch.Tensor], layer: Layer, inputs: list[Any], sinks: Any, towards: Any) -> None:
    """All are finite, and within a rounding of the largest, of plain products of the same values in fp32."""
    wide = [x.detach().float().requires_grad_() for x in inputs]
    column = None if sinks is None else sinks.detach().float().requires_grad_()
    for one, other in zip(found, both_ways(layer, wide, column, towards.float()), strict=True):
        assert bool(one.isfinite().all())
        difference = (one.float() - other).abs().max() / other.abs().max()
        assert float(difference) <= ROUNDED


@pytest.mark.parametrize("name", LAYERS)
def test_kernels_compute_what_plain_products_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16, beside plain products of the same values in fp32: within a rounding of the largest."""
    layer = LAYERS[name]
    inputs, sinks, towards = layer.drawn()
    assert flex.obstacle(towards.device, towards.dtype, layer.size) == ""
    found = both_ways(layer, inputs, sinks, towards)
    plainly(monkeypatch)
    check_near(found, layer, inputs, sinks, towards)


@pytest.mark.parametrize("name", LAYERS)
def test_kernels_are_flex_attention_s_and_faster(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """By name, forward and backward; with no wait for the host, the same numbers, in less time than plain ones."""
    layer = LAYERS[name]
    inputs, sinks, towards = layer.drawn()
    both_ways(layer, inputs, sinks, towards)  # compiles, and makes the mask's tables
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = both_ways(layer, inputs, sinks, towards)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        both_ways(layer, inputs, sinks, towards)
        torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages()}
    assert any("flex_attention" in key and "backward" not in key for key in names), names
    assert any("flex_attention_backward" in key for key in names), names
    with monkeypatch.context() as only_here:
        plainly(only_here)
        check_near(found, layer, inputs, sinks, towards)
    fast_s = timed(layer, inputs, sinks, towards)
    plainly(monkeypatch)
    plain_s = timed(layer, inputs, sinks, towards)
    record_property("FlexAttention, ms", fast_s * 1e3)
    record_property("plain products, ms", plain_s * 1e3)
    record_property("kernels", sorted(names))
    assert fast_s < plain_s


def timed(layer: Layer, inputs: list[Any], sinks: Any, towards: Any) -> float:
    """Seconds of forward and backward, the least of five."""
    found = []
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        both_ways(layer, inputs, sinks, towards)
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / 1e3)
    return min(found[1:])


def test_no_scores_are_held() -> None:
    """Forward and backward hold less than the scores of one head."""
    layer = LAYERS["gemma-2 whole"]
    inputs, sinks, towards = layer.drawn()
    both_ways(layer, inputs, sinks, towards)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    both_ways(layer, inputs, sinks, towards)
    results = inputs[0].nbytes * 2 + sum(x.nbytes for x in inputs)  # result, its copy, gradients
    assert torch.cuda.max_memory_allocated() - before < results + 4 * LENGTH**2


LAYOUTS = {
    "gemma-2-9b": ParallelLayout(tp=4, dp=2, zero_stage=1, sequence_parallel=True),
    "gpt-oss-20b": ParallelLayout(dp=8, ep=8, zero_stage=3),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_rank_allocates_what_is_estimated(name: str) -> None:
    """Peak memory of a rank of a model with soft caps, of one with windows and sinks: within 5 %."""
    check, (measured,) = check_gpu(planned(gpu_here(), name, LAYOUTS[name]))
    assert check.verdict == "holds", check.detail
    assert measured.estimated_bytes == pytest.approx(measured.peak_bytes, rel=MEMORY)
