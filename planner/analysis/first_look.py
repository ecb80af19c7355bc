"""A first number before the search has ended: the layout that is known already, under the new question.

One layout is estimated in a twentieth of the time that all take. Where it is legal and fits, the best plan is
no slower: an upper bound, until the proven answer replaces it.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.kernels.tables import Calibration
from costmodel.layout import ParallelLayout
from planner.plan import LAYERS_OF_STAGE, OPTIMISED, Plan, PlanRequest
from planner.pricing import capacity_of_fullest
from planner.search.given_layout import plan_of_layout
from topology.base.errors import InputError
from topology.pools.kinds import kinds_of

SAME = (
    "tp", "pp", "cp", "ep", "expert_tp", "virtual_stages", "microbatch_size", "zero_stage", "shard_degree",
    "recompute", "schedule", "sequence_parallel",
)  # fmt: skip
"""What is kept of a layout; replicas fill the GPUs."""


def first_look(known: Plan, request: PlanRequest, cal: Calibration) -> Plan | None:
    """The plan of a known layout under a new request; None where it is illegal, too large or not asked.

    Args:
        known: The plan that stands.
        request: What is asked now.
        cal: Calibration of its cluster.
    """
    if request.model != known.request.model or request.objective != "step-time" or request.offload_shares:
        return None
    if len(kinds_of(request.cluster)) > 1 or known.kind_of_stage:
        return None
    pins = kept(known.layout, request)
    try:
        plan = plan_of_layout(replace(request, pins=pins), cal) if pins else None
    except InputError:
        return None
    if not isinstance(plan, Plan):
        return None
    free = plan.problem.memory_budget_bytes
    fits = plan.estimate.peak_memory_bytes <= min(free, capacity_of_fullest(plan))
    return plan if fits else None


def kept(layout: ParallelLayout, request: PlanRequest) -> dict[str, object]:
    """Pins of a layout whose replicas fill the GPUs; empty where they cannot, or other pins are asked."""
    each = layout.tp * layout.pp * layout.cp
    pins = {name: getattr(layout, name) for name in SAME if getattr(layout, name) is not None}
    if request.cluster.num_gpus % each:
        return {}
    asked = {name: value for name, value in request.pins.items() if pins.get(name, value) != value}
    return {} if asked else {LAYERS_OF_STAGE: OPTIMISED, **pins, **request.pins}
