"""Inference engines: how they schedule, what their launches and reductions cost, what memory they keep.

Each field of `ServingStack` has a physical meaning; the values are data (``data/serving_stacks.toml``) with
the measurements they were fitted on.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from topology.base.units import GIB
from topology.hardware.gpu import Gpu

_FILE = Path(__file__).parents[1] / "data" / "serving_stacks.toml"
ALIASES = {"trt": "trtllm", "trt-llm": "trtllm", "tensorrt-llm": "trtllm"}
ROUTER = "dynamo-"  # a router in front of an engine, which some tables name together with it
FractionOf = Literal["memory", "static", "free"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerDefault:
    """What a server takes on GPUs of at least so much memory where no flag says otherwise.

    `token_budget` are the most tokens of a step, `max_batch` the most running requests; 0 where the engine
    finds them by its memory. GPUs named in `except_gpus` take the next one's, versions before `since` too.
    """

    least_gib: float
    token_budget: int
    max_batch: int = 0
    except_gpus: tuple[str, ...] = ()
    since: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedPages:
    """How an engine lays compressed keys in its pool.

    Attributes:
        tokens: Of a page of entries.
        window_tokens: Of a block of a window.
        sparse_state_tokens: Of a block of states of entries that an indexer chooses among.
        heavy_state_tokens: The same of entries that all later tokens see.
        alignment_bytes: To whose multiples pages of eight-bit entries and of states are filled up.
        nvidia_cache_dtype: The one format of entries that its layers take on GPUs of NVIDIA; "" is any.
        query_heads: Numbers of query heads that its kernels take; a rank's are filled up to the next. Empty
            if they take any.
        filled_on: Compute capabilities of GPUs with these kernels.
    """

    tokens: int
    window_tokens: int
    sparse_state_tokens: int
    heavy_state_tokens: int
    alignment_bytes: int
    nvidia_cache_dtype: Literal["", "fp8"] = ""
    query_heads: tuple[int, ...] = ()
    filled_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphMemory:
    """What a profile counts of captured graphs (`serving.graph_memory`), from a version on.

    Attributes:
        since: The first version of which this holds.
        base_bytes: Of the first graph of each kind, whatever it holds.
        expert_bytes: The same more of a mixture of experts.
        layer_bytes: Of a layer of one graph, where a replica is one GPU.
        shared_layer_bytes: The same where graphs hold collectives of several GPUs.
        counts_plain: Whether those of models without experts and states are counted.
    """

    since: str
    base_bytes: float
    expert_bytes: float
    layer_bytes: float
    shared_layer_bytes: float
    counts_plain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTier:
    """What an engine does on GPUs of at least so much memory where no flag says otherwise.

    It captures decode steps of `batch` requests at most, of `few_gpus_batch` where fewer than four GPUs share
    a layer; or it keeps `reserve_gib` free, and `gpu_gib` more a GPU of a replica.
    """

    least_gib: float
    batch: int = 0
    few_gpus_batch: int = 0
    reserve_gib: float = 0.0
    gpu_gib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReserve:
    """By what an engine finds its memory setting where it is told none (`serving.memory_share`).

    Attributes:
        since: The first version of which this holds.
        shares: GPUs that share a layer, most first, and the setting from so many on.
        tiers: By the memory of the GPU, the largest first.
        draft_mib: Kept free besides where a model drafts.
        attention_dp_mib: The same where there are several attention ranks, of tiers with a reserve.
        counts_all_ranks: Whether a step's tokens are those of all attention ranks.
    """

    since: str
    shares: tuple[tuple[int, float], ...] = ()
    tiers: tuple[GraphTier, ...] = ()
    draft_mib: float = 0.0
    attention_dp_mib: float = 0.0
    counts_all_ranks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingStack:
    """One inference engine as the cost model sees it.

    Attributes:
        name: The name users give to ``--engine``.
        release: The one whose rules hold where none is stated.
        mixed: Prompt tokens and decoding requests share a step (otherwise prompts run alone, first).
        chunked: A prompt may span several steps.
        lagged: The next step is prepared while one runs, so a step's tokens are seen one step later.
        prefill_lagged: So it is in a pool that computes prompts, where whole replicas are.
        token_budget: Most tokens of a step on one rank in measured runs that do not state it.
        defaults: What its server takes by itself, by the memory of the GPU, the largest first.
        chunk_sizes: Tokens of a step that are tried besides the default.
        max_batch: Most requests decoding at once, by default.
        output_reserve: Share of the outputs still to come that admission keeps free in the KV cache.
        spare_blocks: Pages that admission keeps free for every running request besides.
        holds_slot: A prompt whose cache moves to a decode pool counts as running until it has moved.
        pools_with_stages: Pools whose cache its connector moves when their replicas have pipeline stages.
        decode_context_parallel: Tensor-parallel ranks with the same heads can hold a part of the tokens each.
        balance_steps: Decode steps that prompts wait at most until every attention rank has one, where it is
            asked for; 0 where it cannot be.
        splits_attention_ranks: Attention ranks can be of several GPUs; else they are of one each.
        kv_block_tokens: Tokens of one page of the KV cache.
        memory_fraction: The engine's memory setting, by default; ours where the engine computes one.
        earlier_memory_fraction: That of versions before `memory_fraction_since`.
        memory_fraction_since: First version with `memory_fraction`; empty if every version has it.
        fraction_of: What that is a share of: all its memory, its static memory (weights and cache), or the
            memory that is free for the cache.
        refuses_long_context: It does not start where its cache is shorter than its longest request.
        state_for_each_request: It does not start where its pool has fewer pages than requests may run at
            once, of models whose layers keep a state, if graphs hold its decode steps.
        state_for_each_request_since: First version that does not; empty if every version does.
        fp4_tiles: Hidden and inner sizes to whose multiples MXFP4 experts are filled up.
        native_fp4_tiles: The same on GPUs with four-bit units.
        earlier_fp4_tiles: `fp4_tiles` of versions before `fp4_tiles_since`.
        fp4_tiles_since: First version with `fp4_tiles`; empty if every version has them.
        latent_cache_since: First version that caches latents; before, every head's keys and values.
        caches_latents: Whether this version does.
        copies_latents: It keeps what latents are multiplied by once more, in bf16, where it caches them.
        workspace_bytes: What the engine counts of one GPU beside weights, activations, graphs and cache:
            communicators, buffers of kernels; where it starts from free memory, the CUDA context too.
        pcie_workspace_bytes: The same of GPUs without links of their own, where reports show another figure.
        lone_workspace_bytes: The same of a replica of one GPU, which communicates with none.
        compressed_workspace_bytes: The least of it on several GPUs where keys are compressed.
        earlier_workspace_bytes: `workspace_bytes` of earlier versions, each with the version that ended it.
        sampled_logit_bytes: Most bytes of one logit while a full batch is sampled, as its profile run does.
        earlier_sampled_logit_bytes: The same of earlier versions, each with the version that ended it.
        sums_peaks_before: Before this version its profile counts what PyTorch holds, in which the peaks of
            the largest step and of sampling make no room for each other; later it counts the larger.
        index_logits_bytes: What its profile keeps for the scores of an indexer of tokens.
        profiles_encoder: Its profile run has the tower of a model that sees encode the largest image.
        loader_scale_bytes: Bytes of a scale of four-bit experts that its loader keeps beside those of its
            kernels, on GPUs without four-bit units.
        earlier_loader_scale_bytes: The same of versions before `loader_scale_since`.
        loader_scale_since: First version with `loader_scale_bytes`; empty if every version has them.
        widens_output_groups: On GPUs without four-bit units the first projection of grouped outputs is
            widened from eight bits to bf16 as it is loaded.
        host_s: Host time between two steps that no kernel hides (scheduling, sampling, detokenising).
        scheduling_s: Host time that preparing the next step adds where it does not happen while one runs.
        hides_scheduling_since: First version that prepares it meanwhile, and is `lagged` for that; empty if
            every version does.
        host_s_per_request: The same, per decoding request, where it does not happen while a step runs.
        hides_requests: All of the host's work for a step happens while one runs, so that a step lasts as
            long as the longer of the GPU's work with `host_s` and the host's own, `loop_s`.
        loop_s: Host time of such a step: schedule, inputs, launches, outputs, streams.
        loop_s_per_request: The same, per decoding request.
        exposed_share: Share of it that the GPU waits for where that overlap is off, or not there yet.
        kernel_s: Time of one small kernel in a captured graph (norm, rotary, quantisation, cache write,
        routing …).
        launch_s: Host time to launch one operation without a graph; steps with prompts are at least as long
            as those of all layers.
        unpacking_operations: Operations of one layer's MXFP4 experts, from router to sum, by kernels that
            unpack to bf16: of whole experts, and where ranks divide them.
        counted_exchange: Attention ranks exchange tokens of prompts by kernels that tell the host how many
            come, before it launches what follows: no launch of a layer is ahead of the GPU's work.
        prompt_graph_tokens: Steps with prompts of up to so many tokens are captured between their attentions;
            0 for none.
        prompt_graphs_since: First version with them by default.
        prompt_graphs_day: When that came out: a run before, of no known version, had none.
        graph_batch: Most requests of a rank whose decode steps are captured; 0 for none, None for any number.
        all_reduce_s: Latency of the engine's own all-reduce over NVLink, per participating pair of barriers.
        own_all_reduce: Whether it is used, which a switch may end.
        attention_s: Latency of one decode attention in a captured graph, before it reads anything.
        attention_share: Decode attention of the engine over the tabulated kernel's time beyond its launch.
        eight_bit_share: The same of a cache of eight bits, over the tabulated kernel with half the bytes:
            kernels widen or turn what they read, so it lies between 1 and 2.
        expert_share: Expert kernels of the engine over the tabulated ones.
        mxfp4_share: The same of MXFP4 kernels that unpack to bf16, as far as they read weights: engines take
            them from other libraries (Marlin, Triton).
        native_mxfp4_share: The same of those that multiply four bits.
        warp_products: Kernels that unpack multiply by instructions of one warp (Marlin), not of four.
        sustained: Time of prompt arithmetic in a serving engine over the same kernels timed alone: clocks
            under sustained full power.
        expert_copies: Experts may be held twice, so that any number of ranks has as many of them each.
        adapter_ranks: Ranks that buffers of served adapters come in; empty where it is told of none here.
        eight_bit_cache: Quantised checkpoints come with an eight-bit cache unless the user says otherwise.
        eight_bit_cache_of: Beginnings of the names of checkpoints that do where others do not.
        request_s: Mean time from sending a request until the scheduler has it (HTTP, tokenisation).
        response_s: Time from a request's first token until its client sees it (streaming).
        transfer_s: Latency to hand a finished prompt to a decode pool, without the bytes.
        tcp_bytes_per_s: Least and most that a GPU sends of it where its library falls back to TCP.
        source: What the numbers were fitted on.
        as_of: When.
    """

    name: str
    release: str
    mixed: bool
    chunked: bool
    lagged: bool
    token_budget: int
    max_batch: int
    output_reserve: float
    spare_blocks: int
    holds_slot: bool
    pools_with_stages: tuple[Literal["prefill", "decode"], ...]
    kv_block_tokens: int
    memory_fraction: float
    earlier_memory_fraction: float
    memory_fraction_since: str
    fraction_of: FractionOf
    refuses_long_context: bool = False
    state_for_each_request: bool = False
    state_for_each_request_since: str = ""
    fp4_tiles: tuple[int, int] = (1, 1)
    native_fp4_tiles: tuple[int, int] = (1, 1)
    earlier_fp4_tiles: tuple[int, int] = (1, 1)
    fp4_tiles_since: str = ""
    latent_cache_since: str = ""
    caches_latents: bool = True
    copies_latents: bool = False
    workspace_bytes: float
    host_s: float
    scheduling_s: float
    hides_scheduling_since: str
    host_s_per_request: float
    hides_requests: bool
    loop_s: float
    loop_s_per_request: float
    exposed_share: float
    kernel_s: float
    launch_s: float
    prompt_graph_tokens: int = 0
    prompt_graphs_since: str = ""
    prompt_graphs_day: str = ""
    graph_batch: int | None = None
    all_reduce_s: float
    own_all_reduce: bool = True
    attention_s: float
    attention_share: float
    eight_bit_share: float
    expert_share: float
    mxfp4_share: float
    native_mxfp4_share: float
    sustained: float
    eight_bit_cache: bool
    request_s: float
    response_s: float
    transfer_s: float
    tcp_bytes_per_s: tuple[float, float]
    source: str
    as_of: str
    makers: tuple[str, ...] = ("nvidia", "amd")
    """Makers of the GPUs that it runs on."""
    least_capability: str = ""
    """The least compute capability of NVIDIA's on which it starts; empty where it does not ask."""
    decode_context_parallel: bool = False
    prefill_lagged: bool = True
    balance_steps: int = 0
    eight_bit_cache_of: tuple[str, ...] = ()
    unpacking_operations: tuple[int, int] = (4, 4)
    warp_products: bool = False
    counted_exchange: bool = False
    splits_attention_ranks: bool = True
    expert_copies: bool = False
    adapter_ranks: tuple[int, ...] = ()
    pcie_workspace_bytes: float | None = None
    lone_workspace_bytes: float | None = None
    compressed_workspace_bytes: float = 0.0
    earlier_workspace_bytes: tuple[tuple[str, float], ...] = ()
    sampled_logit_bytes: float
    earlier_sampled_logit_bytes: tuple[tuple[str, float], ...] = ()
    sums_peaks_before: str = ""
    sums_peaks: bool = False
    """Whether this version does (`sums_peaks_before`)."""
    index_logits_bytes: float = 0.0
    profiles_encoder: bool = False
    loader_scale_bytes: float = 0.0
    earlier_loader_scale_bytes: float = 0.0
    loader_scale_since: str = ""
    widens_output_groups: bool = False
    graphs: tuple[GraphMemory, ...] = ()
    """What its profile counts of graphs, oldest first; empty if it counts none."""
    reserves: tuple[MemoryReserve, ...] = ()
    """By what it finds its memory setting where it is told none, oldest first; empty where that is fixed."""
    defaults: tuple[SchedulerDefault, ...] = ()
    earlier_defaults: tuple[SchedulerDefault, ...] = ()
    """What versions before `earlier_defaults_before` take."""
    earlier_defaults_before: str = ""
    earlier_whole_prompts: int = 0
    """Longest context whose prompts those versions compute whole, however long."""
    whole_prompts: int = 0
    """The same of this version."""
    chunk_sizes: tuple[int, ...] = ()
    kernel_level: float = 1.0
    """Time of everything on the GPU over that of the tables: of a user's own server (`serving.levels`)."""
    compressed_pages: CompressedPages | None = None
    """How it lays compressed keys in its pool; None where each layer keeps what it needs."""
    state_block_tokens: int = 0
    """Tokens by which a block grows until its keys take what a recurrent state takes; 0: none does."""
    all_layers_since: str = ""
    """First version that asks every stage's cache for a longest request of all layers; empty if none does."""
    all_layers_before: str = ""
    """First version after it that asks for the stage's own layers again."""
    counts_host_memory: bool = False
    """Where GPU and host share one memory, what the host takes while it loads counts as the engine's."""
    copies_groups: bool = False
    """Each of several ranks has a copy of the only group of a Mamba-2 layer, of weights in bf16."""
    shares_budget: bool = False
    """Its tokens of a step are those of all attention ranks together, whether told or by default."""
    asks_all_layers: bool = False
    """Whether this version asks for all layers."""
    batches_in_flight: int = 1
    """Steps whose tokens its windows hold at once."""
    batches_in_flight_since: str = ""
    """First version with `batches_in_flight`; before, one."""


def scheduler_default(stack: ServingStack, gpu: Gpu) -> SchedulerDefault:
    """What the engine's server takes on this GPU; the budget of its measured runs where no table is known.

    >>> from topology.catalog import gpus
    >>> names = ("b200-sxm", "h100-sxm", "a100-sxm-80gb", "rtx-4090")
    >>> [scheduler_default(serving_stack("vllm"), gpus()[name]).token_budget for name in names]
    [16384, 8192, 2048, 2048]
    >>> [scheduler_default(serving_stack("sglang"), gpus()[name]).token_budget for name in names]
    [16384, 8192, 8192, 4096]
    >>> scheduler_default(at_version(serving_stack("vllm"), "0.27.1"), gpus()["b200-sxm"]).token_budget
    8192
    """
    for default in stack.defaults:
        if gpu.memory_bytes >= default.least_gib * GIB and gpu.name not in default.except_gpus:
            return default
    return SchedulerDefault(least_gib=0, token_budget=stack.token_budget)


@functools.cache
def serving_stacks() -> Mapping[str, ServingStack]:
    """Every engine profile by name.

    >>> sorted(serving_stacks())
    ['sglang', 'trtllm', 'vllm']
    """
    from topology.base.decode import read_toml, structure

    document = read_toml(_FILE)
    return {
        name: structure(
            {"name": name, **document["every_engine"], **entry}, ServingStack, f"{_FILE.name}: {name}"
        )
        for name, entry in document["engines"].items()
    }


def serving_stack(name: str) -> ServingStack:
    """Give the engine profile of this lenient name.

    >>> serving_stack("TRT-LLM").name, serving_stack("dynamo-sglang").name
    ('trtllm', 'sglang')
    """
    from topology.base.names import resolve

    stacks = serving_stacks()
    return stacks[resolve(name.lower().removeprefix(ROUTER), tuple(stacks), "engine", ALIASES)]


def at_version(stack: ServingStack, version: str, day: str = "") -> ServingStack:
    """The profile of an older version of its engine; unknown versions are current ones, as of `day` if known.

    >>> stack = serving_stack("vllm")
    >>> [at_version(stack, v).host_s > stack.host_s for v in ("0.12.0", "0.18.0", "")]
    [True, False, False]
    >>> at_version(stack, "0.12.0").lagged, at_version(stack, "0.18.0").lagged
    (False, True)
    >>> [at_version(stack, version).memory_fraction for version in ("0.29.1", "0.30.0", "")]
    [0.9, 0.92, 0.92]
    >>> sglang = serving_stack("sglang")
    >>> [at_version(sglang, "", day).prompt_graph_tokens for day in ("2025-11-10", "2026-05-18", "")]
    [0, 2048, 2048]
    """
    if is_before(version, stack.memory_fraction_since):
        stack = replace(stack, memory_fraction=stack.earlier_memory_fraction)
    unknown_yet = not _numbers(version) and bool(day) and day < stack.prompt_graphs_day
    if is_before(version, stack.prompt_graphs_since) or unknown_yet:
        stack = replace(stack, prompt_graph_tokens=0)
    if is_before(version, stack.fp4_tiles_since):
        stack = replace(stack, fp4_tiles=stack.earlier_fp4_tiles)
    if is_before(version, stack.latent_cache_since):
        stack = replace(stack, caches_latents=False)
    workspace = _as_of(version, stack.earlier_workspace_bytes, stack.workspace_bytes)
    logit = _as_of(version, stack.earlier_sampled_logit_bytes, stack.sampled_logit_bytes)
    stack = replace(stack, workspace_bytes=workspace, sampled_logit_bytes=logit)
    graphs = tuple(row for row in stack.graphs if not is_before(version, row.since))
    reserves = tuple(row for row in stack.reserves if not is_before(version, row.since))
    stack = replace(stack, graphs=graphs, reserves=reserves)
    if is_before(version, stack.loader_scale_since):
        stack = replace(stack, loader_scale_bytes=stack.earlier_loader_scale_bytes)
    if is_before(version, stack.sums_peaks_before):
        stack = replace(stack, sums_peaks=True)
    if is_before(version, stack.all_layers_before) and not is_before(version, stack.all_layers_since):
        stack = replace(stack, asks_all_layers=True)
    if is_before(version, stack.state_for_each_request_since):
        stack = replace(stack, state_for_each_request=False)
    if is_before(version, stack.batches_in_flight_since):
        stack = replace(stack, batches_in_flight=1)
    defaults = tuple(default for default in stack.defaults if not is_before(version, default.since))
    stack = replace(stack, defaults=defaults)
    if is_before(version, stack.earlier_defaults_before):
        stack = replace(stack, defaults=stack.earlier_defaults, whole_prompts=stack.earlier_whole_prompts)
    return without_overlap(stack) if is_before(version, stack.hides_scheduling_since) else stack


def _as_of(version: str, earlier: tuple[tuple[str, float], ...], now: float) -> float:
    """What a version has: `earlier` are values, oldest first, each with the version that ended it.

    >>> [_as_of(version, (("0.11", 3.0), ("0.21", 2.0)), 1.0) for version in ("0.9.2", "0.11.0", "0.30", "")]
    [3.0, 2.0, 1.0, 1.0]
    """
    return next((value for until, value in earlier if is_before(version, until)), now)


def without_overlap(stack: ServingStack) -> ServingStack:
    """The profile where the next step is prepared after one, not while it runs.

    >>> stack = without_overlap(serving_stack("sglang"))
    >>> stack.lagged, round(1e3 * (stack.host_s - serving_stack("sglang").host_s), 1)
    (False, 0.6)
    """
    if not stack.lagged:
        return stack
    host_s, per_request_s = stack.host_s + stack.scheduling_s, stack.host_s_per_request
    if stack.hides_requests:
        host_s = max(stack.exposed_share * stack.loop_s, stack.host_s)
        per_request_s = stack.exposed_share * stack.loop_s_per_request
    return replace(
        stack,
        host_s=host_s,
        host_s_per_request=per_request_s,
        hides_requests=False,
        lagged=False,
        prefill_lagged=False,
    )


def is_before(version: str, since: str) -> bool:
    """Whether a version is known, and older than another.

    >>> is_before("0.5.1.post1", "0.5.6"), is_before("0.5.6.post2", "0.5.6"), is_before("", "0.5.6")
    (True, False, False)
    """
    numbers = _numbers(version)
    return bool(numbers and since) and numbers < _numbers(since)


def _numbers(version: str) -> tuple[int, ...]:
    """Leading numbers of a version, such as (0, 12, 0) of 0.12.0rc1.

    >>> _numbers("0.12.0rc1"), _numbers("0.14"), _numbers("gpt-oss-dev")
    ((0, 12, 0), (0, 14), ())
    """
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(number) for number in match.groups() if number) if match else ()
