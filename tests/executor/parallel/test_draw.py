"""Initial values are drawn by part: every part is that of the whole, and the numbers are normal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executor.comm.cuts import Cuts, take
from executor.parallel.draw import draw_normal
from executor.parallel.philox import random_words

SHAPE = torch.Size((4, 37, 5001))  # more than one block, no dimension a multiple of a counter's 16 numbers


def normal_part(key: str, shape: torch.Size, cuts: Cuts, std: float) -> torch.Tensor:
    """The part drawn alone."""
    part = torch.empty_like(take(torch.empty(shape), cuts), memory_format=torch.contiguous_format)
    draw_normal(part, key, shape, cuts, std)
    return part


LAYOUTS: dict[str, list[Cuts]] = {
    "columns": [((2, 4, i),) for i in range(4)],
    "rows-then-zero3": [((1, 2, i), (1, 3, j)) for i in range(2) for j in range(3)],
    "experts-and-columns": [((0, 4, i), (2, 2, j)) for i in range(4) for j in range(2)],
    "experts-rows-zero3": [((0, 2, i), (2, 2, j), (1, 40, 39)) for i in range(2) for j in range(2)],
    "whole": [()],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_drawn_alone_is_that_part_of_the_whole(layout: str) -> None:
    """Whatever the cuts, empty ones too, no element depends on who draws it."""
    whole = normal_part("0:w", SHAPE, (), 0.02)
    for cuts in LAYOUTS[layout]:
        assert torch.equal(normal_part("0:w", SHAPE, cuts, 0.02), take(whole, cuts))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_device_draws_by_its_own_integers_what_the_host_draws(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal in fp32, and rounded once in bf16; several batches of runs, and runs of several pieces."""
    for most in (3000, 1 << 24):
        monkeypatch.setattr("executor.parallel.draw._DEVICE_BLOCK", most)
        for cuts in LAYOUTS[layout]:
            host = normal_part("0:w", SHAPE, cuts, 0.02)
            columns_first = torch.empty(*host.shape[:-2], host.shape[-1], host.shape[-2]).transpose(-1, -2)
            for out in (torch.empty_like(host, dtype=torch.bfloat16), columns_first):
                draw_normal(out, "0:w", SHAPE, cuts, 0.02)
                assert torch.equal(out, host.to(out.dtype))


def test_the_stream_is_numpys_philox() -> None:
    """Word by word, also far along and with both halves of the key in use."""
    key = 0x123456789ABCDEF0FEDCBA9876543210
    for first in (0, 2**32 - 3, 2**40 + 3):
        philox = np.random.Philox(key=key)
        philox.advance(first)
        expected = torch.from_numpy(philox.random_raw(400).view(np.int64)).view(100, 4)
        assert torch.equal(random_words(key, torch.arange(first, first + 100)), expected)


def test_the_numbers_are_normal_and_unlike() -> None:
    """Moments and tails of N(0, 1) within five standard errors of a million; no correlation with neighbours."""
    drawn = normal_part("0:w", torch.Size((1000, 1000)), (), 1.0).double()
    other = normal_part("1:w", drawn.shape, (), 1.0).double()
    assert abs(drawn.mean()) < 5e-3
    assert abs(drawn.var() - 1) < 5 * 2**0.5 * 1e-3
    assert abs((drawn**4).mean() - 3) < 5 * 96**0.5 * 1e-3
    assert abs((drawn > 3).double().mean() - 1.35e-3) < 5 * 3.7e-5
    for unlike in (other, drawn.roll(1), drawn.roll(16), drawn.roll(1000)):
        assert abs((drawn * unlike).mean()) < 5e-3
