"""What the memory that a plan leaves free costs: seconds of a step, and the chance of OOM that it spares."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.kernels.tables import Calibration
from costmodel.memory.fit import out_of_memory_chance
from costmodel.training.bands import peak_spread
from planner.plan import Plan
from planner.search.best_first import explore


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadroomPrice:
    """The fastest plan with nothing left free, beside the one that leaves some.

    Attributes:
        free_bytes: Left free of a GPU.
        step_time_s: Of the fastest plan that leaves none.
        costs_s: Seconds of a step that the headroom costs.
        out_of_memory_chance: Of the plan that leaves none.
    """

    free_bytes: float
    step_time_s: float
    costs_s: float
    out_of_memory_chance: float


def headroom_price(plan: Plan, cal: Calibration) -> HeadroomPrice | None:
    """Search again with nothing left free; None where nothing is, and of one given layout.

    Args:
        plan: A plan of the search for the least step.
        cal: Calibration tables.
    """
    problem, request = plan.problem, plan.request
    is_given = plan.optimality.enumerated == 1 or plan.kind_of_stage
    if not problem.memory_headroom or is_given or request.objective != "step-time":
        return None
    best = explore(replace(request, memory_headroom=0.0), cal).best
    if best is None:
        return None
    capacity = problem.cluster.gpu.memory_bytes
    return HeadroomPrice(
        free_bytes=capacity * problem.memory_headroom,
        step_time_s=best.step_time_s,
        costs_s=max(0.0, plan.estimate.step_time_s - best.step_time_s),
        out_of_memory_chance=out_of_memory_chance(
            best.peak_memory_bytes, capacity, peak_spread(problem.case)
        ),
    )
