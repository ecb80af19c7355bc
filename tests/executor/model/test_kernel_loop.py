"""The loop of FlexAttention's forward kernel, written down in torch, over the blocks and options it is given.

Plain definitions of the operators know nothing of blocks and options, so a CPU does not see what these do to
the kernel. The loop is that of torch 2.13's template (``flex_attention.py.jinja``, ``common.py.jinja``): a
running maximum and sum in base 2, blocks seen in part first, then those seen whole.
"""

from __future__ import annotations

import math
from itertools import chain

import pytest

torch = pytest.importorskip("torch")

from executor.model.attention import flex, plain
from executor.model.attention.masks import BLOCK, Mask, query_reach

WIDTH = 64  # keys of one step
LENGTH = 1024
MASKS = {
    "causal": Mask(length=LENGTH),
    "window": Mask(length=LENGTH, window=128),
    "wide window": Mask(length=LENGTH, window=500),
    "documents": Mask(length=LENGTH, documents=((300, 1, 399, 324),)),
    "documents and window": Mask(length=LENGTH, window=90, documents=((300, 1, 723),)),
    "second rank of two": Mask(length=LENGTH, window=300, ranks=2, rank=1),
}


def looped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result (q, d) and log-sum-exp (q,) of one head as the kernel computes them."""
    blocks = flex.block_mask(mask, q.device)
    queries, keys, first = (torch.from_numpy(x) for x in query_reach(mask))
    out, lse = torch.empty_like(q), torch.empty(len(q))
    for block in range(len(q) // BLOCK):
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        most, total = torch.full((BLOCK,), -math.inf), torch.zeros(BLOCK)
        summed = torch.zeros(BLOCK, q.shape[1])
        in_part = blocks.kv_indices[0, 0, block, : blocks.kv_num_blocks[0, 0, block]]
        whole = blocks.full_kv_indices[0, 0, block, : blocks.full_kv_num_blocks[0, 0, block]]
        visits = chain(((int(at), False) for at in in_part), ((int(at), True) for at in whole))
        for start, seen_whole in (
            (at * BLOCK + step, is_whole) for at, is_whole in visits for step in range(0, BLOCK, WIDTH)
        ):
            columns = slice(start, start + WIDTH)
            scores = q[rows] @ k[columns].t()
            if not seen_whole:
                to, at = queries[rows, None], keys[columns]
                scores = scores.where((at <= to) & (at >= first[0, rows, None]), -math.inf)
            scores = scores * math.log2(math.e)
            new = torch.maximum(most, scores.amax(1))
            safe = new if flex._OPTIONS["ROWS_GUARANTEED_SAFE"] else new.where(new != -math.inf, 0.0)
            shrunk, weights = (most - safe).exp2(), (scores - safe[:, None]).exp2()
            total = total * shrunk + weights.sum(1)
            summed = summed * shrunk[:, None] + weights @ v[columns]
            most = new
        out[rows], lse[rows] = summed / total[:, None], (most + total.log2()) * math.log(2)
    return out, lse


@pytest.mark.parametrize("name", MASKS)
def test_rows_that_see_nothing_of_a_block_are_computed(name: str) -> None:
    """Every query sees itself, but not something of every block that its neighbours see."""
    mask = MASKS[name]
    torch.manual_seed(0)
    q, k, v = (torch.randn(length, 16) for length in (LENGTH // mask.ranks, LENGTH, LENGTH))
    found = looped(q, k, v, mask)
    expected = plain.forward(*(x[None, None] for x in (q, k, v)), mask, 1.0, None)
    assert all(x.isfinite().all() for x in found)
    torch.testing.assert_close(found, tuple(x[0, 0] for x in expected), rtol=1e-5, atol=1e-5)
