"""A running job held against its plan: what of its time was useful, when it is finished, what is off.

Legend: a step is *useful* once, however often it was repeated; the useful share of a stretch of time is its
new steps, each of the median length, over the time between the first and the last line that say when.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from costmodel.campaign.record import Band, Campaign
from planner.formats.progress import LoggedStep
from planner.formats.scheduler import Scheduled, by_cause
from planner.plan import Plan
from topology.base.errors import InputError
from topology.base.units import DAY, format_seconds

RARE = 0.05
"""So seldom would as many restarts come at the planned rate that it is said."""
WORTH_SAYING = 0.01
"""Share of the run that must be lost beyond the plan before a cause without a band of its own is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """One thing that is not as planned: a cause and a change."""

    cause: str
    change: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """How a run stands.

    Attributes:
        step: The furthest that was reached.
        steps: Of the whole run.
        step_s: Median of those that were logged.
        planned_step_s: What was planned; None where steps are not on what the plan is for.
        restarts: How often step numbers went back.
        repeated_steps: Steps that were done again.
        wall_s: Seconds from the first line to the last; None where lines do not say when.
        useful_share: Of these; None likewise.
        planned_useful_share: Of the whole run, in the median.
        held_s: Median time that steps waited for a checkpoint; None where no line says.
        planned_held_s: What was planned.
        interruptions: How many of each cause, by the scheduler.
        waited_s: Without nodes, by the scheduler; None where it does not say.
        days_left: To the last token, at the measured step and the useful share of the campaign.
        off: What is not as planned.
    """

    step: int
    steps: int
    step_s: float
    planned_step_s: float | None
    restarts: int
    repeated_steps: int
    wall_s: float | None
    useful_share: float | None
    planned_useful_share: float
    held_s: float | None
    planned_held_s: float
    interruptions: dict[str, int]
    waited_s: float | None
    days_left: Band
    off: tuple[Off, ...]


NOBODY = Scheduled(interruptions=(), waited_s=None)
"""No scheduler was asked."""


def watched(
    plan: Plan, logged: Sequence[LoggedStep], held: Sequence[float] = (), seen: Scheduled = NOBODY
) -> Watched:
    """Hold what was logged, seconds that checkpoints held it up, and interruptions, against a campaign.

    Raises:
        InputError: the plan has no campaign, or nothing was logged.
    """
    campaign, tokens = plan.campaign, plan.request.job.total_tokens
    if campaign is None or tokens is None:
        raise InputError(
            what="the plan does not say when its run is finished",
            cause="it was asked without tokens",
            fix="plan with --tokens, and watch with that plan",
        )
    if not logged:
        raise InputError(
            what="there is no step to watch",
            cause="no line is one of plan run, Megatron-LM, NeMo or torchtitan",
            fix="name the folder of plan run, or the log of the last or the first rank",
        )
    steps = math.ceil(tokens / plan.request.job.tokens_per_step)
    step_s, last = _median_s(plan, logged), max(one.step for one in logged)
    restarts, repeated = _back(logged)
    wall_s = _wall_s(logged)
    useful = None if wall_s is None else min(1.0, (last - logged[0].step) * step_s / wall_s)
    left_s = max(0, steps - last) * step_s / DAY
    share = campaign.useful_share
    held_s = statistics.median(held) if held else None
    stops = max(restarts, len(seen.failures))
    compared = all(one.compared for one in logged)
    off = (
        *(_slow(plan, step_s) if compared else ()),
        *_often(campaign, stops, wall_s),
        *_held_up(campaign, held_s),
        *_nodes(campaign, seen, wall_s),
    )
    return Watched(
        step=last,
        steps=steps,
        step_s=step_s,
        planned_step_s=plan.estimate.step_time_s if compared else None,
        restarts=restarts,
        repeated_steps=repeated,
        wall_s=wall_s,
        useful_share=useful,
        planned_useful_share=campaign.useful_share.p50,
        held_s=held_s,
        planned_held_s=campaign.checkpoint_stall_s,
        interruptions=by_cause(seen.interruptions),
        waited_s=seen.waited_s,
        days_left=Band(p10=left_s / share.p90, p50=left_s / share.p50, p90=left_s / share.p10),
        off=off,
    )


def _median_s(plan: Plan, logged: Sequence[LoggedStep]) -> float:
    """Median seconds of a step; from tokens a second of one GPU where nothing else is said."""
    tokens, gpus = plan.request.job.tokens_per_step, plan.layout.num_gpus
    found = [one.step_s for one in logged if one.step_s is not None]
    rates = [one.tokens_per_s_per_gpu for one in logged if one.tokens_per_s_per_gpu]
    return statistics.median([*found, *(tokens / (rate * gpus) for rate in rates)])


def _back(logged: Sequence[LoggedStep]) -> tuple[int, int]:
    """How often step numbers went back, and how many steps that cost in all."""
    furthest, restarts, repeated = logged[0].step, 0, 0
    for before, one in itertools.pairwise(logged):
        if one.step <= before.step:
            restarts += 1
            repeated += max(0, furthest - one.step + 1)
        furthest = max(furthest, one.step)
    return restarts, repeated


def _wall_s(logged: Sequence[LoggedStep]) -> float | None:
    """Seconds between the first and the last line, where both say when and something lies between."""
    first, last = logged[0].at_s, logged[-1].at_s
    return None if first is None or last is None or last <= first else last - first


def _slow(plan: Plan, step_s: float) -> Iterator[Off]:
    """A step beyond the band of its estimate."""
    planned = plan.estimate
    if step_s > planned.upper_s:
        yield Off(
            cause=f"a step takes {format_seconds(step_s)}, planned {format_seconds(planned.step_time_s)} "
            f"and at most {format_seconds(planned.upper_s)}",
            change="look for one slow node: plan bench --check PLAN.json on each",
        )


def _often(campaign: Campaign, stops: int, wall_s: float | None) -> Iterator[Off]:
    """More interruptions than chance makes of the planned rate."""
    mean = 0.0 if wall_s is None else wall_s / campaign.mean_time_between_failures_s
    if wall_s is not None and at_least(stops, mean) < RARE:
        yield Off(
            cause=f"{stops} restarts in {format_seconds(wall_s)}, planned {mean:.2g}",
            change="plan again with your own counts in --failures: the interval and spares follow",
        )


def _held_up(campaign: Campaign, held_s: float | None) -> Iterator[Off]:
    """Checkpoints that cost more of the run than planned."""
    planned, every = campaign.checkpoint_stall_s, campaign.checkpoint_interval_s
    if held_s is not None and held_s - planned > WORTH_SAYING * every:
        yield Off(
            cause=f"a checkpoint holds steps up for {format_seconds(held_s)}, planned "
            f"{format_seconds(planned)}: {100 * (held_s - planned) / (every + held_s):.1f} % of the run more",
            change="save asynchronously, or plan again with the measured [storage] in --failures: "
            "the interval follows",
        )


def _nodes(campaign: Campaign, seen: Scheduled, wall_s: float | None) -> Iterator[Off]:
    """A node that fails again, and waiting for nodes that was not planned."""
    named = Counter(one.node for one in seen.failures if one.node)
    for node, times in named.most_common(1):
        if times > 1:
            yield Off(
                cause=f"{times} of {len(seen.failures)} interruptions name node {node}",
                change="leave it out of the allocation until it is repaired",
            )
    if wall_s is None or seen.waited_s is None:
        return
    waited, planned = seen.waited_s / wall_s, campaign.lost_share.waiting_for_nodes
    if waited - planned > WORTH_SAYING:
        yield Off(
            cause=f"{100 * waited:.1f} % of the time went by without nodes, planned {100 * planned:.1f} %",
            change=f"hold {campaign.spare_nodes + 1} or more spare nodes in the job; planned "
            f"{campaign.spare_nodes}",
        )


def at_least(count: int, mean: float) -> float:
    """Chance of at least so many events of a Poisson process of this mean.

    >>> at_least(0, 3.0), round(at_least(1, 1.0), 3)
    (1.0, 0.632)
    """
    below = [math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(count)] if mean else []
    return max(0.0, 1.0 - sum(below)) if mean or not count else 0.0
