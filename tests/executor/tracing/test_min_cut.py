"""What a compiler keeps is the least from which the backward has all: against every choice, and by hand."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn

from executor.tracing.min_cut import fewest_kept
from executor.tracing.trace import example_inputs, trace_module


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[int, int], dict[int, list[int]], list[int]]:
    """Values of random sizes, each made of earlier ones or of nothing that can be repeated."""
    count = draw(st.integers(1, 7))
    sizes = {i: draw(st.integers(1, 9)) for i in range(count)}
    made = {}
    for i in range(1, count):
        if draw(st.booleans()):
            made[i] = draw(st.lists(st.integers(0, i - 1), min_size=1, max_size=3, unique=True))
    return sizes, made, draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count))


def suffices(kept: set[int], made: dict[int, list[int]], value: int) -> bool:
    """Whether a value is kept or made of those that are."""
    if value in kept:
        return True
    return value in made and all(suffices(kept, made, parent) for parent in made[value])


@given(graphs())
def test_no_choice_keeps_fewer_bytes(graph: tuple[dict[int, int], dict[int, list[int]], list[int]]) -> None:
    """Every subset that suffices is at least as large as the cut, which suffices too."""
    sizes, made, needed = graph
    found = fewest_kept(sizes, made, needed, [])
    every = chain.from_iterable(combinations(sizes, n) for n in range(len(sizes) + 1))
    enough = [set(some) for some in every if all(suffices(set(some), made, value) for value in needed)]
    assert all(suffices(found, made, value) for value in needed)
    assert sum(sizes[v] for v in found) == min(sum(sizes[v] for v in some) for some in enough)


class Gated(nn.Module):
    """A norm in fp32 and a gated feed-forward beside the residual stream, as a decoder has them."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.gate, self.up = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The residual stream, with what the block adds to it."""
        wide = x.float()
        normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


def test_a_compiled_block_keeps_one_copy_of_what_eager_keeps_several_times() -> None:
    """By hand, bf16: the input and the norm's output, gate, up and their product; eager a third more."""
    tokens, hidden, inner = 128, 64, 256
    module = nn.Sequential(nn.Linear(hidden, hidden), *(Gated(hidden, inner) for _ in range(3)))
    found = trace_module(module, example_inputs(f"1x{tokens}x{hidden}"))
    block = found.kinds[0]
    by_hand = 2 * tokens * (2 * hidden + 3 * inner)
    assert block.fused_saved_bytes == pytest.approx(by_hand, rel=0.01)
    assert block.saved_bytes > 1.3 * block.fused_saved_bytes


def test_what_autograd_keeps_once_a_compiler_keeps_too() -> None:
    """Products alone: each input once, in both views."""
    module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    found = trace_module(module, example_inputs("8x64"))
    assert all(kind.fused_saved_bytes == kind.saved_bytes for kind in found.kinds)
