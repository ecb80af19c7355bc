"""Whether a server starts: the longest request that it takes, against the cache that its weights leave."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.serving.checkpoints import known_checkpoint, wider_bytes
from costmodel.serving.memory import kv_bytes_per_token, memory_breakdown
from planner.audit.serving.server import Server
from planner.serving.plan import ServingRequest
from planner.serving.replica import WHOLE, most_requests, token_budgets
from planner.serving.space import deployment_of
from topology.base.units import format_bytes
from topology.fabric.hierarchy import Hierarchy

UNCERTAINTY = 0.05
"""Share by which estimated caches differ from those that engines printed
(`tests/published/costmodel/serving/test_kv_cache.py`); taken of all that is estimated, since a cache is
what that leaves: beside weights that nearly fill the GPU a small one is known to no twentieth of itself."""
WHOLE_MEMORY = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What one GPU of a server holds when it starts.

    Attributes:
        weights_bytes: Weights, with what is known of the checkpoint.
        cache_bytes: Cache that is left; below 0 where the weights alone are too much.
        cache_tokens: Tokens of a full-length request that it holds, over an attention rank.
        longest: Tokens of a full-length request: as was asked, or the model's context.
        request_bytes: Cache of one such request.
        estimated_bytes: What the cache lies beside and nobody printed: engine, activations, and weights but
            those of a known checkpoint.
        certain: Whether the GPUs are known; a verdict on a guess has no licence.
        refuses: Whether the engine refuses to start where one such request does not fit.
        known: What is known of the checkpoint, in words.
        whole_memory: Whether the engine was given all memory.
    """

    weights_bytes: float
    cache_bytes: float
    cache_tokens: int
    longest: int
    request_bytes: float
    estimated_bytes: float
    refuses: bool
    certain: bool = True
    known: str = ""
    whole_memory: bool = False

    @property
    def concurrency(self) -> float:
        """Full-length requests that the cache holds at once."""
        return self.cache_tokens / self.longest

    @property
    def starts(self) -> bool | None:
        """False where the upper end of the cache is too small, None where only the estimate is."""
        if self.concurrency >= 1 or not self.refuses:
            return True
        most_bytes = self.cache_bytes + UNCERTAINTY * (self.estimated_bytes + max(self.cache_bytes, 0.0))
        return False if self.certain and most_bytes < self.request_bytes else None

    @property
    def finding(self) -> tuple[str, str] | None:
        """What is wrong, and what helps."""
        cache = f"{max(self.cache_tokens, 0):,} tokens"
        if self.concurrency < 1:
            verb = {False: "does not start", None: "may not start", True: "cannot serve its longest request"}
            why = f"one request of {self.longest:,} tokens is longer than the cache, which holds {cache}"
            known = f"; {self.known}" if self.known else ""
            return f"the server {verb[self.starts]}: {why}{known}", (
                "allow requests no longer than the cache that the engine prints, or take narrower weights "
                "or cache, or more GPUs"
            )
        if self.whole_memory:
            return (
                "the engine is given all memory of a GPU: nothing is left for what it does not count",
                "give a share such as 0.95",
            )
        return None

    @property
    def words(self) -> str:
        """The memory in the engine's own terms."""
        weights, cache = format_bytes(self.weights_bytes), format_bytes(max(self.cache_bytes, 0.0))
        tokens = f"{max(self.cache_tokens, 0):,} tokens"
        return (
            f"weights {weights} a GPU, cache {cache} a GPU, {tokens}; "
            f"maximum concurrency for {self.longest:,} tokens a request: {max(self.concurrency, 0.0):.2f}x"
        )


def start_of(server: Server, request: ServingRequest, hierarchy: Hierarchy) -> Start:
    """What a server holds when it starts."""
    deployment = deployment_of(request, hierarchy, server.weights, server.layout)
    budget = server.token_budget or token_budgets(deployment, request.job, WHOLE)[0]
    parts = memory_breakdown(deployment, token_budget=budget, max_batch=most_requests(deployment))
    known = known_checkpoint(server.checkpoint)
    wider = wider_bytes(deployment, known) if known is not None else 0.0
    stack, memory = deployment.stack, hierarchy.gpu.memory_bytes
    fraction = stack.memory_fraction if server.memory_fraction is None else server.memory_fraction
    held = parts.weights_bytes + wider + parts.overhead_bytes
    cache = {
        "memory": fraction * memory - held - parts.activations_bytes,
        "static": fraction * memory - held,
        "free": fraction * (memory - held - parts.activations_bytes),
    }[stack.fraction_of]
    longest = server.longest or server.model.max_sequence_length
    token_bytes = kv_bytes_per_token(deployment, longest)
    return Start(
        weights_bytes=parts.weights_bytes + wider,
        cache_bytes=cache,
        cache_tokens=int(cache // token_bytes),
        longest=longest,
        request_bytes=longest * token_bytes,
        estimated_bytes=parts.overhead_bytes
        + parts.activations_bytes
        + parts.weights_bytes * (known is None),
        certain=server.knows_gpu,
        refuses=stack.refuses_long_context and not server.fits_length,
        known="" if known is None else f"{known.unquantized} ({known.source})",
        whole_memory=fraction >= WHOLE_MEMORY and stack.fraction_of == "memory",
    )
