"""What of a cluster a plan pays for: whole nodes, and idle ones where all of a cluster is held."""

from __future__ import annotations

import math

from costmodel.layout import ParallelLayout
from planner.plan import RENTS_WHAT_IT_USES, Plan, PlanRequest
from topology.pools.kinds import kinds_of
from topology.pools.rates import gpus_in_rank_order, mean_usd_per_gpu_hour, rented_gpus, rented_of_kinds


def paid_gpus_of(
    request: PlanRequest, layout: ParallelLayout, kind_of_stage: tuple[int, ...] = ()
) -> int | None:
    """GPUs that are paid for: those of the nodes that a layout uses where the answer says what to rent.

    Args:
        request: what is asked.
        layout: how the job is split.
        kind_of_stage: kind of node of each of its stages, where they are not the first.

    Returns:
        Their number; None where all of the cluster are paid for.
    """
    if request.objective not in RENTS_WHAT_IT_USES:
        return None
    if kind_of_stage:
        return sum(rented_by_stages(request, layout, kind_of_stage))
    return int(
        rented_gpus(gpus_in_rank_order(request.cluster), min(layout.num_gpus, request.cluster.num_gpus))
    )


def idle_nodes_of(request: PlanRequest, layout: ParallelLayout) -> int:
    """Whole nodes beside a layout that are paid for in any case, and could take over from one of its own.

    None where the answer says what to rent, nor where nodes are of unlike kinds.
    """
    if request.objective in RENTS_WHAT_IT_USES or len(kinds_of(request.cluster)) > 1:
        return 0
    per_node = request.cluster.num_gpus / request.cluster.num_nodes
    return max(0, request.cluster.num_nodes - math.ceil(layout.num_gpus / per_node))


def rented_by_stages(
    request: PlanRequest, layout: ParallelLayout, kind_of_stage: tuple[int, ...]
) -> tuple[int, ...]:
    """GPUs of the whole nodes of each kind that stages run on; none where these are the first in order."""
    if not kind_of_stage:
        return ()
    kinds = range(len(kinds_of(request.cluster)))
    return rented_of_kinds(
        request.cluster, [kind_of_stage.count(place) * layout.stage_ranks for place in kinds]
    )


def paid_usd_per_hour(plan: Plan) -> float | None:
    """Dollars an hour of all that a plan pays for while it runs, spares apart; None without a price."""
    request, kinds = plan.request, plan.kind_of_stage
    rented = paid_gpus_of(request, plan.layout, kinds)
    of_kinds = rented_by_stages(request, plan.layout, kinds) if rented is not None and kinds else None
    paid = request.cluster.num_gpus if rented is None else rented
    mean = mean_usd_per_gpu_hour(request.cluster, paid, of_kinds)
    return None if mean is None else mean * paid
