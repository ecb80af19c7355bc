"""Prefix caches of a fleet as a trace meets them: which prompt tokens are found, by routing policy.

A trace names the blocks of each prompt by hashes, of which one stands for the block and all before it. Every
replica keeps those that were used last (LRU), as vLLM and SGLang do; what a prompt computes is found by the
next one. How long requests run is left out, so blocks of running requests are evicted like others. Host
memory beside a replica keeps copies of more of them, by the same rule; what is found there alone is read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, get_args

import numpy as np
from numpy.typing import NDArray

from costmodel.serving.simulation.load import Load, Policy

POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
FULLER: Final = 1.5
"""A prefix-aware router leaves the replica that has a prefix at so many times the tokens of the mean.

The factor by which SGLang's router tells its fullest from its emptiest (--balance-rel-threshold, 1.5).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Prompt tokens of each request that its replica had, on its host alone those of `host_tokens`.

    And the replica it went to.
    """

    cached_tokens: NDArray[np.int64]
    host_tokens: NDArray[np.int64]
    replica: NDArray[np.int64]
    input_tokens: NDArray[np.int64]

    @property
    def rate(self) -> float:
        """Share of all prompt tokens that were found."""
        return float(self.cached_tokens.sum() / self.input_tokens.sum())

    @property
    def host_rate(self) -> float:
        """Share of all prompt tokens that were found on hosts alone."""
        return float(self.host_tokens.sum() / self.input_tokens.sum())


def prefix_hits(
    load: Load, *, replicas: int, capacity_tokens: float, policy: Policy, host_tokens: float = 0.0
) -> Hits:
    """Follow a trace with hashes through the caches of its replicas.

    `capacity_tokens` are of one replica, `host_tokens` of the host memory beside it. By turns; to the replica
    that was given the fewest prompt tokens it had to compute; or to the one that has most of the prompt,
    unless it was given far more than the others. The last token of a prompt is always computed.
    """
    size = load.hash_block_tokens
    blocks = max(int(min(capacity_tokens / size, sum(map(len, load.block_hashes)))), 1)
    copies = max(int(host_tokens // size), blocks) if host_tokens else blocks
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]
    beside: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)] if host_tokens else caches
    given = [0] * replicas
    cached, read, went = (np.zeros(len(load), dtype=np.int64) for _ in range(3))
    for i, hashes in enumerate(load.block_hashes):
        chosen = _chosen(policy, i, hashes, beside, given)
        hit_blocks = _cached_blocks(beside[chosen], hashes)
        cached[i], went[i] = min(hit_blocks * size, int(load.input_tokens[i]) - 1), chosen
        if host_tokens:
            read[i] = size * sum(block not in caches[chosen] for block in hashes[:hit_blocks])
            _keep(beside[chosen], hashes, copies)
        given[chosen] += int(load.input_tokens[i]) - int(cached[i])
        _keep(caches[chosen], hashes, blocks)
    return Hits(
        cached_tokens=cached,
        host_tokens=np.minimum(read, cached),
        replica=went,
        input_tokens=load.input_tokens,
    )


def routed(load: Load, hits: Hits, *, s_per_host_token: float = 0.0) -> Load:
    """The load as its replicas meet it: what they need not compute, and the time in which it is read back."""
    lookup_s = np.asarray(hits.host_tokens * s_per_host_token, dtype=np.float64)
    return replace(load, cached_tokens=hits.cached_tokens, replica=hits.replica, lookup_s=lookup_s)


def _chosen(
    policy: Policy,
    number: int,
    hashes: Sequence[int],
    caches: Sequence[OrderedDict[int, None]],
    given: Sequence[int],
) -> int:
    """The replica that a request is sent to."""
    if policy == "round-robin":
        return number % len(caches)
    emptiest = min(range(len(caches)), key=lambda replica: given[replica])
    if policy == "least-loaded":
        return emptiest
    best = max(
        range(len(caches)), key=lambda replica: (_cached_blocks(caches[replica], hashes), -given[replica])
    )
    fair = given[best] <= FULLER * sum(given) / len(given)
    return best if fair and _cached_blocks(caches[best], hashes) else emptiest


def _cached_blocks(cache: OrderedDict[int, None], hashes: Sequence[int]) -> int:
    """Blocks from the start of a prompt that a cache has."""
    return next((n for n, block in enumerate(hashes) if block not in cache), len(hashes))


def _keep(cache: OrderedDict[int, None], hashes: Sequence[int], most: int) -> None:
    """Put a prompt's blocks in, the first of it last, so that its end is evicted before its start."""
    for block in reversed(hashes):
        cache[block] = None
        cache.move_to_end(block)
    while len(cache) > most:
        cache.popitem(last=False)
