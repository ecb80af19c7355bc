"""What an engine refuses before it loads anything: of splits, of lengths, of formats that a GPU lacks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from costmodel.parallel.divisions import HEADS
from costmodel.serving.deployment import cache_dtype_of
from costmodel.serving.engine import is_before, serving_stack
from costmodel.serving.formats import starts_on
from planner.audit.serving.lacking import doubtful_weights, lacking_weights
from planner.audit.serving.lora import broken_ranks
from planner.audit.serving.refused_configs import refused_configs
from planner.audit.serving.refused_words import refused_words
from planner.audit.serving.server import Server
from topology.catalog import gpus
from topology.hardware.datasheets import generation_of
from topology.hardware.gpu import Gpu

_KEEPS_EXPERTS_WHOLE = {"vllm": "--enable-expert-parallel", "sglang": "--ep-size {tp}"}
"""What deals whole experts to ranks, of the engines that refuse a part of a block of scales."""
_STRETCHES = {
    "vllm": "--hf-overrides with rope scaling, where the model was trained for it",
    "sglang": "--json-model-override-args with rope scaling, where the model was trained for it",
}
"""What allows more positions than a checkpoint has, of the engines that refuse them otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLaw:
    """Why an engine refuses settings, and what helps.

    `certain` tells whether it surely does: some releases have kernels that others lack.
    """

    why: str
    fix: str
    certain: bool = True


def refusal_of(server: Server) -> BrokenLaw | None:
    """Why the engine refuses the server's settings; None where it takes them. What is sure comes first."""
    laws = (BrokenLaw(why=why, fix=fix) for why, fix in _refusals(server))
    return next(chain(laws, _doubtful(server)), None)


def _refusals(server: Server) -> Iterator[tuple[str, str]]:
    """Every law that the settings break, with what keeps it."""
    yield from refused_words(server)
    yield from refused_configs(server)
    model, layout = server.model, server.layout
    heads = model.num_attention_heads
    if HEADS.rest(heads, layout.tp):
        yield HEADS.says(heads, layout.tp), f"set tp {_most_ranks(heads, layout.tp)}"
    if layout.pp > model.num_layers:
        yield f"pp {layout.pp} of {model.num_layers} layers", "give at most a stage a layer"
    yield from _shared_tokens(server)
    yield from _cut_blocks(server)
    yield from _cut_groups(server)
    yield from _beyond_positions(server)
    yield from _lacking_formats(server)
    yield from _drafting_stages(server)
    yield from broken_ranks(server.adapters, serving_stack(server.engine))


def _most_ranks(heads: int, tp: int) -> int:
    """The most ranks up to tp that heads divide by and that fill its GPUs, or are a power of two.

    >>> _most_ranks(28, 8), _most_ranks(32, 3), _most_ranks(25, 8)
    (4, 2, 1)
    """
    powers = (2**power for power in range(tp.bit_length()) if HEADS.rest(heads, 2**power) == 0)
    most: int = max(HEADS.largest(heads, tp), *powers)
    return most


def _shared_tokens(server: Server) -> Iterator[tuple[str, str]]:
    """Ranks that share the tokens of one cache, where heads are grouped (vLLM, verify_with_parallel_config).

    As asserts of v0.12 to v0.20, and as ValueError of v0.33; v0.11 does not ask.
    """
    model, layout = server.model, server.layout
    groups = model.attention.cached_groups
    asks = server.engine == "vllm" and not is_before(server.version, "0.12")
    if layout.dcp == 1 or model.attention.decode_width or not asks:
        return
    queries, most = model.num_attention_heads // groups, layout.tp // groups
    if layout.tp <= groups:
        why = f"dcp {layout.dcp} needs tp beyond the {groups} heads of keys, and tp is {layout.tp}"
        yield why, f"leave --decode-context-parallel-size out, or give tp {groups * layout.dcp}"
    elif layout.dcp > most or HEADS.rest(queries, layout.dcp):
        why = (
            f"dcp {layout.dcp}: {most} ranks have the same heads, of {queries} queries each, which it divides"
        )
        yield why, f"give --decode-context-parallel-size {HEADS.largest(queries, most)}"


EIGHT_BIT = (8, 9)
"""Compute capability of NVIDIA's from which GPUs convert e4m3, fp8e4nv in Triton's words."""
_E4M3 = ("fp8", "fp8_e4m3")


def _lacking_formats(server: Server) -> Iterator[tuple[str, str]]:
    """Weights and products in a format that the GPU lacks, by the laws of `plan serve`."""
    if not server.knows_gpu:
        return
    for kind in server.kinds:
        yield from _formats_that_lack(server, gpus()[kind])


def _formats_that_lack(server: Server, gpu: Gpu) -> Iterator[tuple[str, str]]:
    """The same of one of its kinds of GPU."""
    generation = generation_of(gpu)
    engine = serving_stack(server.engine)
    if not starts_on(engine, gpu):
        least, has = engine.least_capability, generation.compute_capability
        asks = f"compute capability {least}, and {gpu.name} has {has}"
        asks = asks if generation.maker in engine.makers else f"GPUs of {', '.join(engine.makers)}"
        yield f"{server.engine} needs {asks}", "take another engine, or another GPU"
    yield from lacking_weights(server, gpu)
    is_bf16 = server.dtype in ("bfloat16", "bf16") and server.engine in ("vllm", "trtllm")
    if is_bf16 and generation.maker == "nvidia" and generation.capability < (8, 0):
        yield (
            f"bfloat16 needs compute capability 8.0, and {gpu.name} has {generation.compute_capability}",
            "give --dtype half",
        )


def converts_e4m3(gpu: str) -> bool:
    """Whether any kernel reads a cache in e4m3 on the GPU.

    >>> converts_e4m3("rtx-4090"), converts_e4m3("a100-sxm-80gb")
    (True, False)
    """
    generation = generation_of(gpus()[gpu])
    return generation.maker != "nvidia" or generation.capability >= EIGHT_BIT


def _unknown_flags(server: Server) -> Iterator[BrokenLaw]:
    """Flags that no parser of a release has been seen to take: another program's, or a changed engine's."""
    unread = server.unread
    flags = [flag for flag in unread.unknown if flag.startswith("-")]
    if flags and not is_before(unread.release, server.version):
        yield BrokenLaw(
            why=f"no release of its engine up to {unread.release} knows {', '.join(flags)}, whose parser "
            "stops there",
            fix="leave it out, unless the engine is one that was changed to take it",
            certain=False,
        )


def _doubtful(server: Server) -> Iterator[BrokenLaw]:
    """What some releases refuse: a cache in e4m3 on GPUs that do not convert it, drafts over stages.

    vllm issue 26431 (0.11: Triton's kernels alone take such a cache there), issues 49355, 52069 and 57755.
    """
    yield from _unknown_flags(server)
    generation = generation_of(gpus()[server.gpu])
    for why, fix in doubtful_weights(server, gpus()[server.gpu]) if server.knows_gpu else ():
        yield BrokenLaw(why=why, fix=fix, certain=False)
    lacks = server.knows_gpu and not converts_e4m3(server.gpu)
    if lacks and server.cache_format in _E4M3 and server.engine != "trtllm":
        yield BrokenLaw(
            why=f"a cache in {server.cache_format} (e4m3) needs compute capability 8.9 in Triton's kernels, "
            f"and {server.gpu} has {generation.compute_capability}",
            fix="leave --kv-cache-dtype out, or give fp8_e5m2",
            certain=server.engine == "vllm" and server.version.startswith("0.11") and not server.backend,
        )
    only = cache_dtype_of(serving_stack(server.engine), server.model, maker=generation.maker)
    if server.knows_gpu and only is not None and only not in server.cache_format:
        is_auto = server.cache_format in ("", "auto")
        if not is_auto or is_before(server.version, "0.29"):
            yield BrokenLaw(
                why=f"layers of compressed keys take a cache in {only} alone on {server.gpu}, "
                f"not {server.cache_format or 'auto'} (fp8_ds_mla)",
                fix=f"give --kv-cache-dtype {only}",
                certain=not is_auto,
            )
    if server.little_shm and server.layout.num_gpus > 1:
        yield BrokenLaw(
            why=f"{server.layout.num_gpus} ranks share 64 MB at /dev/shm, as containers have it unless told",
            fix="mount an emptyDir of medium Memory at /dev/shm, or say ipc: host or shm_size",
            certain=False,
        )
    if server.shares is not None:
        yield BrokenLaw(
            why=f"{server.shares.words}: the later one finds too little free",
            fix="give them shares of less than 1 in all, or GPUs of their own",
            certain=server.shares.one_host,
        )
    if server.drafter and server.layout.pp > 1 and server.engine == "vllm":
        yield BrokenLaw(
            why=f"pp {server.layout.pp} beside speculation, which vLLM is reported not to start with",
            fix="leave the speculation out, or split by tp alone",
            certain=False,
        )


def _drafting_stages(server: Server) -> Iterator[tuple[str, str]]:
    """Speculation over pipeline stages, which the first engine of vLLM refuses (issues 6911 and 14117)."""
    stages, first = server.layout.pp, is_before(server.version, "0.8")
    if server.drafter and stages > 1 and server.engine == "vllm" and first:
        yield (
            f"vLLM {server.version} refuses pipeline stages (pp {stages}) beside speculation",
            "leave the speculation out, or split by tp alone",
        )


def _cut_blocks(server: Server) -> Iterator[tuple[str, str]]:
    """Feed-forwards whose share of a rank is no multiple of a block of scales (vllm issue 25292)."""
    model, layout, block = server.model, server.layout, server.model.stored.block
    whole = _KEEPS_EXPERTS_WHOLE.get(server.engine)
    if whole is None or not block or server.weights != "fp8":
        return
    width, ranks = model.intermediate_size, layout.tp
    if model.is_moe:
        width, ranks = model.moe_intermediate_size, layout.expert_tp
    if HEADS.rest(width, block * ranks) == 0:
        return
    what = "an expert" if model.is_moe else "a feed-forward"
    fix = f"split it over {math.gcd(width // block, ranks)} ranks (tp)"
    if model.is_moe:
        fix = f"add {whole.format(tp=layout.stage_gpus)}, which keeps experts whole, or {fix}"
    share = f"{width:,} / {ranks} = {width / ranks:g}"
    yield f"{what}'s share of a rank, {share}, is no multiple of the checkpoint's block of {block}", fix


def _cut_groups(server: Server) -> Iterator[tuple[str, str]]:
    """Inputs of a rank that are no multiple of a group of scales (vllm issue 11671): of the product down."""
    model, tp, group = server.model, server.layout.tp, server.model.stored.group
    width = model.intermediate_size
    if not group or model.is_moe or server.engine == "trtllm" or HEADS.rest(width, group * tp) == 0:
        return
    padded = -(-width // (group * tp)) * group * tp
    share = f"a feed-forward's share of a rank, {width:,} / {tp} = {width / tp:g},"
    ranks = math.gcd(width // group, tp)
    yield (
        f"{share} is no multiple of the checkpoint's groups of {group}",
        f"set tp {ranks}, or pad it to {padded:,} before it is quantised",
    )


def _beyond_positions(server: Server) -> Iterator[tuple[str, str]]:
    """A length beyond the positions of the checkpoint whose configuration is known."""
    positions, longest, how = server.model.max_sequence_length, server.longest, _STRETCHES.get(server.engine)
    if how is None or longest is None or longest <= positions or server.stretches:
        return
    if not server.knows_positions:
        return
    name = server.checkpoint or server.model.name
    yield (
        f"requests of {longest:,} tokens go beyond the {positions:,} positions of {name}",
        f"allow at most {positions:,} tokens, or give {how}",
    )
