"""A run in phases: a plan for each, one layout for all or a reshard between, whichever finishes first.

Candidates are the best layout of every phase; each is tried in all phases, its stages split anew. A run that
puts parameters elsewhere saves, starts again and loads, which takes seconds of every GPU; recomputation and
microbatches change as they are. The choice is that of least time over all sequences of candidates, by dynamic
programming.

Legend: ``n`` phases, ``m`` candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from costmodel.campaign.closed_form import expected
from costmodel.campaign.compose import course_of
from costmodel.campaign.record import Band, FailureModel, chance_within
from costmodel.layout import ParallelLayout
from planner.campaign.finish import campaign_job_of, campaign_of
from planner.plan import LAYERS_OF_STAGE, OPTIMISED, Plan, PlanRequest, stack_of
from planner.questions.phases import Phase
from planner.rules.check import check_memory
from topology.base.arrays import Floats
from topology.base.units import DAY
from topology.builders import build

Search = Callable[[PlanRequest], Plan]
Given = Callable[[PlanRequest], Plan | None]
"""The plan of the layout that a request pins; None where it breaks a rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRun:
    """One phase as it is run: its plan with its campaign, and seconds of resharding before it."""

    phase: Phase
    plan: Plan
    reshard_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasedRun:
    """All phases, and what the other ways of running them would take.

    `days` adds up the phases' bands percentile by percentile: a rate of failures and an error of the step are
    those of all. `one_layout_days` is the mean of the best single layout among the phases' own and
    `each_best_days` that of every phase's own best, reshards included; None where no layout runs all phases.
    `deadline_chance` is that of the deadline of the whole run, None where it has none.
    """

    runs: tuple[PhaseRun, ...]
    days: Band
    usd: Band | None
    mean_days: float
    one_layout_days: float | None
    each_best_days: float
    deadline_chance: float | None = None


def run_of_phases(phases: Sequence[Phase], world: FailureModel, search: Search, given: Given) -> PhasedRun:
    """The layouts of a run in phases that finish it first.

    Args:
        phases: What is run, in order.
        world: What fails, and how long a restart takes.
        search: The best plan of a request.
        given: The plan of the layout that a request pins.
    """
    best = [search(phase.request) for phase in phases]
    layouts = list(dict.fromkeys(plan.layout for plan in best))
    plans = [
        [plan if plan.layout == layout else _under(phase.request, layout, given) for layout in layouts]
        for phase, plan in zip(phases, best, strict=True)
    ]
    seconds = np.array([[math.inf if plan is None else mean_s(plan, world) for plan in row] for row in plans])
    between_s = max(reshard_s(plan, world) for plan in best)
    switch_s = between_s * np.array([_moved(before, after) for before, after in pairwise(plans)])
    chosen = least_sequence(seconds, switch_s)
    runs = []
    for place, (phase, row) in enumerate(zip(phases, plans, strict=True)):
        plan = row[chosen[place]]
        if plan is None:
            raise ValueError("a phase was given a layout that cannot run it")
        before_s = float(switch_s[place - 1][chosen[place - 1], chosen[place]]) if place else 0.0
        value = replace(plan, campaign=campaign_of(plan, world))
        runs.append(PhaseRun(phase=phase, plan=value, reshard_s=before_s))
    best_of_each = [layouts.index(plan.layout) for plan in best]
    pauses = sum(phase.pause_s for phase in phases)
    return _summed(
        tuple(runs),
        mean_days=(total_s(seconds, chosen, switch_s) + pauses) / DAY,
        one_layout_days=(_in_one_place(layouts, seconds, switch_s) + pauses) / DAY,
        each_best_days=(total_s(seconds, best_of_each, switch_s) + pauses) / DAY,
    )


def _moved(before: Sequence[Plan | None], after: Sequence[Plan | None]) -> Floats:
    """1 where parameters lie elsewhere under a candidate of a phase than under one of the phase before."""
    return np.array([[float(_places(a) != _places(b)) for b in after] for a in before])


def _in_one_place(layouts: Sequence[ParallelLayout], seconds: Floats, switch_s: Floats) -> float:
    """Least seconds of all phases with the same degrees; microbatch and recomputation may change."""
    kinds = [_degrees(layout) for layout in layouts]
    least = math.inf
    for kind in dict.fromkeys(kinds):
        at = [place for place, other in enumerate(kinds) if other == kind]
        mine, changes = seconds[:, at], switch_s[:, at][:, :, at] if len(switch_s) else switch_s
        least = min(least, total_s(mine, least_sequence(mine, changes), changes))
    return least


def mean_s(plan: Plan, world: FailureModel) -> float:
    """Mean seconds of a phase by the closed form, as a stretch of a long run: steps over the useful share."""
    job = campaign_job_of(plan)
    return job.work_s / expected(course_of(job, world, plan.request.cluster)).useful


def reshard_s(plan: Plan, world: FailureModel) -> float:
    """Seconds from the last step under one layout to the first under another: save, restart, load."""
    course = course_of(campaign_job_of(plan), world, plan.request.cluster)
    last = course.levels[-1]
    written_s = last.stall_s + last.durable_s
    restart_s = float(getattr(world.times, world.restart).seconds)
    return written_s + restart_s + last.load_s


def least_sequence(seconds: Floats, switch_s: Floats) -> list[int]:
    """The candidate of each phase whose times and switches have the least sum.

    >>> times, change = np.array([[1.0, 2.0], [9.0, 2.0]]), np.array([[[0.0, 1.0], [1.0, 0.0]]])
    >>> least_sequence(times, change), least_sequence(times, 5 * change)
    ([0, 1], [1, 1])

    Args:
        seconds: Of each phase under each candidate, shape (n, m); infinite where it cannot run.
        switch_s: From one candidate to another between two phases, shape (n - 1, m, m).
    """
    best, before = seconds[0], []
    for row, change_s in zip(seconds[1:], switch_s, strict=True):
        step = best[:, None] + change_s
        before.append(step.argmin(axis=0))
        best = step.min(axis=0) + row
    at = [int(best.argmin())]
    for back in reversed(before):
        at.append(int(back[at[-1]]))
    return at[::-1]


def total_s(seconds: Floats, chosen: Sequence[int], switch_s: Floats) -> float:
    """Seconds of all phases under these candidates, switches included."""
    changes = sum(float(each[pair]) for each, pair in zip(switch_s, pairwise(chosen), strict=True))
    return float(sum(row[at] for row, at in zip(seconds, chosen, strict=True)) + changes)


def _places(plan: Plan | None) -> tuple[ParallelLayout, tuple[int, ...]] | None:
    """What of a plan decides where parameters and their state are: degrees, and layers of every stage."""
    return None if plan is None else (_degrees(plan.layout), plan.layers_of_stage)


def _degrees(layout: ParallelLayout) -> ParallelLayout:
    """A layout without what changes from step to step for nothing."""
    return replace(layout, recompute="none", microbatch_size=1, cp_kind="ring")


def _under(request: PlanRequest, layout: ParallelLayout, given: Given) -> Plan | None:
    """A phase under another's layout; None where it breaks a rule or does not fit."""
    pins = {
        "tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "cp": layout.cp, "ep": layout.ep,
        "expert_tp": layout.expert_tp, "virtual_stages": layout.virtual_stages, "schedule": layout.schedule,
        "zero_stage": layout.zero_stage, "sequence_parallel": layout.sequence_parallel,
        "microbatch_size": layout.microbatch_size, "cp_kind": layout.cp_kind, "axis_order": layout.axis_order,
        LAYERS_OF_STAGE: OPTIMISED,
    }  # fmt: skip
    if "full" in stack_of(request).supports.recomputes:
        pins["recompute"] = "full"
    plan = given(replace(request, pins={**request.pins, **pins}))
    if plan is None:
        return None
    memory = build(request.cluster).gpu.memory_bytes
    return None if check_memory(plan.estimate.memory_by_stage, (memory,) * layout.pp) else plan


def _summed(
    runs: tuple[PhaseRun, ...], *, mean_days: float, one_layout_days: float, each_best_days: float
) -> PhasedRun:
    """The bands of all phases together, reshards and pauses on top."""
    between_days = sum(run.reshard_s + run.phase.pause_s for run in runs) / DAY
    campaigns = [run.plan.campaign for run in runs if run.plan.campaign is not None]
    days = [_plus([each.days for each in campaigns], between_days)]
    dollars = [each.usd for each in campaigns if each.usd is not None]
    usd = None
    if len(dollars) == len(campaigns):
        usd_per_day = max(band.p50 / each.days.p50 for band, each in zip(dollars, campaigns, strict=True))
        usd = _plus(dollars, between_days * usd_per_day)
    ends = np.sum([each.percentile_days for each in campaigns], axis=0) + between_days
    deadline_s = runs[0].plan.request.job.deadline_s
    return PhasedRun(
        runs=runs,
        deadline_chance=None if deadline_s is None else chance_within(ends.tolist(), deadline_s / DAY),
        days=days[0],
        usd=usd,
        mean_days=mean_days,
        one_layout_days=one_layout_days if math.isfinite(one_layout_days) else None,
        each_best_days=each_best_days,
    )


def _plus(bands: Sequence[Band], more: float) -> Band:
    """Bands added percentile by percentile, and a number beside."""
    low, middle, high = (sum(getattr(band, name) for band in bands) + more for name in ("p10", "p50", "p90"))
    return Band(p10=low, p50=middle, p90=high)
