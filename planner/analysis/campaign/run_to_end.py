"""Around a run to its last token: other intervals and spares, one run in detail, other numbers of GPUs.

Legend: a *course* is the run as the closed form and the simulation know it (`costmodel.campaign.course`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from costmodel.campaign.closed_form import expected, why_invalid
from costmodel.campaign.compose import course_of
from costmodel.campaign.course import Course
from costmodel.campaign.record import Band, LostShare
from costmodel.campaign.simulate import Runs, simulate
from costmodel.layout import layout_words
from planner.analysis.what_if import VARIATIONS, Planner
from planner.campaign.finish import campaign_job_of
from planner.plan import Plan, PlanRequest
from topology.base.errors import InputError

INTERVAL_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
MOST_SPARE_ROWS = 9
SIMULATED, MAP_SEED = 200, 0
"""Runs of a cell that is simulated; every cell meets the same random numbers."""
MOMENTS, MOST_FAILURES = 96, 40.0
"""Of the one run that is told in detail: a longer one is a longer stretch of the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsefulMap:
    """Expected useful share of a run over seconds of work between checkpoints, and spare nodes.

    `useful` has a row for every number of spares; `chosen` is the row and the column of the plan's own. `by`
    says what answered: the mean of simulated runs stands where the closed form does not hold.
    """

    every_s: tuple[float, ...]
    spares: tuple[int, ...]
    useful: tuple[tuple[float, ...], ...]
    chosen: tuple[int, int]
    nodes: int
    by: Literal["closed form", "simulation"] = "closed form"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where one simulated run stands: seconds of work done and of the clock, and what the rest went to."""

    work_s: float
    wall_s: float
    interruptions: int
    lost_s: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """When so many GPUs are finished, and for how much; both with their bands."""

    num_gpus: int
    layout: str
    days: Band
    usd: Band | None
    useful_share: float


def course_of_plan(plan: Plan) -> Course:
    """The run of a plan that has its campaign, in the world of that campaign.

    Raises:
        InputError: the plan has no campaign, so no end.
    """
    if plan.campaign is None:
        raise InputError(
            what="this plan was not run to its end",
            cause="it holds a step, no campaign",
            fix="say how many tokens to train, such as 1T",
        )
    return course_of(campaign_job_of(plan), plan.campaign.failures, plan.request.cluster)


def useful_map(course: Course) -> UsefulMap:
    """What other intervals and spares would leave useful.

    Args:
        course: The run with its own interval and spares, which are a column and a row.
    """
    by: Literal["closed form", "simulation"] = "simulation" if why_invalid(course) else "closed form"
    least_s = max(level.durable_s for level in course.levels)
    factors = [f for f in INTERVAL_FACTORS if f == 1 or f * course.every_s[-1] >= least_s]
    spares = spare_rows(course.spares)
    rows = tuple(
        tuple(
            useful_share(replace(course, spares=n, every_s=tuple(f * s for s in course.every_s)), by)
            for f in factors
        )
        for n in spares
    )
    return UsefulMap(
        every_s=tuple(f * course.every_s[-1] for f in factors),
        spares=spares,
        useful=rows,
        chosen=(spares.index(course.spares), factors.index(1.0)),
        nodes=course.nodes,
        by=by,
    )


def useful_share(course: Course, by: Literal["closed form", "simulation"]) -> float:
    """Expected useful share of a run; none where it does not end."""
    if by == "closed form":
        return max(0.0, expected(course).useful)
    try:
        return float(simulate(course, SIMULATED, MAP_SEED).useful_share.mean())
    except InputError:
        return 0.0


def spare_rows(chosen: int) -> tuple[int, ...]:
    """Numbers of spares around the chosen one, none and twice it included.

    >>> spare_rows(0), spare_rows(15)
    ((0, 1, 2, 3), (0, 4, 8, 11, 15, 19, 22, 26, 30))
    """
    most = max(3, 2 * chosen)
    steps = min(most, MOST_SPARE_ROWS - 1)
    return tuple(sorted({chosen, *(round(most * n / steps) for n in range(steps + 1))}))


def one_run(course: Course, seed: int) -> tuple[Moment, ...]:
    """One simulated run, told at even steps of its work.

    A shorter run with the same seed meets the same failures, so the runs to each of these steps are one.

    Args:
        course: The run.
        seed: Which of all possible runs.

    Returns:
        Moments from the start to the end, of at most as much work as about `MOST_FAILURES` failures leave.
    """
    work_s = course.work_s * min(1.0, MOST_FAILURES / (course.per_s * course.work_s))
    start = Moment(work_s=0.0, wall_s=0.0, interruptions=0, lost_s=dict.fromkeys(_names(), 0.0))
    moments = (
        _moment(simulate(replace(course, work_s=work_s * n / MOMENTS), 1, seed))
        for n in range(1, MOMENTS + 1)
    )
    return (start, *moments)


def finishes(
    request: PlanRequest, counts: Sequence[int], planner: Planner, finished: Callable[[Plan], Plan]
) -> Iterator[Finish]:
    """The run on other numbers of the same GPUs; numbers without a plan or an end are left out.

    Args:
        request: The question; its job says how many tokens.
        counts: Numbers of GPUs.
        planner: Plans one request.
        finished: Gives a plan its campaign.
    """
    for count in counts:
        try:
            varied = request if count == request.cluster.num_gpus else VARIATIONS[0].varied(request, count)
            plan = planner(varied)
            campaign = None if plan is None else finished(plan).campaign
        except InputError:
            continue
        if plan is not None and campaign is not None:
            yield Finish(
                num_gpus=count, layout=layout_words(plan.layout), days=campaign.days, usd=campaign.usd,
                useful_share=campaign.mean_useful_share,
            )  # fmt: skip


def _names() -> tuple[str, ...]:
    """What the time of a run is lost to."""
    return tuple(field.name for field in fields(LostShare))


def _moment(runs: Runs) -> Moment:
    """The end of one simulated run."""
    return Moment(
        work_s=float(runs.work_s[0]),
        wall_s=float(runs.wall_s[0]),
        interruptions=int(runs.interruptions[0]),
        lost_s={name: float(getattr(runs, f"{name}_s")[0]) for name in _names()},
    )
