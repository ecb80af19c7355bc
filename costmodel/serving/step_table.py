"""Seconds of one engine step, tabulated once per configuration so that a simulation can look them up.

A step computes `prefill` prompt tokens and one token of each of `b` decoding requests, whose KV cache holds
`K` tokens in all:

    t = linear(b + prefill) + decode_attention(b, K) + Σ prefill_attention(chunk, past)    with prompts
    t = graph_linear(b)     + decode_attention(b, K)                                        decode only

Decode attention is linear in K at a given batch (it streams the cache), which lets the simulator take many
decode steps in one jump.

Legend: ``b`` decoding requests, ``K`` tokens in their KV caches, ``q`` query tokens, ``past`` tokens before
them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGrid:
    """Seconds of prefill attention of one prompt chunk over all layers.

    On a grid of chunk and past tokens.
    """

    query_tokens: tuple[float, ...]
    past_tokens: tuple[float, ...]
    seconds: tuple[tuple[float, ...], ...]

    def at(self, query: float, past: float) -> float:
        """Seconds for `query` tokens after `past` ones, bilinear between grid points, the last cell extended.

        >>> grid = AttentionGrid(query_tokens=(0, 10), past_tokens=(0, 10), seconds=((0, 0), (1, 3)))
        >>> grid.at(5, 5)
        1.0
        """
        i = min(max(bisect_right(self.query_tokens, query) - 1, 0), len(self.query_tokens) - 2)
        j = min(max(bisect_right(self.past_tokens, past) - 1, 0), len(self.past_tokens) - 2)
        u = (query - self.query_tokens[i]) / (self.query_tokens[i + 1] - self.query_tokens[i])
        v = (past - self.past_tokens[j]) / (self.past_tokens[j + 1] - self.past_tokens[j])
        low, high = self.seconds[i], self.seconds[i + 1]
        return (1 - u) * ((1 - v) * low[j] + v * low[j + 1]) + u * ((1 - v) * high[j] + v * high[j + 1])

    def along(self, query: int, past: int, count: int) -> Iterator[float]:
        """The same for each of `count` chunks of a prompt, of `query` tokens each, the first after `past`."""
        i = min(max(bisect_right(self.query_tokens, query) - 1, 0), len(self.query_tokens) - 2)
        u = (query - self.query_tokens[i]) / (self.query_tokens[i + 1] - self.query_tokens[i])
        low, high, knots = self.seconds[i], self.seconds[i + 1], self.past_tokens
        last = len(knots) - 2
        j = min(max(bisect_right(knots, past) - 1, 0), last)
        for at in range(past, past + count * query, query):
            while j < last and at >= knots[j + 1]:
                j += 1
            v = (at - knots[j]) / (knots[j + 1] - knots[j])
            yield (1 - u) * ((1 - v) * low[j] + v * low[j + 1]) + u * ((1 - v) * high[j] + v * high[j + 1])


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Step times of one replica of an engine.

    `linear_s[m]`: everything but attention, in a step that holds prompt tokens, at m tokens of every rank;
    `shared_s[m]` the part of it that attention ranks do together (routed experts), empty without any.
    `graph_linear_s[b]`, `decode_attention_s[b]`, `decode_attention_s_per_token[b]`: at b decoding
    requests in the whole replica. `ranks` attention-data-parallel ranks share the requests and step
    together. `tokens_per_step` is what speculative decoding yields per request and step (1 without).
    `request_s` is the mean time from sending a request until the engine has it (HTTP, tokenisation),
    `response_s` the time from its first token until the client sees it. `stages` pipeline stages hold as
    many microbatches: prompt chunks occupy one stage each (`linear_s` and `prefill_attention` are of the
    slowest stage), the decode tables are of a whole round. A prompt's last chunk is `passing` times as long
    in the other stages as in the slowest one: stages − 1 where all are alike.
    """

    linear_s: tuple[float, ...]
    graph_linear_s: tuple[float, ...]
    decode_attention_s: tuple[float, ...]
    decode_attention_s_per_token: tuple[float, ...]
    prefill_attention: AttentionGrid
    shared_s: tuple[float, ...] = ()
    ranks: int = 1
    tokens_per_step: float = 1.0
    request_s: float = 0.0
    response_s: float = 0.0
    stages: int = 1
    passing: float = 0.0

    def of_ranks(self, share: int) -> StepTimes:
        """The times of one in `share` of the attention ranks, which all hold as many requests.

        A step takes as long; it has a share of the batch, and a cached token weighs `share` times as much.
        """
        return replace(
            self,
            graph_linear_s=self.graph_linear_s[::share],
            decode_attention_s=self.decode_attention_s[::share],
            decode_attention_s_per_token=tuple(
                share * slope for slope in self.decode_attention_s_per_token[::share]
            ),
            ranks=self.ranks // share,
        )

    @property
    def max_batch(self) -> int:
        """Most decoding requests the tables cover."""
        return len(self.graph_linear_s) - 1

    def decode_s(self, batch: int, kv_tokens: float) -> float:
        """Seconds of one decode step of `batch` requests holding `kv_tokens` in all."""
        fixed = self.graph_linear_s[batch] + self.decode_attention_s[batch]
        return fixed + self.decode_attention_s_per_token[batch] * kv_tokens

    def decode_steps_s(self, most: int, context: float) -> NDArray[np.float64]:
        """Seconds of decode steps of 1…`most` requests with `context` tokens each; shape (most,)."""
        fixed, slope = self.decoding
        cached = np.arange(1, most + 1) * context
        return np.asarray(fixed[1 : most + 1] + slope[1 : most + 1] * cached)

    def linear_at(self, tokens: int, mean: int) -> float:
        """Seconds of the linear part at `tokens` of the busiest rank and `mean` tokens per rank."""
        seconds = _at(self.linear_s, tokens)
        if mean < tokens and self.shared_s:
            seconds += _at(self.shared_s, mean) - _at(self.shared_s, tokens)
        return seconds

    def prefill_s(self, tokens: int, past: int = 0) -> float:
        """Seconds of a step that computes one prompt chunk, on one rank, and nothing else."""
        return self.linear_at(tokens, -(-tokens // self.ranks)) + self.prefill_attention.at(tokens, past)

    @cached_property
    def chunks_s(self) -> dict[tuple[int, int], float]:
        """Seconds of prompt attention that simulations have looked up, by chunk and past tokens."""
        return {}

    @cached_property
    def served(self) -> dict[Hashable, bool]:
        """Whether a replica keeps its limits, by all that it is asked beside these times."""
        return {}

    @cached_property
    def decoding(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Seconds of a decode step with empty caches, and of a token in them, at 0…max_batch requests."""
        fixed = np.asarray(self.graph_linear_s) + np.asarray(self.decode_attention_s)
        return fixed, np.asarray(self.decode_attention_s_per_token)

    @cached_property
    def least_pair_s(self) -> float:
        """Least seconds of prompt attention per query–key pair, on its grid."""
        grid = self.prefill_attention
        query = np.asarray(grid.query_tokens)[:, None]
        pairs = query * np.asarray(grid.past_tokens)[None, :] + query * query / 2
        return float((np.asarray(grid.seconds) / pairs).min())

    @cached_property
    def linear(self) -> NDArray[np.float64]:
        """`linear_s` as an array."""
        return np.asarray(self.linear_s)

    @cached_property
    def least_linear(self) -> NDArray[np.float64]:
        """The least of `linear_s` from each entry on: the tokens of one rank, and none on the others."""
        alone = self.linear
        if self.shared_s:
            shared, mean = np.asarray(self.shared_s), -(-np.arange(len(alone)) // self.ranks)
            alone = alone + (shared[mean] - shared)
        return np.asarray(np.minimum.accumulate(alone[::-1])[::-1], dtype=np.float64)


def _at(table: tuple[float, ...], tokens: int) -> float:
    """An entry of a table of seconds; past its end it grows in proportion."""
    last = len(table) - 1
    return table[tokens] if tokens <= last else table[last] * tokens / last
