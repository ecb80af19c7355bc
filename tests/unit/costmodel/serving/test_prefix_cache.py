"""Prefix caches of a fleet: what each routing policy finds again."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.serving.simulation.load import HASH_BLOCK_TOKENS, Load
from costmodel.serving.simulation.prefix_cache import POLICIES, prefix_hits

AMPLE = 1e9


def conversations(count: int, turns: int) -> Load:
    """Conversations that take turns; each turn has all blocks of the one before and one more."""
    hashes = [tuple(1000 * who + n for n in range(turn + 1)) for turn in range(turns) for who in range(count)]
    size = len(hashes)
    return Load(
        input_tokens=np.array([len(one) * HASH_BLOCK_TOKENS for one in hashes]),
        output_tokens=np.ones(size, dtype=np.int64), cached_tokens=np.zeros(size, dtype=np.int64),
        arrival_s=np.arange(size, dtype=float), block_hashes=tuple(hashes),
    )  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_one_large_cache_finds_every_block_that_was_there_before(policy: str) -> None:
    """Whatever the policy: all but the first occurrence of each block, counted by hand."""
    load = conversations(7, 5)
    hits = prefix_hits(load, replicas=1, capacity_tokens=AMPLE, policy=policy)  # type: ignore[arg-type]
    again = sum(map(len, load.block_hashes)) - len({one for each in load.block_hashes for one in each})
    assert int(hits.cached_tokens.sum()) == again * HASH_BLOCK_TOKENS
    assert hits.rate == pytest.approx(again / sum(map(len, load.block_hashes)))


def test_a_prefix_aware_router_finds_on_many_replicas_what_one_cache_finds() -> None:
    """By turns a conversation meets a replica that never saw it; all replicas are used."""
    load = conversations(7, 6)
    one = prefix_hits(load, replicas=1, capacity_tokens=AMPLE, policy="prefix-aware")
    rates = {name: prefix_hits(load, replicas=4, capacity_tokens=AMPLE, policy=name) for name in POLICIES}
    assert rates["prefix-aware"].rate == one.rate
    assert rates["round-robin"].rate < 0.7 * one.rate
    assert set(rates["prefix-aware"].replica.tolist()) == {0, 1, 2, 3}
    assert rates["round-robin"].replica.tolist() == [i % 4 for i in range(len(load))]


def test_a_small_cache_forgets_what_was_used_longest_ago() -> None:
    """Two prompts of two blocks by turns: both fit into four blocks; into three the start of a prompt survives."""
    load = conversations(2, 1)
    load = replace(
        load, input_tokens=np.full(4, 2 * HASH_BLOCK_TOKENS), output_tokens=np.ones(4, dtype=np.int64),
        cached_tokens=np.zeros(4, dtype=np.int64), arrival_s=np.arange(4.0),
        block_hashes=((1, 2), (3, 4), (1, 2), (3, 4)),
    )  # fmt: skip
    found = [
        prefix_hits(
            load, replicas=1, capacity_tokens=blocks * HASH_BLOCK_TOKENS, policy="round-robin"
        ).cached_tokens.tolist()
        for blocks in (4, 3, 2)
    ]
    whole = 2 * HASH_BLOCK_TOKENS - 1  # the last token is computed
    assert found == [[0, 0, whole, whole], [0, 0, HASH_BLOCK_TOKENS, HASH_BLOCK_TOKENS], [0, 0, 0, 0]]
