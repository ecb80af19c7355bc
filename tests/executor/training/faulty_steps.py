"""Steps of two gloo ranks with a fault in them that is real: computed, waited or sent, and annotated with its length.

A rank trains layers of attention and products for `STEPS` recorded steps. Faults last at least 0.3 s, as walls
of ranks that share cores vary by a quarter.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

STEPS = 3
INJECTED = "injected"
"""Annotation of what a fault adds, beside the words of engines."""
HEADS, LENGTH, HIDDEN = 16, 64, 128
LONG = 384
"""Tokens where softmax is most of a layer."""
MESSAGES = 1000
GRADIENTS = 2**24
"""Elements of gradients that are summed where nothing computes."""
PAIRS = ((0, 1), (2, 3))
"""Ranks that sum gradients together, each on a host of its own."""
LINK_BYTES = 4_000_000
"""Of their message."""
WIDE = 64
"""Sequences where products are most of a step."""
AFTER_BACKWARD = ("overlap off", "small buckets")
"""Kinds in which gradients are summed when all are there."""
PLANNED = ("none", "recompute", "float32", "overlap off")
"""Kinds that stand beside the plan of the job: faults that it alone shows, and steps as it has them."""


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
    FaultyKind(name="overlap off", cause="overlap off"),
    FaultyKind(name="barriers", cause="synchronisation in the step"),
    FaultyKind(name="recompute", cause="unplanned recompute"),
    FaultyKind(name="float32", cause="precision", share=None),
    FaultyKind(name="small buckets", cause="small buckets", share=None),
)


class Layer(nn.Module):
    """Attention and a product; unfused it is written out, as models without a kernel have it."""

    def __init__(self, unfused: bool) -> None:
        super().__init__()
        self.unfused, self.passes = unfused, 0
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


def compute(seconds: float, dtype: torch.dtype = torch.float32) -> None:
    """Products for so long."""
    square, until = torch.ones(256, 256, dtype=dtype), time.perf_counter() + seconds
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
    if kind == "float32":
        x = torch.randn(WIDE, LENGTH, HIDDEN)
    elif kind in PLANNED:
        x, model = x.bfloat16(), model.bfloat16()
    beside = _SumsBeside(model, group, axis == "dp" and kind not in AFTER_BACKWARD)
    gradients = torch.zeros(GRADIENTS if kind == "overlap off" else 0)
    repeated: dict[str, Callable[[], Any]] = {
        "barriers": lambda: dist.barrier(group),
        "overlap off": lambda: dist.all_reduce(gradients, group=group),
    }
    times = _times(repeated[kind], seconds, group) if kind in repeated else 0

    def forward() -> torch.Tensor:
        if kind != "recompute":
            return model(x)
        hidden = x
        for layer in model:
            hidden = checkpoint(_repeated, layer, hidden, seconds / 2, use_reentrant=False)
        return hidden

    def inject(place: str, words: str, what: Callable[[float], None], here: bool = True) -> None:
        if kind == place and here:
            with record_function(words), record_function(INJECTED):
                what(seconds)

    def one_step() -> None:
        inject("loader", "data_loader", time.sleep)
        inject("loader of one rank", "data_loader", time.sleep, rank == culprit)
        inject("slow rank", "preprocess", time.sleep, rank == culprit)
        forward().square().mean().backward()
        inject("uneven stage", "layers", compute, rank == 0)
        inject("checkpoint", "save_checkpoint", time.sleep)
        inject("collector", "gc.collect", collect)
        for place, words in (("barriers", "synchronised"), ("overlap off", "gradients")):
            inject(place, words, lambda _: [repeated[kind]() for _ in range(times)])
        beside.wait()
        if kind in AFTER_BACKWARD:
            _reduce(model, group, MESSAGES if kind == "small buckets" else 1)
        optimizer.step()
        optimizer.zero_grad()

    one_step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for number in range(1, STEPS + 1):
            with record_function(f"ProfilerStep#{number}"):
                one_step()
    recorded.export_chrome_trace(str(folder / f"trace-rank{rank}.json"))


class _SumsBeside:
    """Sums the gradients of a layer while the backward of those before it runs, as engines do."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, sums: bool) -> None:
        self._group, self._sent = group, list[tuple[Any, torch.Tensor]]()
        for layer in model.children() if sums else ():
            parameters, ready = [*layer.parameters()], list[torch.Tensor]()
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(ready, len(parameters)))

    def _hook(self, ready: list[torch.Tensor], needed: int) -> Callable[[torch.Tensor], None]:
        def accumulated(parameter: torch.Tensor) -> None:
            ready.append(parameter)
            if len(ready) == needed:
                flat = torch.cat([each.grad.flatten() for each in ready if each.grad is not None])
                work = dist.all_reduce(flat, group=self._group, async_op=True)
                self._sent.append((work, flat))
                ready.clear()

        return accumulated

    def wait(self) -> None:
        """Wait for all that was sent."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()


def _repeated(layer: Layer, x: torch.Tensor, seconds: float) -> torch.Tensor:
    """A layer that computes for long; what the backward runs once more is annotated."""
    layer.passes += 1
    with record_function("forward" if layer.passes % 2 else INJECTED):
        compute(seconds, torch.bfloat16)  # of a part that is not trained: no backward follows
        return layer(x)


def _times(once: Callable[[], Any], seconds: float, group: dist.ProcessGroup) -> int:
    """How often something is done in so many seconds, on all ranks alike."""
    once()
    began_s, count = time.perf_counter(), 3
    for _ in range(count):
        once()
    lasts = torch.tensor((time.perf_counter() - began_s) / count)
    dist.all_reduce(lasts, dist.ReduceOp.MAX, group=group)
    return max(2, round(seconds / float(lasts)))


def train_on_host(number: int, folder: Path) -> None:
    """Record steps of a rank on a host of its own: of two pairs that sum gradients, the first has slow links."""
    torch.set_num_threads(1)
    torch.manual_seed(number)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=number, world_size=2 * len(PAIRS))
    groups = [dist.new_group([*pair], group_desc="dp") for pair in PAIRS]
    group = next(each for each, pair in zip(groups, PAIRS, strict=True) if number in pair)
    message, x = torch.zeros(LINK_BYTES // 4), torch.randn(HIDDEN, HIDDEN)

    def one_step() -> None:
        for _ in range(10):
            x @ x
        dist.barrier(group)
        with record_function(INJECTED):
            dist.all_reduce(message, group=group)
        dist.all_reduce(torch.zeros(1))

    one_step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for step in range(1, STEPS + 1):
            with record_function(f"ProfilerStep#{step}"):
                one_step()
    recorded.export_chrome_trace(str(folder / f"trace-rank{number}.json"))
    dist.barrier()


def _reduce(model: nn.Module, group: dist.ProcessGroup, messages: int) -> None:
    """Sum gradients in so many messages."""
    flat = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
    if messages == 1:
        dist.all_reduce(flat, group=group)
        return
    for part in flat.chunk(messages):
        dist.all_reduce(part, group=group)


if __name__ == "__main__":
    train_on_host(int(os.environ["HOST_NUMBER"]), Path(sys.argv[1]))
