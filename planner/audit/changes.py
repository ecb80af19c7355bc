"""What would make a job faster: every single change of its layout, and the proven best, in its own words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.pipeline.schedules import usual_schedule
from costmodel.training.score import evaluate
from planner.audit.read import Reading
from planner.audit.spelling import spelled_change
from planner.plan import Plan, PlanRequest
from planner.problem import Setting, setting_of
from planner.rules.check import legal

MOST_CHANGES = 6
LEAST_GAIN = 0.002
"""Share of a step below which a change is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change.

    Attributes:
        set: Words to write, as the file's engine spells them.
        fields: Canonical fields and their new values.
        step_time_s: Of the job with it.
        seconds_gained: Less of a step.
        peak_memory_bytes: Of the fullest GPU with it.
        memory_change_bytes: More than now.
        fits: Whether it fits with it.
        whole: Whether it is the whole way to the best plan, not one change.
    """

    set: tuple[str, ...]
    fields: tuple[tuple[str, Any], ...]
    step_time_s: float
    seconds_gained: float
    peak_memory_bytes: float
    memory_change_bytes: float
    fits: bool
    whole: bool = False


def changes_of(
    reading: Reading, request: PlanRequest, layout: ParallelLayout, best: Plan | None, cal: Calibration
) -> tuple[Change, ...]:
    """Changes that gain time, or make the job fit, ranked by the seconds they gain.

    Args:
        reading: The files.
        request: The job.
        layout: How it is split now.
        best: The proven best of the same engine and cluster.
        cal: Kernel and collective tables.
    """
    setting = setting_of(request)
    candidates = list(dict.fromkeys(_neighbours(layout, setting, best)))
    table = LayoutTable.from_rows([layout, *candidates])
    keep, _ = legal(setting, table)
    shares = np.array([1.0 if row.recompute == "full" else 0.0 for row in (layout, *candidates)])
    with np.errstate(all="ignore"):
        scores = evaluate(
            setting.model, setting.cluster, setting.job, setting.stack, table, cal, recomputed_share=shares
        )
    times, peaks = scores.step_time_s, scores.peak_memory_bytes
    capacity = setting.cluster.gpu.memory_bytes
    fits_now = bool(peaks[0] <= capacity)
    found: list[Change] = []
    for at, candidate in enumerate(candidates, 1):
        if not keep[at] or not np.isfinite(times[at]) or peaks[at] > capacity:
            continue
        gained = float(times[0] - times[at])
        if fits_now and gained < LEAST_GAIN * times[0]:
            continue
        fields = changed_fields(layout, candidate)
        if not spelled_change(reading, fields):
            continue
        found.append(
            Change(
                set=spelled_change(reading, fields),
                fields=fields,
                step_time_s=float(times[at]),
                seconds_gained=gained,
                peak_memory_bytes=float(peaks[at]),
                memory_change_bytes=float(peaks[at] - peaks[0]),
                fits=True,
            )
        )
    found.sort(key=lambda change: -change.seconds_gained)
    once = list({change.set: change for change in reversed(found)}.values())[::-1]
    return (*_whole(reading, layout, best, float(times[0]), float(peaks[0])), *once[:MOST_CHANGES])


def _whole(
    reading: Reading, layout: ParallelLayout, best: Plan | None, now_s: float, peak: float
) -> Iterator[Change]:
    """The way to the best plan, as one change."""
    if best is None:
        return
    fields = changed_fields(layout, best.layout)
    if fields and best.estimate.step_time_s < now_s * (1 - LEAST_GAIN):
        yield Change(
            set=spelled_change(reading, fields),
            fields=fields,
            step_time_s=best.estimate.step_time_s,
            seconds_gained=now_s - best.estimate.step_time_s,
            peak_memory_bytes=best.estimate.peak_memory_bytes,
            memory_change_bytes=best.estimate.peak_memory_bytes - peak,
            fits=True,
            whole=True,
        )


def changed_fields(before: ParallelLayout, after: ParallelLayout) -> tuple[tuple[str, Any], ...]:
    """Fields that differ, with their new values.

    >>> changed_fields(ParallelLayout(tp=2), ParallelLayout(tp=4, zero_stage=1))
    (('tp', 4), ('zero_stage', 1))
    """
    names = (
        "tp",
        "pp",
        "cp",
        "ep",
        "expert_tp",
        "dp",
        "virtual_stages",
        "schedule",
        "microbatch_size",
        "zero_stage",
        "shard_degree",
        "recompute",
        "sequence_parallel",
    )
    return tuple(
        (name, getattr(after, name)) for name in names if getattr(before, name) != getattr(after, name)
    )


def _neighbours(layout: ParallelLayout, setting: Setting, best: Plan | None) -> Iterator[ParallelLayout]:
    """Layouts that differ in one thing."""
    supports = setting.stack.supports
    for name in ("tp", "pp", "cp"):
        for degree in {getattr(layout, name) * 2, max(1, getattr(layout, name) // 2), *_of_best(best, name)}:
            yield from _moved(layout, name, degree)
    for size in {
        layout.microbatch_size * 2,
        max(1, layout.microbatch_size // 2),
        *_of_best(best, "microbatch_size"),
    }:
        yield replace(layout, microbatch_size=size)
    if layout.pp > 1:
        for chunks in {1, 2, 4, layout.virtual_stages * 2, *_of_best(best, "virtual_stages")}:
            yield replace(layout, virtual_stages=chunks, schedule=usual_schedule(chunks))
    stages = supports.zero_stages_with_pipeline if layout.pp > 1 else supports.zero_stages
    for stage in stages:
        yield replace(layout, zero_stage=stage)
    for policy in supports.recomputes:
        yield replace(layout, recompute=policy)
    if layout.tp > 1:
        yield replace(layout, sequence_parallel=not layout.sequence_parallel)
    for degree in (
        {layout.ep * 2, max(1, layout.ep // 2), *_of_best(best, "ep")} if setting.model.is_moe else ()
    ):
        yield replace(layout, ep=degree)


def _of_best(best: Plan | None, name: str) -> tuple[int, ...]:
    return (getattr(best.layout, name),) if best is not None else ()


def _moved(layout: ParallelLayout, name: str, degree: int) -> Iterator[ParallelLayout]:
    """Another degree of one axis; dp takes what it frees."""
    ranks = layout.dp * getattr(layout, name)
    if degree == getattr(layout, name) or ranks % degree:
        return
    moved = replace(layout, **{name: degree, "dp": ranks // degree, "shard_degree": None})
    if moved.pp == 1:
        moved = replace(moved, virtual_stages=1, schedule=usual_schedule(1))
    tensor = moved.tp > 1 and (layout.sequence_parallel or layout.tp == 1)
    yield replace(moved, sequence_parallel=tensor)
