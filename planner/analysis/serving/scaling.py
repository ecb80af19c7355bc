"""By what a plan's pools are scaled: what one of their workers carries within the limits, by simulation."""

from __future__ import annotations

from math import ceil

from costmodel.kernels.tables import Calibration
from costmodel.serving.simulation.simulator import simulate
from planner.analysis.serving.autoscale import ScalingPolicy
from planner.deployment.autoscale import PoolScaling, Scaling
from planner.serving.capacity import after_warm_up, capacity_per_s, load_at
from planner.serving.plan import ServingPlan
from planner.serving.replica import Option, rate_bound_per_s
from planner.serving.worker import worker_of
from topology.base.errors import InputError
from topology.fabric.hierarchy import Hierarchy

REFUSED = "no file can scale this fleet"


def scaling_of(
    cal: Calibration,
    plan: ServingPlan,
    hierarchy: Hierarchy,
    *,
    policy: ScalingPolicy,
    peak_per_s: float | None = None,
) -> Scaling:
    """Thresholds of every pool, and between how many workers it is scaled.

    At most the workers of the plan, or as many as carry the highest rate of a trace; at least one, and the
    spare ones.
    """
    pools = {}
    for role, pool in plan.pools:
        option = worker_of(cal, plan, hierarchy, role, pool, asked=REFUSED)
        rate = capacity_per_s(option, most_per_s=rate_bound_per_s(option))
        if rate <= 0:
            raise InputError(
                what=REFUSED,
                cause=f"a worker of its {role or 'only'} pool keeps the limits at no rate",
                fix="relax a limit, or leave out --autoscale",
            )
        peak = ceil(peak_per_s / rate) + plan.request.spare if peak_per_s is not None else 0
        most = max(pool.workers, peak)
        pools[role] = PoolScaling(
            rate_per_s=rate,
            in_flight=_in_flight(option, rate),
            fewest=min(1 + plan.request.spare, most),
            most=most,
        )
    return Scaling(pools=pools, start_up_s=policy.start_up_s, cool_down_s=policy.cool_down_s)


def _in_flight(option: Option, rate_per_s: float) -> float:
    """Mean number of requests that a worker has at a rate: the rate times their mean stay (Little)."""
    run = simulate(option.times, option.rules, load_at(option, rate_per_s))
    steady = after_warm_up(run)
    return rate_per_s * float(run.end_to_end_s[steady].mean())
