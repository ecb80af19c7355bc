"""Whether a server starts: the longest request that it takes, against the cache that its weights leave."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.models.stored import PartName
from costmodel.serving.deployment import Deployment, is_as_published
from costmodel.serving.engine import at_version, scheduler_default, serving_stack
from costmodel.serving.memory import kv_bytes_per_token, memory_breakdown, tile_share
from planner.audit.serving.refused import refusal_of
from planner.audit.serving.server import Server
from planner.serving.plan import ServingRequest
from planner.serving.replica import most_requests
from planner.serving.space import deployment_of
from topology.base.units import format_bytes
from topology.fabric.hierarchy import Hierarchy

ENGINE_UNCERTAINTY = 0.15
"""Share by which what engines take beside weights and cache differs from what their logs leave for it
(`tests/published/costmodel/serving/test_memory_ledger.py`): at most 10 % in five of seven rows, more in older
versions."""
WEIGHTS_UNCERTAINTY = 0.015
"""The same of weights (`tests/published/costmodel/serving/test_memory_ledger.py`)."""
WHOLE_MEMORY = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What one GPU of a server holds when it starts.

    Attributes:
        weights_bytes: Weights, as the checkpoint stores them and the engine's kernels hold them.
        cache_bytes: Cache that is left; below 0 where the weights alone are too much.
        cache_tokens: Tokens of a full-length request that it holds, over an attention rank.
        longest: Tokens of a full-length request: as was asked, or the model's context.
        request_bytes: Cache of one such request.
        beside_bytes: What the engine and a step's activations take.
        certain: Whether the GPUs are known; a verdict on a guess has no licence.
        refuses: Whether the engine refuses to start where one such request does not fit.
        wide: What of the checkpoint is wider than its name says, in words.
        whole_memory: Whether the engine was given all memory.
        wide_cache: Whether the cache is of sixteen bits.
        remedy: Settings with which it starts, in words; "" where none is known.
        refusal: Why the engine refuses its settings whatever they take, and what helps.
    """

    weights_bytes: float
    cache_bytes: float
    cache_tokens: int
    longest: int
    request_bytes: float
    beside_bytes: float
    refuses: bool
    certain: bool = True
    wide: str = ""
    whole_memory: bool = False
    wide_cache: bool = False
    remedy: str = ""
    refusal: tuple[str, str] | None = None

    @property
    def concurrency(self) -> float:
        """Full-length requests that the cache holds at once."""
        return self.cache_tokens / self.longest

    @property
    def starts(self) -> bool | None:
        """False where the upper end of the cache is too small, None where only the estimate is.

        An engine that takes longer requests than its cache starts all the same with any cache at all.
        """
        if self.whole_memory or self.refusal is not None:
            return False
        needed = self.request_bytes if self.refuses else 0.0
        if self.cache_bytes >= needed and self.cache_bytes > 0:
            return True
        most_bytes = self.cache_bytes + self.doubt_bytes
        return False if self.certain and most_bytes < max(needed, 1.0) else None

    @property
    def doubt_bytes(self) -> float:
        """Bytes by which the cache may be larger or smaller than estimated."""
        return ENGINE_UNCERTAINTY * self.beside_bytes + WEIGHTS_UNCERTAINTY * self.weights_bytes

    @property
    def longest_tokens(self) -> int:
        """The longest request that the cache holds, up to what the server takes."""
        return max(min(self.cache_tokens, self.longest), 0)

    @property
    def why(self) -> str:
        """The verdict's reason in one line; "" where the server starts and nothing is wrong."""
        return self.finding[0] if self.finding else ""

    @property
    def finding(self) -> tuple[str, str] | None:
        """What is wrong, and what helps."""
        if self.refusal is not None:
            return f"the server does not start: {self.refusal[0]}", self.refusal[1]
        if self.whole_memory:
            why = "the engine is given all memory of a GPU (1.0), of which the driver's context takes a part"
            return f"the server does not start: {why}", "give a share such as 0.95"
        if self.starts and self.concurrency >= 1:
            return None
        verb = {False: "does not start", None: "may not start", True: "cannot serve its longest request"}
        needed = format_bytes(self.request_bytes)
        narrow = f" ({format_bytes(self.request_bytes / 2)} in fp8)" if self.wide_cache else ""
        why = (
            f"one request of {self.longest:,} tokens needs {needed} of cache{narrow}, longer than the cache, "
            f"which holds {max(self.cache_tokens, 0):,} tokens"
        )
        if self.cache_bytes <= 0:
            short, request = format_bytes(-self.cache_bytes), why.partition(", longer")[0]
            why = f"weights and engine leave no memory for a cache, {short} too much; {request}"
        wide = f"; {self.wide}" if self.wide else ""
        return f"the server {verb[self.starts]}: {why}{wide}", self.remedy or (
            "take narrower weights or cache, or more GPUs"
        )

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
    """What a server holds when it starts, and the settings with which it does where it does not."""
    start = replace(_start_as_given(server, request, hierarchy), refusal=refusal_of(server))
    if start.refusal is not None or (start.starts and start.concurrency >= 1):
        return start
    return replace(start, remedy=_remedy(server, request, hierarchy))


LEAST_LENGTH = 2048
"""Tokens of the shortest request to which a server is told to be held."""


def _remedy(server: Server, request: ServingRequest, hierarchy: Hierarchy) -> str:
    """The fewest settings with which the server starts: its length, its cache's format, its memory and batch.

    A length is one that the cache holds even if it is as small as the estimate may be off by; with the
    smallest steps and batch it is the estimate.
    """
    stack = serving_stack(server.engine)
    more = max(LARGER_SHARE, server.memory_fraction or stack.memory_fraction)
    share, narrow = f"{100 * more:.0f} % of the memory", replace(server, kv_dtype="fp8")
    larger = replace(server, memory_fraction=more)
    most = max(more, LARGEST_SHARE)
    least = replace(narrow, memory_fraction=most, max_batch=FEW_REQUESTS, token_budget=SMALL_STEP)
    small = (
        f"{100 * most:.0f} % of the memory",
        "a cache of fp8",
        f"{FEW_REQUESTS} requests at once",
        f"steps of {SMALL_STEP:,} tokens",
    )
    for settings, changed in (
        ((), server),
        ((share,), larger),
        (("a cache of fp8",), narrow),
        (small, least),
    ):
        asked = replace(request, job=replace(request.job, kv_dtype=changed.kv_dtype))
        held = _start_as_given(changed, asked, hierarchy)
        doubt = 0.0 if changed is least else held.doubt_bytes
        tokens = int((held.cache_bytes - doubt) / held.request_bytes * held.longest)
        if tokens >= held.longest and settings:
            return f"give {', '.join(settings)}"
        if tokens >= LEAST_LENGTH:
            length = f"requests of at most {1024 * (tokens // 1024):,} tokens"
            return f"allow {', '.join((length, *settings))}"
    return ""


LARGER_SHARE, LARGEST_SHARE, FEW_REQUESTS, SMALL_STEP = 0.95, 0.97, 64, 2048


LEAST_STEP = 2048
"""Tokens of a step of an engine that computes prompts whole, at least."""


def _start_as_given(server: Server, request: ServingRequest, hierarchy: Hierarchy) -> Start:
    """What a server holds when it starts, with the defaults of its engine's version."""
    deployment = deployment_of(request, hierarchy, server.weights, server.layout)
    stack = at_version(serving_stack(server.engine), server.version)
    fraction = stack.memory_fraction if server.memory_fraction is None else server.memory_fraction
    deployment = replace(deployment, stack=replace(stack, memory_fraction=fraction))
    default = scheduler_default(stack, hierarchy.gpu)
    sequences = server.max_batch or default.max_batch * server.layout.attention_dp
    longest = server.longest or server.model.max_sequence_length
    whole = max(longest, LEAST_STEP) if longest <= stack.whole_prompts else default.token_budget
    budget = server.token_budget or whole
    parts = memory_breakdown(
        deployment, token_budget=budget, max_batch=sequences or most_requests(deployment)
    )
    held = parts.weights_bytes + parts.overhead_bytes
    memory = hierarchy.gpu.memory_bytes
    cache = {
        "memory": fraction * memory - held - parts.activations_bytes,
        "static": min(fraction * memory, memory - parts.activations_bytes) - held,
        "free": fraction * (memory - held - parts.activations_bytes),
    }[stack.fraction_of]
    in_flight = budget * max(stack.batches_in_flight, server.layout.pp)
    token_bytes = kv_bytes_per_token(deployment, longest, in_flight if stack.refuses_long_context else 0)
    return Start(
        weights_bytes=parts.weights_bytes,
        cache_bytes=cache,
        cache_tokens=int(cache // token_bytes),
        longest=longest,
        request_bytes=longest * token_bytes,
        beside_bytes=parts.overhead_bytes + parts.activations_bytes,
        certain=server.knows_gpu,
        refuses=stack.refuses_long_context and not server.fits_length,
        wide=_wide_words(deployment),
        wide_cache=deployment.kv_dtype == "bf16",
        whole_memory=fraction >= WHOLE_MEMORY and stack.fraction_of == "memory",
    )


def _wide_words(deployment: Deployment) -> str:
    """What of a checkpoint is wider than its name says."""
    stored = deployment.model.stored
    if not is_as_published(deployment):
        return ""
    parts: tuple[PartName, ...] = ("attention", "mlp", "shared", "experts")
    wide = [f"{part} in {stored.format_of(part)}" for part in parts if stored.format_of(part)]
    ends = {1: "layer"}.get(stored.edge_layers, f"{stored.edge_layers} layers")
    edges = f"the first and the last {ends} in bf16" if stored.edge_layers else ""
    filled = tile_share(deployment)
    tiles = f"experts filled up to tiles of their kernels, {filled - 1:+.0%}" if filled > 1 else ""
    words = ", ".join(filter(None, (*wide, edges, tiles)))
    return f"the {deployment.weights} checkpoint has {words}" if words else ""
