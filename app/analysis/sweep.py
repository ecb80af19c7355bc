"""A sweep as a table: one row a point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.errors import ANSWERED, NO_FEASIBLE_PLAN
from app.limits import kept_words
from app.quantities import format_count, format_percent, format_usd
from app.reports.answer import Answer, Lines, Table, json_text
from app.reports.layout_words import plan_words
from app.reports.plan_headline import unit_of_work
from costmodel.memory.fit import fit_of
from planner.analysis.sweep import Point, gpu_of
from topology.base.counts import counted
from topology.base.units import format_bytes, format_chance, format_seconds, three_digits

NAMED = ("model", "stack", "precision", "optimizer")
"""What has a column where points differ in it."""


def sweep_answer(points: Sequence[Point]) -> Answer:
    """Everything `plan sweep` says: one row a point."""
    records = tuple(point.row() for point in points)
    unit = unit_of_work(points[0].request)
    varying = [name for name in NAMED if len({record[name] for record in records}) > 1]
    pins = pins_swept(points)
    is_run = points[0].request.job.total_tokens is not None
    limited = is_run and points[0].request.job.deadline_s is not None
    at = ", ".join(
        dict.fromkeys(
            f"{gpu_of(point.request)} {format_percent(point.imposed_mfu)}"
            for point in points
            if point.imposed_mfu is not None
        )
    )
    table = Table(
        title="",
        columns=(
            *varying,
            *pins,
            "GPU",
            "GPUs",
            "sequence",
            "batch",
            "step time",
            f"{unit}/s",
            "MFU",
            "efficiency",
            "waiting",
            "memory",
            "OOM",
            f"$ / B {unit}",
            *(("days", "$ in all") if is_run else ()),
            *(("deadline",) if limited else ()),
            "layout",
        ),
        rows=tuple(
            (
                *(str(record[name]) for name in varying),
                *(str(point.request.pins.get(name, "–")) for name in pins),
                *(row := _row(point))[:-1],
                *(_finish(point, limited=limited) if is_run else ()),
                row[-1],
            )
            for point, record in zip(points, records, strict=True)
        ),
        align="l" * len(varying)
        + "r" * len(pins)
        + "lrrrrrrrrrrr"
        + ("rr" if is_run else "")
        + ("r" if limited else "")
        + "l",
        note=f"efficiency: {unit}/s/GPU over that of the fewest GPUs; waiting: share of the step in "
        "communication that nothing hides"
        + (
            f"; days and $ in all: median of the whole run, failures included, $ / B {unit}: steps alone"
            * is_run
        )
        + (f"; days and $ in all at an imposed MFU: {at}" if at else ""),
    )
    names = dict.fromkeys(f"{point.request.model.name} · {point.request.stack}" for point in points)
    return Answer(
        headline=", ".join(names) + f" · {len(points)} points",
        sections=(*_map(points, pins), table, *_reasons(points)),
        document=lambda: json_text({"points": list(records)}),
        records=records,
        exit_code=NO_FEASIBLE_PLAN if limited and all(map(_misses, points)) else ANSWERED,
    )


def _misses(point: Point) -> bool:
    """Whether a point has no plan whose run may keep its deadline."""
    return point.run is None or "deadline" in point.run.missed


def pins_swept(points: Sequence[Point]) -> list[str]:
    """Fields of the layout that points were given unlike values of, by their short names."""
    names = dict.fromkeys(name for point in points for name in point.request.pins)
    return [name for name in names if len({point.request.pins.get(name) for point in points}) > 1]


def _map(points: Sequence[Point], pins: Sequence[str]) -> tuple[Table, ...]:
    """Step times over two pinned fields, where nothing else differs: one down, one across."""
    if len(pins) != MAP_AXES:
        return ()
    down, across = (tuple(dict.fromkeys(point.request.pins[name] for point in points)) for name in pins)
    if len(down) * len(across) != len(points):
        return ()
    cells = {tuple(point.request.pins[name] for name in pins): _cell(point) for point in points}
    rows = tuple((f"{pins[0]} {row}", *(cells[row, column] for column in across)) for row in down)
    head = ("", *(f"{pins[1]} {column}" for column in across))
    return (Table(title="Step time, or the rule that leaves no plan", columns=head, rows=rows),)


MAP_AXES: Final = 2


def _cell(point: Point) -> str:
    """What a map shows of a point."""
    if point.plan is None:
        return _rule(point)
    word = fit_of(point.plan.estimate.out_of_memory_chance)
    return format_seconds(point.plan.estimate.step_time_s) + (f" ({word})" if word != "fits" else "")


def _rule(point: Point) -> str:
    """The rule that leaves a point without a plan: of several the one that dismissed most layouts."""
    first, _, rest = point.reason.partition(": ")
    return rest.split(" ")[0] if " " in first else first


def _reasons(points: Sequence[Point]) -> tuple[Lines, ...]:
    """Why points have no plan, each rule once, of the point that it was met at first."""
    reasons: dict[str, str] = {}
    for point in points:
        if point.plan is None:
            reasons.setdefault(_rule(point), point.reason)
    return (Lines(title="No plan", lines=tuple(reasons.values())),) if reasons else ()


def _finish(point: Point, *, limited: bool) -> tuple[str, ...]:
    """Days and dollars of the whole run, and whether it keeps its deadline where it has one, as cells."""
    run = point.run
    if run is None:
        return ("–",) * (3 if limited else 2)
    cells = three_digits(run.days.p50), "no price" if run.usd is None else format_usd(run.usd.p50)
    chance = run.deadline_chance
    return (*cells, "–" if chance is None else kept_words(chance)) if limited else cells


def _row(point: Point) -> tuple[str, ...]:
    """One point as cells."""
    request = point.request
    asked = (
        gpu_of(request),
        f"{request.cluster.num_gpus:,}",
        f"{request.job.sequence_length:,}",
        f"{request.job.global_batch_size:,}",
    )
    if point.plan is None:
        return (*asked, *("–",) * 8, f"no plan: {_rule(point)}")
    estimate = point.plan.estimate
    return (
        *asked,
        format_seconds(estimate.step_time_s),
        format_count(request.job.tokens_per_step / estimate.step_time_s),
        format_percent(estimate.mfu),
        format_percent(point.scaling_efficiency),
        format_percent(point.communication_share),
        format_bytes(estimate.peak_memory_bytes),
        format_chance(estimate.out_of_memory_chance),
        format_usd(estimate.usd_per_billion_tokens),
        plan_words(point.plan) + (f"; {counted(idle, 'GPU')} idle" if (idle := point.plan.idle_gpus) else ""),
    )
