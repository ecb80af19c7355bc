"""What one pipeline rank does when: its passes with compute and every communication, each on a lane.

When passes start and end is simulated (`costmodel.pipeline.simulator`). Within a pass, layers compute and
communicate in turn, hundreds of times; here each part of a pass stands once, in the proportion that it has in
the whole step (`costmodel.estimate.TimeBreakdown`), recomputation in the backward alone. Communication that
runs under compute lies beside it. After the passes come what gradients still wait for, and the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from costmodel.estimate import TimeBreakdown
from costmodel.kernels.tables import Calibration
from costmodel.layout import num_microbatches
from costmodel.pipeline.simulator import Event, simulate_step
from planner.analysis.schedule import stage_seconds
from planner.plan import Plan

IN_PASSES = ("compute", "tp", "cp", "ep", "pp", "host")
"""Parts of a step that are in its passes, in the order in which a pass shows them."""
AT_THE_END = ("dp", "optimizer")
FEWEST_MICROBATCHES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Something a rank does for a while.

    Attributes:
        lane: Part of the step, as fields of `TimeBreakdown` without ``_s``; the collective if measured.
        start_s: From the start of the step.
        end_s: Its end.
        what: What it is of: a pass, the end of the step.
        hidden: Whether it runs under compute.
        gaps_s: Seconds in it in which nothing happens, where it stands for several close ones.
    """

    lane: str
    start_s: float
    end_s: float
    what: str = ""
    hidden: bool = False
    gaps_s: float = 0.0


def lanes_of(plan: Plan, cal: Calibration, rank: int) -> tuple[tuple[Slice, ...], int]:
    """Slices of a pipeline rank over the first microbatches and the end of a step; how many microbatches.

    Args:
        plan: Whose step.
        cal: Calibration of its cluster.
        rank: Pipeline rank, 0 up to pp - 1.
    """
    whole = num_microbatches(plan.layout, plan.request.job)
    count = min(whole, max(FEWEST_MICROBATCHES, 2 * plan.layout.pp))
    count -= count % plan.layout.pp if count > plan.layout.pp else 0
    played = simulate_step(plan.layout, count, stage_seconds(plan, cal))
    mine = sorted((event for event in played.events if event.rank == rank), key=lambda event: event.start_s)
    time = plan.estimate.time
    return (*slices_of(mine, time, count / whole), *_end(time, played.makespan_s)), count


def slices_of(passes: Sequence[Event], time: TimeBreakdown, share: float) -> Iterator[Slice]:
    """The parts of passes: on their lanes, one after the other; hidden ones beside them.

    Args:
        passes: Of one rank.
        time: Of the whole step.
        share: Of the step's microbatches that these passes are.
    """
    parts = {name: getattr(time, f"{name}_s") for name in IN_PASSES}
    busy_s, total_s = sum(event.end_s - event.start_s for event in passes), sum(parts.values())
    backward_s = sum(event.end_s - event.start_s for event in passes if event.kind == "B")
    value = time.recompute_s / (total_s + time.recompute_s) * busy_s / backward_s if backward_s else 0.0
    hidden = {name: seconds for name, seconds in time.hidden_s.items() if name in IN_PASSES and seconds > 0}
    for event in passes:
        length_s, at_s = event.end_s - event.start_s, event.start_s
        what = f"{event.kind} of microbatch {event.microbatch}, stage {event.stage}"
        recomputed_s = min(value, 1.0) * length_s if event.kind == "B" else 0.0
        if recomputed_s:
            yield Slice(lane="recompute", start_s=at_s, end_s=at_s + recomputed_s, what=what)
            at_s += recomputed_s
        for name, seconds in parts.items():
            part_s = seconds / total_s * (length_s - recomputed_s)
            if part_s > 0:
                yield Slice(lane=name, start_s=at_s, end_s=at_s + part_s, what=what)
                at_s += part_s
        for name, seconds in hidden.items():
            under_s = min(seconds * share * length_s / busy_s, length_s)
            yield Slice(
                lane=name, start_s=event.start_s, end_s=event.start_s + under_s, what=what, hidden=True
            )


def _end(time: TimeBreakdown, after_s: float) -> Iterator[Slice]:
    """What follows the last pass of all ranks; hidden data-parallel traffic ran under the passes."""
    under_s = time.hidden_s.get("dp", 0.0)
    if under_s > 0:
        start_s = max(0.0, after_s - under_s)
        yield Slice(lane="dp", start_s=start_s, end_s=after_s, what="gradients and weights", hidden=True)
    at_s = after_s
    for name in AT_THE_END:
        length_s = getattr(time, f"{name}_s")
        if length_s > 0:
            yield Slice(lane=name, start_s=at_s, end_s=at_s + length_s, what="end of the step")
            at_s += length_s
