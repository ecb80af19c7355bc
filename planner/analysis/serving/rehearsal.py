"""What a fleet's own simulation rests on, pool by pool, and what it says of a load that is sent to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from costmodel.kernels.tables import Calibration
from costmodel.serving.simulation.disaggregated import PoolRules, Transfer, simulate_pools, transfer_of
from costmodel.serving.simulation.load import Lengths, Load, closed_load, open_load, thin
from costmodel.serving.simulation.simulator import simulate
from planner.serving.plan import ServingPlan
from planner.serving.worker import worker_of
from topology.base.arrays import Floats
from topology.fabric.hierarchy import Hierarchy

FEWEST, MOST = 50, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """A fleet's pools by role, the way between them, and a load to send it."""

    pools: Mapping[str, PoolRules]
    transfer: Transfer
    load: Load


def rehearsed(cal: Calibration, plan: ServingPlan, hierarchy: Hierarchy, *, span_s: float) -> Rehearsed:
    """The pools of a plan as its search simulated them, and a load of the rate that it is planned for.

    `span_s` seconds of it, within `FEWEST` and `MOST` requests.
    """
    pools, deployments = {}, []
    for role, pool in plan.pools:
        option = worker_of(cal, plan, hierarchy, role, pool, asked="the fleet cannot be rehearsed")
        # two pools are simulated without the seconds that a request takes to reach an engine
        times = replace(option.times, request_s=0.0) if role else option.times
        pools[role] = PoolRules(workers=pool.workers, times=times, rules=option.rules)
        deployments.append(option.deployment)
    return Rehearsed(
        pools=pools, transfer=transfer_of(deployments[0], deployments[-1]), load=_load_of(plan, span_s)
    )


def _load_of(plan: ServingPlan, span_s: float) -> Load:
    """As much of the question's load."""
    job, rate = plan.request.job, plan.estimate.request_rate_per_s
    inputs = Lengths(mean=job.input_tokens, p99=job.input_tokens_p99)
    outputs = Lengths(mean=job.output_tokens, p99=job.output_tokens_p99)
    count = int(min(max(rate * span_s, FEWEST), MOST))
    if job.concurrency is not None and job.request_rate_per_s is None:
        count = min(max(count, 2 * job.concurrency), max(MOST, job.concurrency))
        return closed_load(
            concurrency=job.concurrency, count=count, inputs=inputs, outputs=outputs,
            cached_share=job.cached_share,
        )  # fmt: skip
    return open_load(
        rate_per_s=rate, count=count, inputs=inputs, outputs=outputs, cached_share=job.cached_share,
        burstiness=job.burstiness,
    )  # fmt: skip


def simulated(fleet: Rehearsed) -> tuple[Floats, Floats]:
    """Times to first token and per output token of the load, in seconds, by simulation."""
    if "prefill" in fleet.pools:
        run = simulate_pools(fleet.pools["prefill"], fleet.pools["decode"], fleet.transfer, fleet.load)
        return run.ttft_s, run.tpot_s[~np.isnan(run.tpot_s)]
    pool = fleet.pools[""]
    runs = [
        simulate(pool.times, pool.rules, _share(fleet.load, pool.workers, i)) for i in range(pool.workers)
    ]
    ttft, tpot = (np.concatenate([getattr(run, name) for run in runs]) for name in ("ttft_s", "tpot_s"))
    return ttft, tpot[~np.isnan(tpot)]


def _share(load: Load, workers: int, which: int) -> Load:
    """What one of equal workers is sent, by turns."""
    if load.concurrency is None:
        return thin(load, workers, which)
    mine = replace(load, concurrency=len(range(which, load.concurrency, workers)) or 1)
    pick = slice(which, None, workers)
    return replace(
        mine,
        input_tokens=load.input_tokens[pick],
        output_tokens=load.output_tokens[pick],
        cached_tokens=load.cached_tokens[pick],
    )
