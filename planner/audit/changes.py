"""What would make a job faster: every single change of its layout, and the proven best, in its own words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.estimate import Estimate
from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.memory.fit import fit_of, out_of_memory_chance
from costmodel.models.spec import layer_order, layer_runs
from costmodel.pipeline.even_split import even_split
from costmodel.pipeline.schedules import usual_schedule
from costmodel.pipeline.stage_costs import StageSplit
from costmodel.stack import SoftwareStack
from costmodel.training.bands import peak_spread, tie_ratio
from costmodel.training.estimate import estimate
from costmodel.training.score import evaluate
from planner.audit.conclusions import layer_period
from planner.audit.contract_reading import (
    facts_of_job,
    mechanisms_off,
    problem_as_run,
    profile_reading_of,
    split_as_run,
    words_between,
)
from planner.audit.job import Job
from planner.audit.read import Reading
from planner.audit.spelling import WITHOUT, spelled_change, spelled_words
from planner.engines.fields import facts_of, is_numeric, stack_facts, stack_with
from planner.formats.logs import Measured
from planner.plan import Plan, PlanRequest, Problem, stack_of
from planner.rules.check import check, legal

MOST_CHANGES = 6
LEAST_GAIN = 0.002
"""Share of a step below which a change is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A job as its files have it.

    Attributes:
        request: The job.
        layout: How it is split.
        split: Layers and recomputed layers of every rank.
        stack: The profile with what the files switch off.
        off: Mechanisms that they switch off.
        estimate: What it should take.
        memory_level: Printed over predicted peak, where a log prints one that can be of this job: the peaks
            of other layouts of the same engine are off by as much.
    """

    request: PlanRequest
    problem: Problem
    layout: ParallelLayout
    split: StageSplit
    stack: SoftwareStack
    off: tuple[str, ...]
    estimate: Estimate
    memory_level: float = 1.0

    def chance_of(self, peak_bytes: float) -> float:
        """Chance of OOM of another layout of the job, by its predicted peak."""
        capacity = self.problem.cluster.gpu.memory_bytes
        return out_of_memory_chance(self.memory_level * peak_bytes, capacity, peak_spread(self.problem.case))

    @property
    def facts(self) -> dict[str, Any]:
        """Everything it says, by field."""
        return {
            **facts_of_job(self.request, self.layout, self.split, self.stack),
            **dict.fromkeys(self.off, False),
        }


def memory_level_of(log: Measured | None, predicted: Estimate) -> float:
    """Printed over predicted peak; 1 where no log prints one, or one that is beyond the band taken twice."""
    if log is None or not log.peak_memory_bytes or log.out_of_memory:
        return 1.0
    level, widest = log.peak_memory_bytes / predicted.peak_memory_bytes, _widest(predicted)
    return level if 1 / widest <= level <= widest else 1.0


def reaches_peak(printed_bytes: float, predicted: Estimate) -> bool:
    """Whether a printed peak can be of a rank of a job, by the band taken twice."""
    ranks = [stage.total_bytes for stage in predicted.memory_by_stage] or [predicted.peak_memory_bytes]
    widest = _widest(predicted)
    return min(ranks) / widest <= printed_bytes <= predicted.peak_memory_bytes * widest


def _widest(predicted: Estimate) -> float:
    """The upper end of the band over the peak, taken twice."""
    return (predicted.memory_upper_bytes / predicted.peak_memory_bytes) ** 2


def running_of(reading: Reading, job: Job, cal: Calibration) -> Running | None:
    """A job as its files have it, estimated; None where its layout is not known."""
    if job.request is None or job.layout is None:
        return None
    judged, parsed = (
        problem_as_run(reading, job.request, job.layout).of(cal=cal),
        profile_reading_of(reading, job.request),
    )
    problem, stack = judged.of(stack=stack_of(job.request)), judged.stack
    split = split_as_run(job.request, job.layout, parsed)
    period = layer_period(reading.facts) or 1
    if period > 1 and job.layout.recompute == "full":
        split = replace(split, recompute_of_stage=tuple(n // period for n in split.recompute_of_stage))
    priced = estimate(judged.case, job.layout, split)
    return Running(
        request=job.request, problem=problem, layout=job.layout, split=split, stack=stack,
        off=mechanisms_off(problem.stack, parsed), estimate=priced,
        memory_level=memory_level_of(reading.measured, priced),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change.

    Attributes:
        set: Words to write, as the file's engine spells them.
        remove: Words to take away.
        fields: Canonical fields and their new values.
        step_time_s: Of the job with it.
        seconds_gained: Less of a step.
        peak_memory_bytes: Of the fullest GPU with it.
        memory_change_bytes: More than now, at the level of a printed peak.
        out_of_memory_chance: Of the job with it.
        tied: The gain is within what the model cannot tell of two layouts of one job.
        whole: Whether it is the whole way to the best plan, not one change.
    """

    set: tuple[str, ...]
    fields: tuple[tuple[str, Any], ...]
    step_time_s: float
    seconds_gained: float
    peak_memory_bytes: float
    memory_change_bytes: float
    out_of_memory_chance: float
    tied: bool
    whole: bool = False
    remove: tuple[str, ...] = ()


def changes_of(reading: Reading, now: Running, best: Plan | None, *, runs: bool) -> tuple[Change, ...]:
    """Changes that gain time, or make the job fit, ranked by the seconds they gain.

    What is proposed fits by the rule of the search; beside a job that is known to run it may also have the
    chance of OOM of that job, and where nothing surely fits it may be tight.

    Args:
        reading: The files.
        now: The job as they have it.
        best: The proven best of the same engine and cluster.
        runs: A log shows that the job runs.
    """
    problem = now.problem
    fits = runs or fit_of(now.estimate.out_of_memory_chance) == "fits"
    most = most_bytes(problem, now, runs=runs)
    useful = _useful(reading, now, problem, best, most, fits=fits)
    if not fits and best is None and not useful:  # nothing surely fits: what comes closer to it
        closer = _useful(reading, now, problem, best, now.estimate.peak_memory_bytes, fits=fits)
        useful = [change for change in closer if fit_of(change.out_of_memory_chance) != "does not fit"]
    useful.sort(key=lambda change: -change.seconds_gained)
    once = list({(change.set, change.remove): change for change in reversed(useful)}.values())[::-1]
    return (*_whole(reading, now, best, fits=fits), *once[:MOST_CHANGES])


def _useful(
    reading: Reading, now: Running, problem: Problem, best: Plan | None, most: float, *, fits: bool
) -> list[Change]:
    """Single changes that files have words for: those that gain time, or any of a job that may not fit."""
    single = [
        *_of_layout(reading, now, problem, best, most),
        *_of_switches(reading, now, problem, most),
    ]
    least = LEAST_GAIN * now.estimate.step_time_s if fits else -np.inf
    return [change for change in single if (change.set or change.remove) and change.seconds_gained > least]


def _change(
    now: Running, words: tuple[str, ...], fields: tuple[tuple[str, Any], ...], step_s: float, peak: float
) -> Change:
    """A change beside the job as it is."""
    return Change(
        set=tuple(word for word in words if not word.startswith(WITHOUT)),
        remove=tuple(word.removeprefix(WITHOUT) for word in words if word.startswith(WITHOUT)),
        fields=fields,
        step_time_s=step_s,
        seconds_gained=now.estimate.step_time_s - step_s,
        peak_memory_bytes=peak,
        memory_change_bytes=now.memory_level * (peak - now.estimate.peak_memory_bytes),
        out_of_memory_chance=now.chance_of(peak),
        tied=1 / tie_ratio() <= now.estimate.step_time_s / step_s <= tie_ratio(),
    )


def delivered(now: Running, change: Change, after: Running) -> Change | None:
    """A change with what its words deliver once they stand in the files; None where that is no use.

    The whole way to the best plan is that only where its words lead there.

    Args:
        now: The job as its files have it.
        change: What is proposed, with what was promised of it.
        after: The job as its files have it with these words.
    """
    if after.layout.num_gpus != now.layout.num_gpus:
        return None
    step_s, peak = after.estimate.step_time_s, after.estimate.peak_memory_bytes
    kept = _change(now, (), change.fields, step_s, peak)
    leads = abs(step_s / change.step_time_s - 1) <= PROMISE_TOLERANCE
    leads &= abs(peak / change.peak_memory_bytes - 1) <= PROMISE_TOLERANCE
    if change.whole and leads:
        return change  # in the numbers of the best plan, which stand beside it
    fits = fit_of(now.estimate.out_of_memory_chance) == "fits"
    if kept.seconds_gained <= LEAST_GAIN * now.estimate.step_time_s and (
        fits or kept.out_of_memory_chance >= now.estimate.out_of_memory_chance
    ):
        return None
    return replace(kept, set=change.set, remove=change.remove)


PROMISE_TOLERANCE = 0.01
"""Share within which what words deliver is what was promised of them."""


def _of_layout(
    reading: Reading, now: Running, problem: Problem, best: Plan | None, most: float
) -> Iterator[Change]:
    """Changes of one thing of the layout that are legal and take no more than so many bytes."""
    candidates = [row for row in dict.fromkeys(_neighbours(now.layout, problem, best)) if row != now.layout]
    if reading.family.recipes and "layout.sequence_parallel" not in reading.facts.by_field:
        kept = now.layout.sequence_parallel  # the recipe decides it, perhaps as a change would have it
        candidates = [row for row in candidates if row.sequence_parallel is kept or row.tp == 1]
    if not candidates:
        return
    table = LayoutTable.from_rows(candidates)
    judged = problem.of(stack=now.stack)
    waived = frozenset(violation.rule for violation in check(judged, now.layout))
    keep, _ = legal(judged, table, waived=waived)  # what the files say already is no reason against a layout
    with np.errstate(all="ignore"):
        scores = evaluate(replace(problem.case, stack=now.stack), table)
    for at, candidate in enumerate(candidates):
        step_s, peak = float(scores.step_time_s[at]), float(scores.peak_memory_bytes[at])
        if keep[at] and np.isfinite(step_s) and peak <= most:
            fields = changed_fields(now.layout, candidate)
            runs, order = layer_runs(now.request.model), layer_order(now.request.model)
            split = even_split([run.count for run in runs], candidate, order, problem.job.mtp_layers)
            after = {
                **now.facts,
                **facts_of_job(now.request, candidate, split, now.stack),
                **dict.fromkeys(now.off, False),
            }
            yield _change(now, _words(reading, now, after, fields), fields, step_s, peak)


def _of_switches(reading: Reading, now: Running, problem: Problem, most: float) -> Iterator[Change]:
    """Mechanisms that the engine has and the files do not switch on."""
    usual = stack_facts(problem.stack)
    for name in (name for name in now.off if not is_numeric(name)):
        others = {other: False for other in now.off if other != name}
        priced = estimate(
            replace(problem.case, stack=stack_with(problem.stack, others)), now.layout, now.split
        )
        after = {**now.facts, name: usual[name]}
        fields = ((name, True),)
        words = _words(reading, now, after, ())
        if priced.peak_memory_bytes <= most:
            yield _change(now, words, fields, priced.step_time_s, priced.peak_memory_bytes)


def most_bytes(problem: Problem, now: Running, *, runs: bool) -> float:
    """Predicted memory that a proposal may fill: what a plan may, or as much as a job that runs fills.

    A printed peak moves what a plan may to its level.
    """
    capacity = problem.cluster.gpu.memory_bytes
    taken = now.estimate.peak_memory_bytes if runs else 0.0
    return min(capacity, max(problem.memory_budget_bytes / now.memory_level, taken))


def _words(
    reading: Reading, now: Running, after: dict[str, Any], fields: tuple[tuple[str, Any], ...]
) -> tuple[str, ...]:
    """Words for a job that says this: by the contract of its engine, else by the file's own names."""
    between = words_between(reading, now.facts, after)
    if between is None:
        return spelled_change(reading, fields)
    return spelled_words(reading, *between)


def _whole(reading: Reading, now: Running, best: Plan | None, *, fits: bool) -> Iterator[Change]:
    """The way to the best plan, as one change: where it gains time, or the job does not fit as it is."""
    if best is None:
        return
    if fits and best.estimate.step_time_s >= now.estimate.step_time_s * (1 - LEAST_GAIN):
        return
    fields = changed_fields(now.layout, best.layout)
    words = _words(reading, now, facts_of(best), fields)
    change = _change(now, words, fields, best.estimate.step_time_s, best.estimate.peak_memory_bytes)
    yield replace(change, out_of_memory_chance=best.estimate.out_of_memory_chance, whole=True)


def changed_fields(before: ParallelLayout, after: ParallelLayout) -> tuple[tuple[str, Any], ...]:
    """Fields that differ, with their new values.

    >>> changed_fields(ParallelLayout(tp=2), ParallelLayout(tp=4, zero_stage=1))
    (('tp', 4), ('zero_stage', 1))
    """
    names = [name for name in ParallelLayout.__slots__ if name not in ("cp_kind", "axis_order")]
    return tuple(
        (name, getattr(after, name)) for name in names if getattr(before, name) != getattr(after, name)
    )


def _neighbours(layout: ParallelLayout, problem: Problem, best: Plan | None) -> Iterator[ParallelLayout]:
    """Layouts that differ in one thing."""
    supports = problem.stack.supports
    for name in ("tp", "pp", "cp"):
        for degree in _nearby_degrees(layout, name, best):
            yield from _moved(layout, name, degree)
    for size in _nearby_degrees(layout, "microbatch_size", best):
        yield replace(layout, microbatch_size=size)
    if layout.pp > 1:
        for chunks in sorted({1, 2, 4, *_nearby_degrees(layout, "virtual_stages", best)}):
            yield replace(layout, virtual_stages=chunks, schedule=usual_schedule(chunks))
    stages = supports.zero_stages_with_pipeline if layout.pp > 1 else supports.zero_stages
    for stage in stages:
        yield replace(layout, zero_stage=stage)
    for policy in supports.recomputes:
        yield replace(layout, recompute=policy)
    if layout.tp > 1:
        yield replace(layout, sequence_parallel=not layout.sequence_parallel)
    for degree in _nearby_degrees(layout, "ep", best) if problem.model.is_moe else ():
        yield replace(layout, ep=degree)


def _nearby_degrees(layout: ParallelLayout, name: str, best: Plan | None) -> tuple[int, ...]:
    """Twice, four times and half a degree, and that of the best plan."""
    now = getattr(layout, name)
    degrees = {now * 2, now * 4, max(1, now // 2), *(() if best is None else (getattr(best.layout, name),))}
    return tuple(sorted(degrees - {now}))


def _moved(layout: ParallelLayout, name: str, degree: int) -> Iterator[ParallelLayout]:
    """Another degree of one axis; dp takes what it frees."""
    ranks = layout.dp * getattr(layout, name)
    if ranks % degree:
        return
    moved = replace(layout, **{name: degree, "dp": ranks // degree, "shard_degree": None})
    if moved.pp == 1:
        moved = replace(moved, virtual_stages=1, schedule=usual_schedule(1))
    tensor = moved.tp > 1 and (layout.sequence_parallel or layout.tp == 1)
    yield replace(moved, sequence_parallel=tensor)
