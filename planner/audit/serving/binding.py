"""What keeps requests waiting for their first token: a full cache, a limit of the batch, or prompts.

By Little's law c requests in flight, of which one stays T and waits W of that, are c·W/T that wait and
c·(1 − W/T) that run.

Legend: ``c`` requests in flight, ``T`` seconds from a request's sending to its end, ``W`` to its admission.
"""

from __future__ import annotations

import numpy as np

from planner.audit.serving.refused import converts_e4m3
from planner.audit.serving.running import RunningServer
from planner.audit.serving.server import Server

MOST_WAIT = 0.5
"""Share of the time to a first token that is waited, from which what keeps requests waiting is told."""
FEW = 0.1
"""Share of the requests in flight below which those that wait are few."""
FULL = 0.9
"""Share of a cache, or of a limit of the batch, from which it is full at its peak."""


def binding(server: Server, running: RunningServer) -> tuple[str, str] | None:
    """What binds a server under a load, and what helps; None where requests hardly wait.

    Args:
        server: As it was started; the decode pool of two.
        running: What it does.
    """
    simulation, estimate = running.simulation, running.plan.estimate
    if (short := running.prefill_short) is not None:
        return f"prompts wait: prefill workers compute {short.busy:.0%} of the time", short.words
    waits = float(np.mean(np.maximum(simulation.admitted_s - simulation.arrival_s, 0.0)))
    if running.ttft_s <= 0 or waits < MOST_WAIT * running.ttft_s:
        return None
    stays = float(np.mean(simulation.end_to_end_s))
    in_flight = running.plan.request.job.concurrency or running.requests_per_s * stays
    runs = in_flight * (1 - waits / stays)
    if in_flight - runs < FEW * in_flight:
        return None
    share = f"{in_flight - runs:.0f} of {in_flight:.0f} requests in flight wait"
    if server.max_batch is not None and runs >= FULL * server.max_batch * server.replicas:
        return (
            f"the batch is full: {share}, as {server.max_batch} run at once",
            more_at_once(server, running, server.max_batch * server.replicas),
        )
    if estimate.kv_used_share >= FULL:
        return f"the cache is full: {share}, as it holds {runs:.0f}", ", ".join(_roomier(server, runs))
    return (
        f"prompts wait for others: {share}, bound by {estimate.bound_by}",
        "send fewer at once, or more GPUs",
    )


def always_waiting(server: Server, running: RunningServer) -> tuple[str, str] | None:
    """What a limit on requests that run keeps waiting of a closed loop, and what helps; None without.

    Args:
        server: As it was started; the decode pool of two.
        running: What it does.
    """
    in_flight = -(-(running.plan.request.job.concurrency or 0) // server.replicas)
    if server.max_batch is None or server.max_batch >= in_flight:
        return None
    waiting = in_flight - server.max_batch
    return (
        f"{waiting} of {in_flight} requests in flight always wait: {server.max_batch} run at once",
        more_at_once(server, running, server.max_batch * server.replicas),
    )


def more_at_once(server: Server, running: RunningServer, runs: float) -> str:
    """What lets more requests run than a limit does: no higher one where the cache has no room for more."""
    if running.plan.estimate.kv_used_share >= FULL:
        return f"the cache holds no more: {', '.join(_roomier(server, runs))}"
    return "raise the limit on requests that run, or leave it to the engine"


def _roomier(server: Server, runs: float) -> list[str]:
    """What leaves a cache room for more requests."""
    copies = server.layout.tp // server.model.attention.cached_groups // server.layout.dcp
    ways = ["a cache of fp8"] if server.kv_dtype == "bf16" and converts_e4m3(server.gpu) else []
    if copies > 1 and server.model.is_moe:
        ways.append(f"attention ranks of one GPU each (now {copies} hold the same tokens)")
    return [*ways, "more GPUs", f"or at most {runs:.0f} in flight, as more only queue"]
