"""What one GPU of a server holds once it has loaded: weights, cache, tokens, in the terms of its log.

    request(n) = n · bytes of a token among n,   tokens = cache / bytes of a token among `longest`

An engine counts its cache in requests of the longest kind that it takes: a request's windows and states weigh
less on each of its tokens the longer it is. Plans, audits and predictions ask here alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.serving.deployment import Deployment, layers_of_stages, stages_of
from costmodel.serving.engine import scheduler_default
from costmodel.serving.memory import (
    cache_left_bytes,
    kv_bytes_per_token,
    memory_breakdown,
    scarcest_stage,
    whole_blocks,
)
from costmodel.serving.pages import state_page_bytes

MOST_BATCH = 512
"""Requests of an attention rank at once: vLLM 0.33 captures no graph of a larger step by itself
(`_set_cudagraph_sizes`); measured runs have up to 1,024."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCache:
    """What one GPU holds, bytes.

    Attributes:
        weights_bytes: Weights, as the checkpoint stores them and the engine's kernels hold them.
        cache_bytes: Cache that is left; below 0 where the weights alone are too much.
        beside_bytes: What the engine and a step's activations take.
        longest: Tokens of the longest request that the server takes.
        request_bytes: Cache of one such request, as the engine asks for it at its start.
        kept_bytes: Cache of one once it is computed: without a step's tokens in its windows; 0 where its log
            says what it asks.
        asked_share: What the engine asks of the cache for one at its start, over that: more than 1 where it
            asks a stage for all layers.
        state_page_bytes: Of a page of its pool, of which a request that runs needs one for its state; 0
            without.
        block_tokens: Tokens of a block of the cache, which engines hand out whole.
    """

    weights_bytes: float
    cache_bytes: float
    beside_bytes: float
    longest: int
    request_bytes: float
    kept_bytes: float = 0.0
    asked_share: float = 1.0
    state_page_bytes: float = 0.0
    block_tokens: int = 1

    @property
    def state_pages(self) -> int:
        """States that its pool has room for (vLLM's Mamba cache blocks); 0 of models without."""
        return int(max(self.cache_bytes, 0.0) // self.state_page_bytes) if self.state_page_bytes else 0

    @property
    def cache_tokens(self) -> int:
        """Tokens of longest requests, in whole blocks, of an attention rank's cache; below 0 without one."""
        return whole_blocks(self.cache_bytes, self.request_bytes / self.longest, self.block_tokens)

    @property
    def concurrency(self) -> float:
        """Longest requests that it holds at once."""
        return self.cache_tokens / self.longest

    @property
    def kept_concurrency(self) -> float:
        """Longest requests that it keeps once they are computed; never fewer than it holds as asked."""
        kept = self.cache_bytes / self.kept_bytes if self.kept_bytes > 0 else 0.0
        return max(kept, self.concurrency)

    @property
    def longest_tokens(self) -> int:
        """The longest request that it holds and its engine lets in, up to what the server takes."""
        return max(min(int(self.cache_tokens / self.asked_share), self.longest), 0)


def most_requests(deployment: Deployment) -> int:
    """Requests that a replica runs at once at most; each of its attention ranks schedules its own."""
    return MOST_BATCH * deployment.layout.attention_dp


def sampled_requests(deployment: Deployment, max_batch: int | None) -> int:
    """Requests for whose samples the engine keeps memory, over all ranks: as it is told, else its default."""
    default = scheduler_default(deployment.stack, deployment.hierarchy.gpu).max_batch
    return max_batch or default * deployment.layout.attention_dp or most_requests(deployment)


def held_cache(
    deployment: Deployment, *, token_budget: int, max_batch: int | None, longest: int, shortens: bool = False
) -> HeldCache:
    """What a GPU of a server holds; where its stages are not alike, one of the scarcest.

    Args:
        deployment: The server, its engine with its memory setting.
        token_budget: Tokens of a step of an attention rank.
        max_batch: Requests at once, over all ranks; None is the engine's default.
        longest: Tokens of the longest request: as was asked, or the model's context.
        shortens: Whether the engine takes for that what its cache holds, where that is less.
    """
    sampled = sampled_requests(deployment, max_batch)
    replica = deployment
    deployment = scarcest_stage(deployment, token_budget=token_budget, max_batch=sampled)
    parts = memory_breakdown(deployment, token_budget=token_budget, max_batch=sampled)
    cache = cache_left_bytes(deployment, token_budget=token_budget, max_batch=sampled)
    in_flight = tokens_in_flight(deployment, token_budget)
    if shortens:
        longest = longest_held(deployment, cache, longest, in_flight) or longest
    return HeldCache(
        weights_bytes=parts.weights_bytes,
        cache_bytes=cache,
        beside_bytes=parts.overhead_bytes + parts.activations_bytes,
        longest=longest,
        request_bytes=longest * kv_bytes_per_token(deployment, longest, in_flight),
        kept_bytes=longest * kv_bytes_per_token(deployment, longest),
        asked_share=_asked_share(replica, cache, token_budget, sampled),
        state_page_bytes=state_page_bytes(deployment),
        block_tokens=deployment.stack.kv_block_tokens,
    )


def _asked_share(replica: Deployment, cache_bytes: float, token_budget: int, max_batch: int) -> float:
    """What an engine that asks every stage for all layers asks of the scarcest one, over its own layers.

    It compares a request of all layers with the least cache of all stages.
    """
    if not replica.stack.asks_all_layers or replica.layout.pp == 1 or cache_bytes <= 0:
        return 1.0
    stages = stages_of(replica)
    scarcest = scarcest_stage(replica, token_budget=token_budget, max_batch=max_batch)
    least = min(cache_left_bytes(each, token_budget=token_budget, max_batch=max_batch) for each in stages)
    layers = layers_of_stages(replica)
    stage_layers = max(layers) if scarcest.stage is None else layers[scarcest.stage]
    return replica.model.num_layers / stage_layers * cache_bytes / max(least, 1.0)


def tokens_in_flight(deployment: Deployment, token_budget: int) -> int:
    """Tokens of steps for which a window has room, where the engine asks at its start; else 0."""
    stack = deployment.stack
    steps = max(stack.batches_in_flight, deployment.layout.pp)
    return token_budget * steps if stack.refuses_long_context else 0


def longest_held(deployment: Deployment, cache_bytes: float, most: int, in_flight: int) -> int:
    """Tokens of the longest request, up to `most`, that so much cache holds; 0 where it holds none.

    Whole blocks, or all of `most`. Bisection, as vLLM finds `--max-model-len auto` (estimate_max_model_len):
    a longer request keeps no less.
    """
    block = deployment.stack.kv_block_tokens

    def fits(tokens: int) -> bool:
        per_token = kv_bytes_per_token(deployment, tokens, in_flight)
        return whole_blocks(cache_bytes, per_token, block) >= tokens

    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low // block * block
