"""The pipeline of a plan as a simulated schedule, for the Gantt chart and the trace.

A stage's time of one microbatch comes from the same costs that the planner split, under the calibration of
the plan's cluster; `costmodel.pipeline.simulate.chunk_seconds` shares it among forward and backward.
"""

from __future__ import annotations

from costmodel.kernels.tables import Calibration
from costmodel.layout import num_microbatches
from costmodel.pipeline.simulate import chunk_seconds
from costmodel.pipeline.simulator import Event, StageSeconds, simulate_step
from planner.plan import Plan
from planner.pricing import estimate_split, split_of

MOST_SHOWN_MICROBATCHES = 24
"""Beyond this, a schedule repeats itself: a picture of more shows less."""


def schedule_of(
    plan: Plan, cal: Calibration, *, most_microbatches: int = MOST_SHOWN_MICROBATCHES
) -> tuple[Event, ...]:
    """Simulate the first microbatches of a step; empty without a pipeline.

    Args:
        plan: Whose pipeline.
        cal: Calibration of its cluster (`costmodel.kernels.saved.calibration_for`).
        most_microbatches: Played at most, but two for each rank.
    """
    if plan.layout.pp == 1:
        return ()
    count = min(num_microbatches(plan.layout, plan.request.job), max(most_microbatches, 2 * plan.layout.pp))
    count -= count % plan.layout.pp if count > plan.layout.pp else 0
    return simulate_step(plan.layout, count, stage_seconds(plan, cal)).events


def stage_seconds(plan: Plan, cal: Calibration) -> StageSeconds:
    """Forward, input-gradient and weight-gradient seconds of every virtual stage, in model order."""
    request = plan.request
    split = split_of(request.model, plan.layout, plan.layers_of_stage, plan.recompute_of_stage)
    _, costs = estimate_split(plan.problem.of(cal=cal), plan, plan.layout, split)
    return chunk_seconds(costs, plan.layout, split)
