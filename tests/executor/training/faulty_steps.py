"""Steps of two gloo ranks with a fault in them that is real: computed, waited or sent, and annotated with its length.

A rank trains layers of attention and products for `STEPS` recorded steps. Faults last at least 0.3 s, as walls
of ranks that share cores vary by a quarter.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

STEPS = 3
INJECTED = "injected"
"""Annotation of what a fault adds, beside the words of engines."""
HEADS, LENGTH, HIDDEN = 16, 64, 128
LONG = 384
"""Tokens where softmax is most of a layer."""
MESSAGES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyKind:
    """A fault and the cause that it is."""

    name: str
    cause: str
    on_one_rank: bool = False
    share: float | None = 1.0
    """Of the annotated time that is lost: a stage that computes longer is half as far from the mean of two.

    None where the fault is how a step is written, and nothing that is added to it.
    """


KINDS = (
    FaultyKind(name="none", cause=""),
    FaultyKind(name="slow rank", cause="slow rank", on_one_rank=True),
    FaultyKind(name="loader", cause="loader"),
    FaultyKind(name="loader of one rank", cause="loader", on_one_rank=True),
    FaultyKind(name="checkpoint", cause="checkpoint in the step"),
    FaultyKind(name="collector", cause="garbage collection"),
    FaultyKind(name="uneven stage", cause="uneven stages", share=0.5),
    FaultyKind(name="unfused attention", cause="unfused attention", share=None),
    FaultyKind(name="small buckets", cause="small buckets", share=None),
)


class Layer(nn.Module):
    """Attention and a product; unfused it is written out, as models without a kernel have it."""

    def __init__(self, unfused: bool) -> None:
        super().__init__()
        self.unfused = unfused
        self.mix, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix tokens."""
        heads = self.mix(x).unflatten(-1, (3, HEADS, HIDDEN // HEADS)).permute(2, 0, 3, 1, 4)
        q, k, v = heads
        if self.unfused:
            mixed = torch.softmax(q @ k.transpose(-1, -2) / (HIDDEN // HEADS) ** 0.5, -1) @ v
        else:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).flatten(-2))


def compute(seconds: float) -> None:
    """Products for so long."""
    square, until = torch.randn(256, 256), time.perf_counter() + seconds
    while time.perf_counter() < until:
        square @ square


def collect(seconds: float) -> None:
    """Collect garbage for so long."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        rows = [[number] for number in range(20_000)]
        for row in rows:
            row.append(row)  # type: ignore[arg-type]
        del rows, row
        gc.collect()


def train(rank: int, kind: str, culprit: int, seconds: float, folder: Path) -> None:
    """Record steps of a rank with a fault."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    axis = "pp" if kind == "uneven stage" else "dp"
    group = dist.new_group([0, 1], group_desc=axis)
    unfused = kind == "unfused attention"
    model = nn.Sequential(*(Layer(unfused) for _ in range(2)))
    x = torch.randn(2, LONG if unfused else LENGTH, HIDDEN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def inject(place: str, words: str, what: Callable[[float], None], here: bool = True) -> None:
        if kind == place and here:
            with record_function(words), record_function(INJECTED):
                what(seconds)

    def one_step() -> None:
        inject("loader", "data_loader", time.sleep)
        inject("loader of one rank", "data_loader", time.sleep, rank == culprit)
        inject("slow rank", "preprocess", time.sleep, rank == culprit)
        model(x).square().mean().backward()
        inject("uneven stage", "layers", compute, rank == 0)
        inject("checkpoint", "save_checkpoint", time.sleep)
        inject("collector", "gc.collect", collect)
        if axis == "dp":
            _reduce(model, group, MESSAGES if kind == "small buckets" else 1)
        optimizer.step()
        optimizer.zero_grad()

    one_step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for number in range(1, STEPS + 1):
            with record_function(f"ProfilerStep#{number}"):
                one_step()
    recorded.export_chrome_trace(str(folder / f"trace-rank{rank}.json"))


def _reduce(model: nn.Module, group: dist.ProcessGroup, messages: int) -> None:
    """Sum gradients in so many messages."""
    flat = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
    if messages == 1:
        dist.all_reduce(flat, group=group)
        return
    for part in flat.chunk(messages):
        dist.all_reduce(part, group=group)
