"""The answer: bands of days, dollars and interruptions of a run, where its time goes, what changes bring."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from costmodel.campaign.closed_form import MAINTENANCE, Shares, expected, why_invalid
from costmodel.campaign.compose import CampaignJob, bound_useful_share, chosen_places, course_of
from costmodel.campaign.course import TEN_TO_NINETY, Course, mean_of
from costmodel.campaign.failures import explain_measured, spread_of
from costmodel.campaign.record import KEPT, Band, Campaign, FailureModel, Kept, LostShare, chance_within
from costmodel.campaign.simulate import Runs, simulate, simulate_unless_late
from costmodel.campaign.tiers import only
from costmodel.campaign.worth import RunPrice, usd_per_s, worth_of
from topology.base.arrays import Floats
from topology.base.units import DAY, KILO, WATT_HOUR
from topology.spec import ClusterSpec

RUNS = 300
"""Campaigns that are simulated for a band."""
_MOST_IN_ALL = 2.0
MOST_FAILURES = 200.0
"""Of a run that is simulated for a band; a longer one is a longer stretch of the same. Chance is then a few
parts in a thousand of the time, the spread between sites a hundred times as much."""
FOR_A_MEAN = 100
"""Campaigns that are simulated for a mean."""
FAILURES_OF_A_MEAN = 500.0
"""Of each of them."""


def campaign(
    job: CampaignJob,
    world: FailureModel,
    cluster: ClusterSpec,
    *,
    step_band_s: tuple[float, float],
    least_bytes: float,
    price: RunPrice | None = None,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    runs: int = RUNS,
) -> Campaign:
    """Answer when a run is finished.

    Args:
        job: What runs.
        world: What fails and how long everything takes.
        cluster: Where.
        step_band_s: Between which the step is in eight of ten cases.
        least_bytes: Of a checkpoint under any layout, for the bound.
        price: What is paid, if it is known.
        deadline_s: When it has to be finished, in seconds from its start.
        budget_usd: What it may cost, in dollars.
        runs: How many to simulate.

    Raises:
        InputError: the run makes no headway.
    """
    course = course_of(job, world, cluster)
    kept = chosen_places(job, course, world, cluster)
    result = runs_over_bands(course, world, step_band_s, runs)
    percentiles = percentile_days(result)
    why = why_invalid(course)
    mean = (
        expected(course) if not why else _shares(simulate(_shortened(course), min(runs, FOR_A_MEAN), seed=1))
    )
    paid = usd_per_s(course, price)
    last = course.levels[-1]
    energy = band(result.wall_s * job.power_w / WATT_HOUR / KILO) if job.power_w else None
    grid = cluster.grid_g_co2_per_kwh
    answer = Campaign(
        useful_share=band(result.useful_share),
        days=band(result.wall_s / DAY),
        usd=None if paid is None else band(result.wall_s * paid),
        interruptions=band(result.interruptions),
        checkpoint_interval_s=course.every_s[0],
        checkpoint_bytes=job.checkpoint.total_bytes,
        base_bytes=job.checkpoint.base_bytes,
        checkpoint_write_s=world.changed_share * job.checkpoint.total_bytes / kept[-1].write_bytes_per_s,
        checkpoint_stall_s=last.stall_s,
        spare_nodes=course.spares,
        idle_spare_nodes=course.spares - course.paid_spares,
        lost_share=mean.lost,
        mean_useful_share=mean.useful,
        bound_useful_share=None if why else bound_useful_share(job, least_bytes, world, cluster),
        mean_time_between_failures_s=1 / sum(h.per_s for h in course.hazards if h.name != MAINTENANCE),
        failures=world,
        by="simulation" if why else "closed form",
        kept=tuple(
            Kept(
                name=level.name,
                every_s=every,
                stall_s=level.stall_s,
                durable_s=level.durable_s,
                load_s=level.load_s,
                survives=level.survives,
            )
            for level, every in zip(course.levels, course.every_s, strict=True)
        ),
        kwh=energy,
        co2_kg=None if energy is None or grid is None else _scaled(energy, grid / 1000),
        loader_bytes_per_s=job.loaded_bytes_per_s,
        worth=worth_of(job, only(world, kept), cluster, price, mean.useful),
        notes=_notes(world, cluster, why),
        percentile_days=percentiles,
        deadline_chance=None if deadline_s is None else chance_within(percentiles, deadline_s / DAY),
    )
    if budget_usd is None:
        return answer
    return replace(answer, budget_chance=answer.chance_within_usd(budget_usd))


def finish_days(
    job: CampaignJob, world: FailureModel, cluster: ClusterSpec, step_band_s: tuple[float, float]
) -> tuple[float, ...]:
    """Days within which 0, 1, …, 100 % of all runs are finished, as in their `campaign`; nothing else of it.

    Args:
        job: What runs.
        world: What fails and how long everything takes.
        cluster: Where.
        step_band_s: Between which the step is in eight of ten cases.

    Raises:
        InputError: the run makes no headway.
    """
    return percentile_days(runs_over_bands(course_of(job, world, cluster), world, step_band_s, RUNS))


def is_kept(
    job: CampaignJob,
    world: FailureModel,
    cluster: ClusterSpec,
    step_band_s: tuple[float, float],
    deadline_s: float,
) -> bool:
    """Whether runs keep a deadline with a chance of `KEPT`, as their `campaign` says; see `finish_days`."""
    course = course_of(job, world, cluster)
    runs = _runs_unless_late(course, world, step_band_s, RUNS, deadline_s)
    return runs is not None and chance_within(percentile_days(runs), deadline_s / DAY) >= KEPT


def percentile_days(runs: Runs) -> tuple[float, ...]:
    """Days within which 0, 1, …, 100 % of simulated runs are finished."""
    return tuple(float(days) for days in np.percentile(runs.wall_s / DAY, np.arange(101)))


def band(values: Floats) -> Band:
    """The tenth, fiftieth and ninetieth percentile."""
    low, middle, high = np.percentile(values, (10, 50, 90))
    return Band(p10=float(low), p50=float(middle), p90=float(high))


def _scaled(scaled: Band, factor: float) -> Band:
    """A band times a factor."""
    return Band(p10=factor * scaled.p10, p50=factor * scaled.p50, p90=factor * scaled.p90)


def runs_over_bands(course: Course, world: FailureModel, step_band_s: tuple[float, float], runs: int) -> Runs:
    """Campaigns over the band of the step, the spread of the rate, and chance."""
    runs_unless_late = _runs_unless_late(course, world, step_band_s, runs, math.inf)
    if runs_unless_late is None:
        raise ValueError("no run is later than never")
    return runs_unless_late


def _runs_unless_late(
    course: Course, world: FailureModel, step_band_s: tuple[float, float], runs: int, limit_s: float
) -> Runs | None:
    """The same, or None where so many need longer than a limit that it is not kept: see `KEPT`.

    The percentile lies between two runs; with so many later than the limit, both of them are.
    """
    step, spread = factors_of_runs(world, step_band_s, runs)
    rate = np.minimum(spread, highest_rate_factor(course))
    part = np.minimum(1.0, MOST_FAILURES / (course.per_s * course.work_s * rate * step))
    runs_unless_late = simulate_unless_late(
        course, runs, limit_s=limit_s * part, most_late=runs - 1 - math.floor(KEPT * (runs - 1)),
        rate_factor=rate, work_factor=step * part,
    )  # fmt: skip
    if runs_unless_late is None:
        return None
    return replace(
        runs_unless_late,
        work_s=runs_unless_late.work_s / part,
        wall_s=runs_unless_late.wall_s / part,
        interruptions=runs_unless_late.interruptions / part,
    )


def factors_of_runs(
    world: FailureModel, step_band_s: tuple[float, float], runs: int
) -> tuple[Floats, Floats]:
    """Factors on the step and on rates of failure of each of some campaigns: even percentiles of both."""
    step = _lognormal(math.log(step_band_s[1] / step_band_s[0]) / TEN_TO_NINETY, runs, seed=2)
    return step, _lognormal(spread_of(world.site), runs, seed=3)


def highest_rate_factor(course: Course) -> float:
    """The highest factor on rates with which a run gets on: few failures in an interval and recovery."""
    back_s = mean_of(course.hazards, lambda h: h.notice_s + h.restart_s + course.load_s(h))
    whole_s = back_s + max(course.every_s) + max(level.stall_s + level.durable_s for level in course.levels)
    return max(1.0, _MOST_IN_ALL / (course.per_s * whole_s))


def _shortened(course: Course) -> Course:
    """The same run, as long as is worth simulating."""
    failures = course.per_s * course.work_s
    return replace(course, work_s=course.work_s * min(1.0, FAILURES_OF_A_MEAN / failures))


def _lognormal(sigma: float, count: int, seed: int) -> Floats:
    """Factors at evenly spaced percentiles of a lognormal of median 1, in an order of their own."""
    from statistics import NormalDist

    quantiles = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
    return np.exp(sigma * np.random.default_rng(seed).permutation(quantiles))


def _shares(runs: Runs) -> Shares:
    """Mean shares of simulated campaigns."""
    whole = float(runs.wall_s.sum())
    names = (
        "lost_work",
        "detection",
        "restart",
        "maintenance",
        "waiting_for_nodes",
        "fewer_replicas",
        "stragglers",
    )
    parts = {name: float(getattr(runs, f"{name}_s").sum()) / whole for name in names}
    useful = float(runs.work_s.sum()) / whole
    parts["checkpoints"] = 1 - useful - sum(parts.values())
    return Shares(useful=useful, lost=LostShare(**parts))


def _notes(world: FailureModel, cluster: ClusterSpec, why: str) -> tuple[str, ...]:
    """What the answer rests on."""
    site = world.site
    notes = [
        f"failures at the rate of {site.name}, {site.per_1000_node_days:.3g} in 1,000 node-days"
        + (f" ({site.source})" if site.source else "")
    ]
    kinds = sorted({node.gpu for node in cluster.nodes} - {site.gpu})
    if kinds:
        notes.append(f"those are of {site.gpu}, not of {', '.join(kinds)}: no rate of these is published")
    notes.append(
        f"rates of sites differ by a factor of {math.exp(spread_of(site)):.2g} (one standard deviation), "
        "which the bands hold"
    )
    notes += explain_measured(site)
    if why:
        notes.append(f"the simulation answers, the closed form does not hold: {why}")
    return tuple(notes)
