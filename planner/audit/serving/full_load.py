"""The load of a server for which nobody says one: the most that it carries, of requests as a plan takes them.

A plan that is asked no rate is judged at what its GPUs carry at most; a server is judged alike.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.kernels.tables import Calibration
from planner.audit.serving.hosts import on_hosts
from planner.audit.serving.load import ServedLoad
from planner.audit.serving.pools import Pools
from planner.audit.serving.running import RunningServer, running, running_pools
from planner.audit.serving.server import Server, as_planned
from planner.questions.flags import ServeFlags
from planner.questions.serving.lengths import (
    ALIKE,
    DEFAULT_INPUT,
    DEFAULT_OUTPUT,
    usual_p99,
)
from planner.questions.serving.understand import Asked, understand_serving
from planner.serving.plan import ServingRequest
from planner.serving.replica import Rejected
from topology.base.counts import parse_count
from topology.fabric.hierarchy import Hierarchy

_IDLE = "0.001/s"
"""A rate that any server carries: what it carries at most is looked for beside it."""
SOURCE = "the most that it carries"


def full_load(
    cal: Calibration, server: Server | Pools, asked: ServeFlags, held: int
) -> tuple[ServedLoad, ...]:
    """The highest rate that a server, or two pools, carry; none where they hold no request.

    Args:
        cal: Kernel and collective tables.
        server: As it was started.
        asked: Lengths and limits that hold; where it says no length, requests are those of a plan, and no
            longer than the server takes.
        held: Tokens that the cache holds.
    """
    decode, prefill = (server.decode, server.prefill) if isinstance(server, Pools) else (server, server)
    flags = _with_lengths(decode, asked, held, prefill.longest_prompt)
    idle = _under_rate(cal, server, replace(flags, rate=_IDLE))
    if isinstance(idle, Rejected) or idle.requests_per_s <= 0:
        return ()
    for share in _SHARES:
        asked_rate = replace(flags, rate=f"{_rounded_down(share * idle.requests_per_s)}/s")
        now = _under_rate(cal, server, asked_rate)
        if not isinstance(now, Rejected) and not now.broken:
            break
    return (ServedLoad(flags=asked_rate, source=SOURCE),)


IN_FLIGHT = 2
"""Requests of the longest length, of those taken for granted, that a cache holds beside each other."""
_SHARES = (1.0, 0.98, 0.95, 0.9)
"""Of what one replica was found to carry: of several, and of longer runs, the queue may grow at all of it."""


def _under_rate(cal: Calibration, server: Server | Pools, flags: ServeFlags) -> RunningServer | Rejected:
    """A server, or two pools, under a rate."""
    worker = server.decode if isinstance(server, Pools) else server
    request, hierarchy = asked_of(server, flags).requests[0]
    request = as_planned(worker, request)
    if isinstance(server, Pools):
        return running_pools(cal, server, request, hierarchy, prompts_of=prompts_asked_of(server, flags))
    return running(cal, server, request, hierarchy)


def full_load_notes(load: ServedLoad, asked: ServeFlags) -> tuple[str, ...]:
    """What was taken for a load that nobody says, in a line; nothing of one that somebody does."""
    if load.source != SOURCE:
        return ()
    lengths = f"{load.flags.input_tokens} + {load.flags.output_tokens} tokens"
    whose = "as said" if asked.input_tokens and asked.output_tokens else "as plan serve takes them"
    note = f"no load is said: requests of {lengths}, {whose}, at the most a second that is carried"
    return (f"{note} (--rate, --concurrency, --input)",)


def prompts_asked_of(pools: Pools, load: ServeFlags) -> tuple[ServingRequest, Hierarchy] | None:
    """The question that is put to a prefill pool on GPUs of another kind than decode's; None on the same."""
    if pools.is_of_one_kind:
        return None
    request, hierarchy = asked_of(pools.prefill, load).requests[0]
    return as_planned(pools.prefill, request), hierarchy


def asked_of(server: Server | Pools, load: ServeFlags) -> Asked:
    """A question about the GPUs of a server, or of two pools, on its hosts."""
    worker = server.decode if isinstance(server, Pools) else server
    return on_hosts(worker, understand_serving(_question_of(server, load), model=worker.model))


def _question_of(server: Server | Pools, load: ServeFlags) -> ServeFlags:
    """The question whose answer is the best server of these GPUs, with the same checkpoint and cache."""
    worker = server.decode if isinstance(server, Pools) else server
    served = worker.adapters if worker.adapters is not None and not worker.adapters.unpriced else None
    return replace(
        load,
        adapter=None if served is None else served.adapter.words,
        adapters=None if served is None else str(served.slots),
        model=worker.model.name,
        gpus=str(server.num_gpus),
        gpu=None if worker.cluster else worker.gpu,
        cluster=worker.cluster or None,
        engine=worker.engine,
        weights=worker.weights,
        kv_dtype=worker.kv_dtype,
        memory_fraction=None if worker.memory_fraction is None else str(worker.memory_fraction),
        drafter=worker.drafter or None,
        draft_tokens=str(worker.draft_tokens) if worker.drafter else None,
        mode="disaggregated" if isinstance(server, Pools) else "aggregated",
    )


def _with_lengths(server: Server, asked: ServeFlags, held: int, step: int | None) -> ServeFlags:
    """Lengths as asked, else those of a plan: both in proportion where the server takes shorter requests.

    Prompts are no longer than a `step` that holds them whole.
    """
    positions = server.model.max_sequence_length
    longest = min(server.longest or positions, positions, max(held // IN_FLIGHT, 1))
    inputs = parse_count(asked.input_tokens, "--input") if asked.input_tokens else DEFAULT_INPUT
    outputs = parse_count(asked.output_tokens, "--output-tokens") if asked.output_tokens else DEFAULT_OUTPUT
    if inputs + outputs > longest and not (asked.input_tokens or asked.output_tokens):
        share = longest / (inputs + outputs)
        inputs, outputs = max(int(inputs * share), 1), max(int(outputs * share), 1)
    if step is not None and not asked.input_tokens:
        inputs = min(inputs, step)
    usual = usual_p99(inputs, outputs, longest)
    spread = str(usual[0]) if usual[0] and not (step is not None and step < usual[0]) else ALIKE
    return replace(
        asked,
        input_tokens=str(inputs),
        output_tokens=str(outputs),
        input_p99=asked.input_p99 or spread,
        output_p99=asked.output_p99 or (str(usual[1]) if usual[1] else ALIKE),
    )


def _rounded_down(rate_per_s: float) -> str:
    """Three digits of a rate, no more than it is.

    >>> _rounded_down(107.49), _rounded_down(1.8365), _rounded_down(0.012349)
    ('107', '1.83', '0.0123')
    """
    rounded = float(f"{rate_per_s:.3g}")
    if rounded > rate_per_s:
        rounded -= 10.0 ** (_exponent(rate_per_s) - 2)
    return f"{rounded:.3g}"


def _exponent(value: float) -> int:
    """The power of ten of a number: -2 of 0.0123."""
    return int(f"{value:e}".partition("e")[2])
