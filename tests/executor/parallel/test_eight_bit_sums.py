"""Sums in eight bits: each value rounded by its block, added in fp32, rounded once more; the same on every rank."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist

from executor.bench.local_ranks import run_ranks
from executor.parallel import narrow
from executor.parallel.narrow import BLOCK, padded_blocks, rounded_blocks, sum_in_eight_bits, sum_rounded

SIZES = (1, 255, 256, 1000, 5000)


def given(rank: int, size: int) -> torch.Tensor:
    """Values over many decades."""
    generator = torch.Generator().manual_seed(1000 * rank + size)
    decades = torch.empty(size).uniform_(-9, 1, generator=generator)
    return torch.randn(size, generator=generator) * 10**decades


def by_blocks(values: np.ndarray) -> np.ndarray:
    """Blocks of 256 rounded to 127 steps of their largest value either way, in numpy alone."""
    wide = np.zeros(-(-len(values) // 256) * 256, np.float32)
    wide[: len(values)] = values
    for block in wide.reshape(-1, 256):
        scale = np.abs(block).max() / np.float32(127)
        if scale > 0:
            block[:] = np.rint(block / scale) * scale
    return wide[: len(values)]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("size", SIZES)
def test_the_sum_is_that_of_section_4_3(size: int, ranks: int) -> None:
    """Of ZeRO++, computed by numpy from the paper's words; within the steps of both roundings of the true sum."""
    parts = [given(rank, size) for rank in range(ranks)]
    total = np.zeros(size, np.float32)
    for part in parts:
        total += by_blocks(part.numpy())
    found = sum_rounded(parts)
    assert np.array_equal(found.numpy(), by_blocks(total))
    true = torch.stack(parts).double().sum(0)
    for start in range(0, size, BLOCK):
        block = slice(start, start + BLOCK)
        steps = sum(float(part[block].abs().max()) for part in parts) + float(found[block].abs().max())
        assert float((found[block] - true[block]).abs().max()) <= steps / 2 / 127 * (1 + 1e-5)


def _sums(rank: int) -> list[list[bool]]:
    """Whether sums over ranks are those of one process, in one piece and in several."""
    found = []
    for piece in (narrow.PIECE, 2):
        narrow.PIECE = piece
        equal = []
        for size in SIZES:
            flat = given(rank, size)
            sum_in_eight_bits(flat, dist.group.WORLD)
            equal.append(
                torch.equal(flat, sum_rounded([given(one, size) for one in range(dist.get_world_size())]))
            )
        found.append(equal)
    return found


def test_ranks_have_the_same_sum_to_the_last_bit() -> None:
    """Three of them, also where a rank has no value of its own, and however many blocks are rounded at once."""
    assert run_ranks(_sums, 3) == [[[True] * len(SIZES)] * 2] * 3


def test_what_is_no_number_is_seen() -> None:
    """In its own block alone; a block of zeros stays zero."""
    parts = [torch.zeros(2 * BLOCK), torch.ones(2 * BLOCK)]
    parts[0][3] = float("nan")
    found = sum_rounded(parts)
    assert (bool(found[:BLOCK].isfinite().any()), bool(found[BLOCK:].isfinite().all())) == (False, True)
    parts[0][3] = float("inf")
    assert not bool(sum_rounded(parts)[:BLOCK].isfinite().any())
    values, scales = rounded_blocks(torch.zeros(1, BLOCK))
    assert (int(values.abs().max()), float(scales)) == (0, 0.0)


def test_every_rank_has_as_many_blocks() -> None:
    """At most one more block a rank than there are values."""
    for size in SIZES:
        for ranks in (2, 3, 8):
            assert padded_blocks(size, ranks) % (BLOCK * ranks) == 0
            assert 0 <= padded_blocks(size, ranks) - size < BLOCK * ranks
