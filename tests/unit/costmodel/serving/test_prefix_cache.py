"""Prefix caches of a fleet: what each routing policy finds again."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.serving.simulation.load import HASH_BLOCK_TOKENS, Load, thin
from costmodel.serving.simulation.prefix_cache import POLICIES, prefix_hits, routed
from costmodel.serving.simulation.scheduler import Scheduler
from costmodel.serving.simulation.simulator import simulate, simulate_apart
from costmodel.serving.step_table import AttentionGrid, StepTimes

AMPLE = 1e9
TIMES = StepTimes(
    linear_s=tuple(1e-5 * tokens for tokens in range(4_000)), graph_linear_s=(0.01,) * 17, decode_attention_s=(0.0,) * 17,
    decode_attention_s_per_token=(1e-8,) * 17,
    prefill_attention=AttentionGrid(query_tokens=(0, 10**6), past_tokens=(0, 10**6), seconds=((0, 0), (0, 0))),
)  # fmt: skip
RULES = Scheduler(token_budget=2048, max_batch=16, kv_capacity_tokens=100_000)


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


def test_hosts_keep_what_replicas_forget_and_it_is_told_apart() -> None:
    """Two blocks of cache and four on the host: every second prompt finds both of its blocks, on the host alone."""
    load = conversations(2, 1)
    load = replace(
        load, input_tokens=np.full(4, 2 * HASH_BLOCK_TOKENS), output_tokens=np.ones(4, dtype=np.int64),
        cached_tokens=np.zeros(4, dtype=np.int64), arrival_s=np.arange(4.0),
        block_hashes=((1, 2), (3, 4), (1, 2), (3, 4)),
    )  # fmt: skip
    small = {"replicas": 1, "capacity_tokens": 2 * HASH_BLOCK_TOKENS, "policy": "round-robin"}
    alone = prefix_hits(load, **small)  # type: ignore[arg-type]  # words of a test
    beside = prefix_hits(load, **small, host_tokens=4 * HASH_BLOCK_TOKENS)  # type: ignore[arg-type]  # same
    assert alone.cached_tokens.tolist() == [0, 0, 0, 0]
    assert beside.cached_tokens.tolist() == [0, 0, *[2 * HASH_BLOCK_TOKENS - 1] * 2]
    assert beside.host_tokens.tolist() == beside.cached_tokens.tolist()
    assert beside.host_rate == beside.rate


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("host", [0, 8, 64, AMPLE])
def test_more_host_memory_never_finds_less_by_turns_and_no_more_than_there_is(
    policy: str, host: float
) -> None:
    """What is found lies between that of the cache alone and that of one without an end; less of it on hosts."""
    load = conversations(9, 6)
    size = HASH_BLOCK_TOKENS
    found, least, most = (
        prefix_hits(load, replicas=3, capacity_tokens=own, policy=policy, host_tokens=beside)  # type: ignore[arg-type]
        for own, beside in ((6 * size, host * size), (6 * size, 0), (AMPLE, 0))
    )
    assert (found.host_tokens <= found.cached_tokens).all()
    assert (found.cached_tokens < load.input_tokens).all()
    if policy == "round-robin":  # the others send prompts elsewhere where more is found
        assert (least.cached_tokens <= found.cached_tokens).all()
        assert (found.cached_tokens <= most.cached_tokens).all()


def test_replicas_that_a_router_fed_are_simulated_each_with_its_own() -> None:
    """Together they are what each is alone, in the order of the load; a read from the host delays its request."""
    load = conversations(5, 4)
    load = replace(load, arrival_s=load.arrival_s * 0.05, output_tokens=np.full(len(load), 20))
    hits = prefix_hits(load, replicas=3, capacity_tokens=AMPLE, policy="prefix-aware")
    fed = routed(load, hits)
    whole = simulate_apart(TIMES, RULES, fed, 3)
    assert whole.replicas == 3
    assert whole.prefilled_tokens == int((load.input_tokens - hits.cached_tokens).sum())
    for which in range(3):
        mine = hits.replica == which
        alone = simulate(TIMES, RULES, thin(fed, 3, which))
        assert whole.finish_s[mine].tolist() == alone.finish_s.tolist()
        assert whole.arrival_s[mine].tolist() == load.arrival_s[mine].tolist()
    hosted = prefix_hits(load, replicas=3, capacity_tokens=1, policy="prefix-aware", host_tokens=AMPLE)
    read = hosted.host_tokens > 0
    assert read.any()
    slow = simulate_apart(TIMES, RULES, routed(load, hosted, s_per_host_token=1.0), 3)
    assert (slow.ttft_s[read] >= hosted.host_tokens[read]).all()
