"""What a serving question says of prefix caches: who sends prompts to them, and what hosts keep."""

from __future__ import annotations

from typing import Any

from costmodel.serving.engine import serving_stack
from costmodel.serving.simulation.load import Load
from costmodel.serving.simulation.prefix_cache import POLICIES, prefix_hits
from planner.questions.flags import ServeFlags
from planner.questions.serving.compared import one_of
from topology.base.errors import InputError
from topology.base.units import format_bytes, parse_quantity

EVEN = POLICIES[0]
LARGEST_BYTES = 1e15
MOST_CACHED = 0.999


def counted_caches(flags: ServeFlags, trace: Load | None) -> dict[str, Any]:
    """The fields of a request that say which caches are counted; none where every prompt is computed in full.

    Raises:
        InputError: caches of prompts that nothing names, or what an engine is not told here.
    """
    text = " ".join(
        f"{flag} {value}"
        for flag, value in (("--router", flags.router), ("--kv-offload", flags.kv_offload))
        if value
    )
    if not text:
        return {}
    if trace is None or not trace.block_hashes:
        raise InputError(
            what="no prompt names its blocks",
            cause=f"{text}, and {'the trace has no column hash_ids' if trace else '--trace is missing'}",
            fix="give a trace with hash_ids (Mooncake's format), or --cached SHARE in place of it",
        )
    if flags.cached:
        raise InputError(
            what="caches were told twice",
            cause=f"{text}, and --cached {flags.cached}",
            fix="leave --cached out: what caches have is counted",
        )
    policy = one_of(flags.router or EVEN, POLICIES, "--router")
    engine = serving_stack(flags.engine or "vllm").name
    if engine == "trtllm" and (policy != EVEN or flags.kv_offload):
        raise InputError(
            what="TensorRT-LLM is told neither a router's policy nor a cache on hosts here",
            cause=text,
            fix=f"ask for --engine vllm or sglang, or --router {EVEN}",
        )
    return {"router": policy, "host_cache_bytes": _bytes(flags.kv_offload) if flags.kv_offload else 0.0}


def caches_note(trace: Load | None) -> tuple[str, ...]:
    """What is said of a trace whose prompts name their blocks, where no cache is followed."""
    if trace is None or not trace.block_hashes:
        return ()
    sent = f"{highest_hit_rate(trace):.0%} of the trace's prompt tokens were sent before (hash_ids)"
    follow = "plan serve --trace … --router follows caches"
    return (f"every prompt is computed in full: {sent}, which a cache has where it has room; {follow}",)


def highest_hit_rate(trace: Load) -> float:
    """The share of the trace's prompt tokens that one cache without an end has: no fleet's caches have more.

    Fleets are searched for as if theirs had; each is simulated with what its own have.
    """
    hits = prefix_hits(trace, replicas=1, capacity_tokens=float("inf"), policy=EVEN)
    return min(hits.rate, MOST_CACHED)


def _bytes(text: str) -> float:
    """Bytes of host memory, with their unit: engines count in GiB, people in GB."""
    if not text.strip()[-1:].isalpha():
        raise InputError(
            what=f"--kv-offload {text} has no unit",
            cause="it could be bytes, GB or GiB",
            fix=f"write --kv-offload {text.strip() or 200}GB",
        )
    value = parse_quantity(text)
    if not 0 < value < LARGEST_BYTES:
        cause, fix = f"a server's hosts have up to {format_bytes(LARGEST_BYTES)}", "give for example 200GB"
        raise InputError(f"--kv-offload {text} is not possible", cause, fix)
    return value
