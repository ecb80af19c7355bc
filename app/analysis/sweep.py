"""The best plan at every point of a grid: GPU counts, GPU kinds, sequence lengths, batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.actions.plan import answer_of
from app.flags.job import Flags
from app.quantities import format_count, format_percent, format_usd, parse_counts
from app.reports.answer import Answer, Table, json_text
from app.reports.infeasible import cause_of
from app.reports.layout_words import plan_words
from app.reports.plan_rows import layout_record
from app.requests.training import DEFAULT_GPU, MOST_GPUS, understand
from planner.plan import Plan, PlanRequest
from planner.search.infeasible import Infeasible
from topology.base.errors import InputError
from topology.base.units import format_bytes, format_seconds

MOST_POINTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a sweep: what was asked, and the plan or the reason there is none."""

    request: PlanRequest
    plan: Plan | None
    reason: str = ""


def points_of(flags: Flags) -> tuple[Flags, ...]:
    """Every combination of the values that were listed, as single requests."""
    gpus = _listed(flags.gpus, "--gpus", largest=MOST_GPUS)
    lengths = _listed(flags.sequence_length, "--sequence-length", binary=True)
    batches = _listed(flags.global_batch_size, "--global-batch-size")
    kinds = [name.strip() for name in flags.gpu.split(",")] if flags.gpu else [flags.gpu]
    grid = list(itertools.product(kinds, gpus, lengths, batches))
    if len(grid) > MOST_POINTS:
        raise InputError(
            what=f"a sweep of {len(grid):,} points is too long", cause=f"at most {MOST_POINTS:,} are planned",
            fix="list fewer values",
        )  # fmt: skip
    return tuple(
        replace(flags, gpu=kind, gpus=count, sequence_length=length, global_batch_size=batch)
        for kind, count, length, batch in grid
    )


def _listed(
    text: str | None, flag: str, *, largest: int = 10**18, binary: bool = False
) -> Sequence[str | None]:
    """Values of one flag, as text; one None when it was not given."""
    if text is None:
        return (None,)
    return tuple(str(count) for count in parse_counts(text, flag, largest=largest, binary=binary))


def run_points(points: Sequence[Flags]) -> Iterator[Point]:
    """Plan every point, one after the other."""
    for flags in points:
        request = understand(flags).request
        found = answer_of(request)
        if isinstance(found, Infeasible):
            yield Point(request=request, plan=None, reason=cause_of(found))
        else:
            yield Point(request=request, plan=found)


def sweep_answer(points: Sequence[Point]) -> Answer:
    """Everything `plan sweep` says: one row a point."""
    records = tuple(point_record(point) for point in points)
    table = Table(
        title="",
        columns=(
            "GPU",
            "GPUs",
            "sequence",
            "batch",
            "step time",
            "tokens/s",
            "MFU",
            "memory",
            "$ / B tokens",
            "layout",
        ),
        rows=tuple(_row(point) for point in points),
        align="lrrrrrrrrl",
    )
    names = dict.fromkeys(f"{point.request.model.name} · {point.request.stack}" for point in points)
    return Answer(
        headline=" · ".join(names) + f" · {len(points)} points",
        sections=(table,),
        document=json_text({"points": list(records)}),
        records=records,
    )


def point_record(point: Point) -> Mapping[str, Any]:
    """One point as flat data; keys carry units."""
    request = point.request
    asked = {
        "model": request.model.name,
        "gpu": gpu_of(request),
        "num_gpus": request.cluster.num_gpus,
        "sequence_length": request.job.sequence_length,
        "global_batch_size": request.job.global_batch_size,
        "precision": request.job.precision,
        "stack": request.stack,
        "status": "infeasible" if point.plan is None else point.plan.optimality.status,
        "reason": point.reason,
    }
    if point.plan is None:
        return asked
    estimate = point.plan.estimate
    return {
        **asked,
        "step_time_s": estimate.step_time_s,
        "lower_s": estimate.lower_s,
        "upper_s": estimate.upper_s,
        "tokens_per_s": request.job.tokens_per_step / estimate.step_time_s,
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "mfu": estimate.mfu,
        "peak_memory_bytes": estimate.peak_memory_bytes,
        "usd_per_billion_tokens": estimate.usd_per_billion_tokens,
        "search_time_s": point.plan.search_time_s,
        **layout_record(point.plan.layout),
    }


def gpu_of(request: PlanRequest) -> str:
    """Kinds of GPU in the cluster."""
    return "+".join(dict.fromkeys(node.gpu for node in request.cluster.nodes)) or DEFAULT_GPU


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
        return (*asked, "–", "–", "–", "–", "–", f"no plan: {point.reason}"[:80])
    estimate = point.plan.estimate
    return (
        *asked,
        format_seconds(estimate.step_time_s),
        format_count(request.job.tokens_per_step / estimate.step_time_s),
        format_percent(estimate.mfu),
        format_bytes(estimate.peak_memory_bytes),
        format_usd(estimate.usd_per_billion_tokens),
        plan_words(point.plan),
    )
