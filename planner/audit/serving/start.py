"""Whether a server starts: the longest request that it takes, against the cache that its weights leave."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from costmodel.models.stored import PartName
from costmodel.parallel.divisions import HEADS
from costmodel.serving.deployment import Deployment, is_as_published, layers_of_stages, weight_bytes
from costmodel.serving.engine import at_version, scheduler_default, serving_stack, without_overlap
from costmodel.serving.held import (
    HeldCache,
    held_cache,
    longest_held,
    sampled_requests,
    tokens_in_flight,
)
from costmodel.serving.memory import scarcest_stage, tile_share
from costmodel.serving.memory_share import memory_share
from costmodel.serving.partition import roomiest_layers
from planner.audit.serving.logged import as_printed, prints_cache
from planner.audit.serving.refused import BrokenLaw, converts_e4m3, refusal_of
from planner.audit.serving.server import Server
from planner.audit.serving.stages import roomier
from planner.serving.plan import ServingRequest
from planner.serving.space import deployment_of, partition_words
from topology.base.units import GIB, format_bytes
from topology.fabric.hierarchy import Hierarchy
from topology.hardware.datasheets import allocatable_bytes, shares_host_memory

ENGINE_UNCERTAINTY = 0.15
"""Share by which what engines take beside weights and cache differs from what their logs leave for it
(`tests/published/costmodel/serving/test_memory_ledger.py`): at most 13 % in six rows, more in older versions
and where graphs are counted."""
LEAST_DOUBT_BYTES = 0.5 * GIB
"""The least of it: cards that hold little beside them take 0.2 to 0.85 GiB outside PyTorch by their logs."""
WEIGHTS_UNCERTAINTY = 0.015
"""The same of weights (`tests/published/costmodel/serving/test_memory_ledger.py`)."""
HOST_BYTES, HOSTS_BYTES = 4.5 * GIB, 12.5 * GIB
"""What vLLM may count besides where the host has the same memory, on one host and on several.

It looks at what the host has left, so that compilers, loaders and other processes are its own (vllm pull
55828). Of four servers on one GB10 it was 0 to 2.3 GiB, a loader adds 4.4; of one on two it was 12.4
(eugr/spark-vllm-docker issue 396). A compiler's 31 GiB of another thread are not held (its pull 286)."""
WHOLE_MEMORY = 1.0
MOST_KEPT = 1.5
"""Times as many requests as its engine counts at its start that a cache keeps, from which that is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(HeldCache):
    """What one GPU of a server holds when it starts, and whether it does.

    Attributes:
        refuses: Whether the engine refuses to start where one longest request does not fit.
        certain: Whether the GPUs are known; a verdict on a guess has no licence.
        guess: The kind of GPU that was taken where none is known; "" where it is.
        uncounted: Flags that move memory, or may, and that nothing reads; no verdict of memory beside them.
        exact: Whether the cache is stated or printed, and no estimate.
        estimate: Where its log prints the cache, what was estimated without it, in words.
        knows_longest: Whether the longest request is said, or that of the checkpoint.
        wide: What of the checkpoint is wider than its name says, in words.
        states: Requests of an attention rank that may run at once, whose states the cache must hold; 0 where
            the engine does not ask.
        says_states: Whether their number is said, or the release's default.
        whole_memory: Whether the engine was given all memory.
        wide_cache: Whether the cache is of sixteen bits.
        remedy: Settings with which it starts, in words; "" where none is known.
        computed_share: Of the memory, where the engine computes that as it starts; 0 where it is told.
        host_bytes: What the host may take of the same memory while the engine loads, which it counts; 0 where
            each has its own.
        scarcest: The stage that is told of, where stages are not alike, in words; else "".
        refusal: Why the engine refuses its settings, or may, whatever they take, and what helps.
    """

    refuses: bool
    certain: bool = True
    guess: str = ""
    uncounted: tuple[str, ...] = ()
    exact: bool = False
    estimate: str = ""
    knows_longest: bool = True
    wide: str = ""
    states: int = 0
    says_states: bool = False
    whole_memory: bool = False
    wide_cache: bool = False
    remedy: str = ""
    computed_share: float = 0.0
    host_bytes: float = 0.0
    scarcest: str = ""
    refusal: BrokenLaw | None = None

    @property
    def starts(self) -> bool | None:
        """False where the upper end of the cache is too small, None where only the estimate is.

        None, too, where the GPUs are a guess: nothing of their memory is a verdict then; and where the lower
        end holds fewer states than requests may run.
        """
        if self.whole_memory or (self.refusal is not None and self.refusal.certain):
            return False
        if not self.certain:
            return None
        if self.holds:
            known = (self.knows_longest or not self.refuses) and not self.host_may_fill
            return True if self.refusal is None and known and self.holds_states else None
        most_bytes = self.cache_bytes + self.doubt_bytes
        needed_bytes = self._needed_bytes if self.knows_longest else self._states_bytes
        return False if most_bytes < max(needed_bytes, 1.0) else None

    @property
    def _needed_bytes(self) -> float:
        """Cache without which the engine refuses to start."""
        return max(self._asked_bytes, self._states_bytes)

    @property
    def _asked_bytes(self) -> float:
        """Cache of one longest request, of an engine that refuses to start without it."""
        return self.request_bytes * self.asked_share if self.refuses else 0.0

    @property
    def _states_bytes(self) -> float:
        """Cache of the states of all requests that may run at once."""
        return self.states * self.state_page_bytes

    @property
    def holds_states(self) -> bool:
        """Whether the lower end of the cache holds them."""
        return not self.states or self.sure_states >= self.states

    @property
    def sure_states(self) -> int:
        """States that the lower end of the cache holds."""
        least_bytes = max(self.cache_bytes - self.doubt_bytes, 0.0)
        return int(least_bytes // self.state_page_bytes) if self.state_page_bytes else 0

    @property
    def holds(self) -> bool:
        """Whether the cache, by the estimate, is as large as the engine asks.

        An engine that takes longer requests than its cache starts all the same with any cache at all.
        """
        return self.cache_bytes >= self._needed_bytes and self.cache_bytes > 0

    @property
    def host_may_fill(self) -> bool:
        """Whether what the host takes may leave less cache than a longest request is asked to have."""
        may_take = 0.0 if self.exact else self.host_bytes
        return self.holds and self.cache_bytes - may_take < self._asked_bytes

    @property
    def doubt_bytes(self) -> float:
        """Bytes by which the cache may be larger or smaller than estimated."""
        if self.exact:
            return 0.0
        engine = max(ENGINE_UNCERTAINTY * self.beside_bytes, LEAST_DOUBT_BYTES)
        return engine + WEIGHTS_UNCERTAINTY * self.weights_bytes

    @property
    def why(self) -> str:
        """The verdict's reason in one line; "" where the server starts and nothing is wrong."""
        return self.finding[0] if self.finding else ""

    @property
    def finding(self) -> tuple[str, str] | None:
        """What is wrong, and what helps."""
        if self.refusal is not None and (self.refusal.certain or self.starts is None):
            does = "does not" if self.refusal.certain else "may not"
            return f"the server {does} start: {self.refusal.why}", self.refusal.fix
        if self.whole_memory:
            why = "the engine is given all memory of a GPU (1.0), of which the driver's context takes a part"
            return f"the server does not start: {why}", "give a share such as 0.95"
        if self.cache_bytes >= self.request_bytes and not self.holds_states:
            return self._states_finding
        if self.holds and self.concurrency >= 1:
            return self._host_finding if self.host_may_fill else None
        verb = "cannot serve its longest request"
        if not self.holds:
            verb = "does not start" if self.starts is False else "may not start"
        needed = format_bytes(self.request_bytes)
        narrow = f" ({format_bytes(self.request_bytes / 2)} in fp8)" if self.wide_cache else ""
        why = (
            f"one request of {self.longest:,} tokens needs {needed} of cache{narrow}, longer than the cache, "
            f"which holds {max(self.cache_tokens, 0):,} tokens"
        )
        if not self.knows_longest:
            why += "; its length is a guess, that of another checkpoint of this shape"
        if not self.holds and self.asked_share > 1:
            why += (
                f"; this release asks every stage for all layers of a request, so that "
                f"{self.longest_tokens:,} tokens start (vLLM pull 33698 mends it)"
            )
        if self.cache_bytes <= 0:
            short, request = format_bytes(-self.cache_bytes), why.partition(", longer")[0]
            why = f"weights and engine leave no memory for a cache, {short} too much; {request}"
        wide = f"; {self.wide}" if self.wide else ""
        return f"the server {verb}: {why}{wide}", self.remedy or (
            "take narrower weights or cache, or more GPUs"
        )

    @property
    def _host_finding(self) -> tuple[str, str]:
        """What the host takes of the same memory may be too much."""
        needed, left = format_bytes(self._asked_bytes), format_bytes(self.cache_bytes)
        why = (
            "GPU and host have one memory, and the engine counts what the host takes of it while it loads, "
            f"up to {format_bytes(self.host_bytes)} by servers seen; a request needs {needed} of {left}"
        )
        remedy = "end other programs and drop the page cache first, or state --kv-cache-memory-bytes"
        return f"the server may not start: {why}", f"{remedy} or a shorter --max-model-len"

    @property
    def _states_finding(self) -> tuple[str, str]:
        """More requests may run than the cache has room for states of."""
        does = "does not" if self.starts is False else "may not"
        whose = "as its words say" if self.says_states else "by the release's default"
        why = (
            f"{self.states:,} requests may run at once, {whose}, and the cache has room for "
            f"{self.state_pages:,} states (Mamba cache blocks) of a request each"
        )
        return f"the server {does} start: {why}", self.remedy or "give --max-num-seqs 1, or more GPUs"

    @property
    def words(self) -> str:
        """The memory in the engine's own terms."""
        weights, cache = format_bytes(self.weights_bytes), format_bytes(max(self.cache_bytes, 0.0))
        tokens = f"{max(self.cache_tokens, 0):,} tokens"
        taken = f"on a guessed {self.guess} it would hold " if self.guess else ""
        taken = "by its log " if self.estimate else taken
        without = f"; {', '.join(self.uncounted)} left out, which nothing reads" if self.uncounted else ""
        guessed = "" if self.knows_longest else ", a guess"
        share = (
            f" of {self.computed_share:.3g} of its memory, which the engine computes"
            if self.computed_share
            else ""
        )
        more = self.kept_concurrency > MOST_KEPT * max(self.concurrency, 0.0) > 0
        kept = (
            " with a step's tokens in its windows, as the engine counts at its start; once computed "
            f"{self.kept_concurrency:.2f}x"
        )
        return (
            f"{taken}weights {weights} a GPU, cache {cache} a GPU{self.scarcest}{share}, {tokens}; "
            f"maximum concurrency for {self.longest:,} tokens a request{guessed}: "
            f"{max(self.concurrency, 0.0):.2f}x{kept if more else ''}{without}"
        )


def start_of(server: Server, request: ServingRequest, hierarchy: Hierarchy) -> Start:
    """What a server holds when it starts, and the settings with which it does where it does not."""
    start = _logged(server, _start_as_given(server, request, hierarchy))
    start = replace(start, refusal=refusal_of(server))
    if start.refusal is not None and start.refusal.certain:
        return start
    if start.holds and start.concurrency >= 1 and start.holds_states:
        return start
    remedy = _remedy(server, request, hierarchy) or _whole_attention(server, request, hierarchy)
    split = roomier_split(server, request, hierarchy)
    if split is None:
        return replace(start, remedy=remedy)
    held = _start_as_given(split, request, hierarchy)
    layers = (
        f"{partition_words(server.engine, split.layout.layers)}, with which it holds {held.cache_tokens:,}"
    )
    return replace(start, remedy=f"{remedy}, or set {layers}" if remedy else f"set {layers} tokens")


def _whole_attention(server: Server, request: ServingRequest, hierarchy: Hierarchy) -> str:
    """That ranks share attention, where each holds a copy of its weights and the server starts without."""
    layout = server.layout
    ranks = layout.tp * layout.attention_dp
    if layout.attention_dp == 1 or HEADS.rest(server.model.num_attention_heads, ranks):
        return ""
    shared = replace(layout, tp=ranks, attention_dp=1)
    held = _start_as_given(replace(server, layout=shared), request, hierarchy)
    starts = held.holds and held.concurrency >= 1
    return f"split attention over its ranks, too: tp {shared.tp} without data parallelism" if starts else ""


def roomier_split(server: Server, request: ServingRequest, hierarchy: Hierarchy) -> Server | None:
    """The server with the layers of each stage that hold most tokens; None where its own hold as many."""
    if not roomier(server.layout, server.engine):
        return None
    deployment = server_deployment(server, request, hierarchy)
    step = {
        "token_budget": server_budget(server, deployment),
        "max_batch": sampled_requests(deployment, server.max_batch),
    }
    layers = roomiest_layers(deployment, **step)
    if not layers:
        return None
    other = replace(server, layout=replace(server.layout, layers=layers))
    before, after = (_start_as_given(each, request, hierarchy).cache_tokens for each in (server, other))
    return other if after > (1 + LEAST_ROOM) * max(before, 0) else None


LEAST_ROOM = 0.02
"""Share of tokens that other layers of the stages hold more, at least, to be told."""


def _logged(server: Server, start: Start) -> Start:
    """The start as the server's log prints it: a printed cache is no estimate, whatever else is not known."""
    printed = as_printed(start, server.printed)
    if not prints_cache(server.printed):
        return printed
    words = replace(start, uncounted=()).words
    states = printed.states if _knows_states(server) else 0
    return replace(printed, certain=True, guess="", uncounted=(), exact=True, estimate=words, states=states)


def _knows_states(server: Server) -> bool:
    """Whether a server whose log prints its cache may still stop for states that this has no room for.

    One that ran, or captured graphs, has passed that check; how many a release takes hangs on the GPU.
    """
    log = server.printed
    passed = log is not None and (log.running is not None or log.graph_s is not None)
    return not passed and (server.knows_gpu or server.max_batch is not None)


LEAST_SHARE, MOST_SHARE = 0.01, 0.99


def as_sized(server: Server, request: ServingRequest, hierarchy: Hierarchy) -> Server:
    """The server with the memory setting that leaves the cache which its log prints or its words state."""
    if not (
        prints_cache(server.printed) or server.cache_bytes is not None or server.cache_tokens is not None
    ):
        return server
    free = replace(server, cache_bytes=None, cache_tokens=None)
    left = _start_as_given(free, request, hierarchy)
    sized = _logged(server, _start_as_given(server, request, hierarchy))
    stack = server_deployment(free, request, hierarchy).stack
    share = stack.memory_fraction
    if stack.fraction_of == "free":
        share *= sized.cache_bytes / left.cache_bytes if left.cache_bytes > 0 else 1.0
    else:
        share += (sized.cache_bytes - left.cache_bytes) / allocatable_bytes(hierarchy.gpu)
    return replace(free, memory_fraction=min(max(share, LEAST_SHARE), MOST_SHARE))


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
    small: tuple[str, ...] = (
        f"{100 * most:.0f} % of the memory",
        "a cache of fp8",
        f"{FEW_REQUESTS} requests at once",
        f"steps of {SMALL_STEP:,} tokens",
    )
    tries: list[tuple[tuple[str, ...], Server]] = [((), server), ((share,), larger)]
    if converts_e4m3(server.gpu):
        tries.append((("a cache of fp8",), narrow))
    else:
        least, small = replace(least, kv_dtype=server.kv_dtype), (small[0], *small[2:])
    for settings, changed in (*tries, (small, least)):
        asked = replace(request, job=replace(request.job, kv_dtype=changed.kv_dtype))
        held = _start_as_given(changed, asked, hierarchy)
        doubt = 0.0 if changed is least else held.doubt_bytes
        likely, sure = _lengths(changed, asked, hierarchy, held, doubt)
        remedies = settings if held.holds_states else (*settings, _fewer_requests(held))
        if sure >= held.longest and remedies:
            return f"give {', '.join(remedies)}"
        if sure >= LEAST_LENGTH:
            more_words = f" ({likely:,} by the estimate)" if likely > sure else ""
            return f"allow {', '.join((f'requests of at most {sure:,} tokens{more_words}', *remedies))}"
    return ""


def _fewer_requests(held: Start) -> str:
    """The requests at once whose states the cache surely holds, in eights where there are so many."""
    most = max(held.sure_states, 1)
    likely = f" ({held.state_pages:,} by the estimate)" if held.state_pages > most else ""
    return f"--max-num-seqs {most // 8 * 8 or most}{likely}"


def _lengths(
    server: Server, request: ServingRequest, hierarchy: Hierarchy, held: Start, doubt_bytes: float
) -> tuple[int, int]:
    """The longest request of a server in whole thousands, by the estimate and with less cache than that."""
    deployment = server_deployment(server, request, hierarchy)
    budget = server_budget(server, deployment)
    in_flight = tokens_in_flight(deployment, budget)
    sampled = sampled_requests(deployment, server.max_batch)
    deployment = scarcest_stage(deployment, token_budget=budget, max_batch=sampled)

    def whole_thousands(cache_bytes: float) -> int:
        cache_bytes /= held.asked_share
        tokens = longest_held(deployment, cache_bytes, held.longest, in_flight)
        return tokens if tokens == held.longest else 1024 * (tokens // 1024)

    return whole_thousands(held.cache_bytes), whole_thousands(held.cache_bytes - doubt_bytes)


LARGER_SHARE, LARGEST_SHARE, FEW_REQUESTS, SMALL_STEP = 0.95, 0.97, 64, 2048


LEAST_STEP = 2048
"""Tokens of a step of an engine that computes prompts whole, at least."""


def _start_as_given(server: Server, request: ServingRequest, hierarchy: Hierarchy) -> Start:
    """What a server holds when it starts, with the defaults of its engine's version."""
    deployment = server_deployment(server, request, hierarchy)
    stack, longest = deployment.stack, server.longest or server.model.max_sequence_length
    held = held_cache(
        deployment,
        token_budget=server_budget(server, deployment),
        max_batch=server.max_batch,
        longest=longest,
        shortens=server.fits_length,
    )
    held = _as_stated(server, held)
    uncounted = server.unread.uncounted
    states = _states_at_once(server, deployment) if held.state_page_bytes else 0
    return Start(
        **{field.name: getattr(held, field.name) for field in fields(held)},
        certain=server.knows_gpu and not uncounted,
        uncounted=uncounted,
        exact=server.cache_bytes is not None,
        guess="" if server.knows_gpu else server.gpu,
        knows_longest=server.knows_positions or server.longest is not None or server.fits_length,
        refuses=stack.refuses_long_context and not server.fits_length,
        states=states,
        says_states=server.max_batch is not None,
        wide=_wide_words(deployment),
        scarcest=_scarcest_words(server, deployment),
        wide_cache=deployment.kv_dtype == "bf16",
        host_bytes=_host_bytes(deployment),
        computed_share=stack.memory_fraction if stack.reserves and server.memory_fraction is None else 0.0,
        whole_memory=stack.memory_fraction >= WHOLE_MEMORY and stack.fraction_of == "memory",
    )


def _scarcest_words(server: Server, deployment: Deployment) -> str:
    """Which stage holds fewest tokens, with its layers and GPU; "" where stages are alike."""
    step = server_budget(server, deployment), sampled_requests(deployment, server.max_batch)
    place = scarcest_stage(deployment, token_budget=step[0], max_batch=step[1]).stage
    if place is None:
        return ""
    layers, layout = layers_of_stages(deployment)[place], server.layout
    on = f" on {layout.gpus[place]}" if layout.gpus else ""
    return f" of stage {place + 1} of {layout.pp}, the scarcest ({layers} layers{on})"


def _host_bytes(deployment: Deployment) -> float:
    """What hosts may take of the memory of GPUs while the engine loads; 0 where it does not count that."""
    hierarchy = deployment.hierarchy
    if not (deployment.stack.counts_host_memory and shares_host_memory(hierarchy.gpu)):
        return 0.0
    return HOST_BYTES if deployment.layout.num_gpus <= hierarchy.gpus_per_host else HOSTS_BYTES


def _states_at_once(server: Server, deployment: Deployment) -> int:
    """Requests of an attention rank that may run at once, of an engine that asks for a state of each; else 0.

    Unless it is told, vLLM takes no more than its steps have tokens (`EngineArgs.create_engine_config`).
    """
    stack = deployment.stack
    if not (stack.state_for_each_request and server.captures_steps):
        return 0
    if server.max_batch is not None:
        return server.max_batch // server.layout.attention_dp
    default = scheduler_default(stack, deployment.hierarchy.gpu).max_batch
    return min(default, server_budget(server, deployment))


def _as_stated(server: Server, held: HeldCache) -> HeldCache:
    """What a server holds whose words keep weights on the host, or say how large its cache is.

    Weights that stay on hosts are of layers, not of a stage's ends (vLLM, `maybe_offload_to_cpu`).
    """
    model = server.model
    ends = (
        (1 if model.tie_word_embeddings else 2) * model.vocab_size * model.hidden_size * weight_bytes("bf16")
    )
    apart = min(server.host_weights_bytes, max(held.weights_bytes - ends / server.layout.tp, 0.0))
    cache = held.cache_bytes + apart if server.cache_bytes is None else server.cache_bytes
    if server.cache_tokens is not None:
        cache = min(cache, server.cache_tokens * held.request_bytes / held.longest)
    return replace(held, weights_bytes=held.weights_bytes - apart, cache_bytes=cache)


def server_deployment(server: Server, request: ServingRequest, hierarchy: Hierarchy) -> Deployment:
    """The deployment of a server, as its engine's version has it, and its memory setting or that one's."""
    deployment = deployment_of(request, hierarchy, server.weights, server.layout)
    stack = at_version(deployment.stack, server.version)
    if server.memory_fraction is not None:
        stack = replace(stack, memory_fraction=server.memory_fraction)
    profiles = stack.profiles_encoder and server.profiles_encoder
    stack = replace(stack, mixed=stack.mixed or server.mixes, profiles_encoder=profiles)
    stack = replace(stack, graph_batch=server.graph_batch, own_all_reduce=server.own_all_reduce)
    if server.graph_batch == 0:
        stack = replace(stack, prompt_graph_tokens=0)
    deployment = replace(
        deployment, stack=stack if server.overlaps else without_overlap(stack), peers=server.peers
    )
    if server.memory_fraction is not None:
        return deployment
    share = memory_share(deployment, token_budget=server_budget(server, deployment))
    return replace(deployment, stack=replace(deployment.stack, memory_fraction=share))


def server_budget(server: Server, deployment: Deployment) -> int:
    """Tokens of a step of an attention rank: as the server is told, else its version's default."""
    stack, longest = deployment.stack, server.longest or server.model.max_sequence_length
    if server.token_budget:
        return server.token_budget
    if server.whole_prompts:
        return max(longest, LEAST_STEP)
    if longest <= stack.whole_prompts:
        return max(longest, LEAST_STEP)
    budget = scheduler_default(stack, deployment.hierarchy.gpu).token_budget
    return max(budget // server.layout.attention_dp, 1) if stack.shares_budget else budget


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
