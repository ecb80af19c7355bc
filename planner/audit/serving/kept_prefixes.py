"""Whether a given server keeps prefixes of its prompts, and what a trace that names blocks then finds there.

vLLM keeps them since its V1 engine (0.8) unless told (`enable_prefix_caching`), of models without recurrent
layers; SGLang unless `--disable-radix-cache`; TensorRT-LLM unless `enable_block_reuse: false`.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.models.spec import ModelSpec
from costmodel.serving.engine import is_before
from costmodel.serving.simulation.load import Load
from costmodel.serving.simulation.prefix_cache import POLICIES, prefix_hits, routed
from planner.audit.read import Reading
from planner.formats.settings import truth_of
from planner.serving.replica import Option

EVEN = POLICIES[0]
_OFF = {"vllm": "no_enable_prefix_caching", "sglang": "disable_radix_cache", "trtllm": ""}
_ON = {"vllm": "enable_prefix_caching", "sglang": "", "trtllm": "enable_block_reuse"}
FLAGS_OF_PREFIXES = tuple(filter(None, (*_OFF.values(), *_ON.values())))
"""Flags that say whether prefixes are kept."""
FIRST_BY_DEFAULT = "0.8"
"""First release of vLLM whose engine keeps prefixes unless told."""


def keeps_prefixes(reading: Reading, engine: str, model: ModelSpec, version: str) -> bool:
    """Whether a server keeps prefixes of prompts: as its words say, else as its engine's release does."""
    values = {
        setting.path[-1].replace("-", "_"): setting.value for setting in reading.settings if setting.path
    }
    for names, on in ((_OFF, False), (_ON, True)):
        if (name := names[engine]) and (truth := truth_of(values.get(name))) is not None:
            return truth is on
    if engine == "vllm":
        return model.recurrence is None and not is_before(version, FIRST_BY_DEFAULT)
    return True


def with_kept_prefixes(option: Option, replicas: int, trace: Load, *, keeps: bool) -> Load:
    """A trace as the caches of replicas meet it that take its requests by turns.

    One that names no blocks, or that somebody has routed already, is as it was.
    """
    if not (keeps and trace.block_hashes) or trace.router:
        return trace
    hits = prefix_hits(trace, replicas=replicas, capacity_tokens=option.rules.kv_capacity_tokens, policy=EVEN)
    return routed(trace, hits)


def through_prefills(trace: Load, *, keeps: bool) -> Load:
    """The same of two pools: the caches of the workers that compute prompts are followed."""
    return replace(trace, router=EVEN) if keeps and trace.block_hashes and not trace.router else trace


def prefix_words(trace: Load | None, *, keeps: bool, share: float) -> tuple[str, ...]:
    """What of a trace that names blocks is found, in a line; nothing of any other."""
    if trace is None or not trace.block_hashes:
        return ()
    if not keeps:
        return ("prompts are computed in full: the server keeps no prefixes",)
    return (f"prefix caches have {share:.0%} of the prompt tokens, as the engine keeps them unless told",)
