"""Plans as flat rows, for spreadsheets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from costmodel.layout import ParallelLayout
from planner.plan import Alternative, Plan


def plan_records(plan: Plan) -> tuple[Mapping[str, Any], ...]:
    """The plan as rank 0 and its alternatives after it."""
    estimate = plan.estimate
    chosen = {
        "rank": 0,
        **layout_record(plan.layout),
        "layers_of_stage": _dashed(plan.layers_of_stage),
        "recompute_of_stage": _dashed(plan.recompute_of_stage),
        "step_time_s": estimate.step_time_s,
        "lower_s": estimate.lower_s,
        "upper_s": estimate.upper_s,
        "peak_memory_bytes": estimate.peak_memory_bytes,
        "slower_by": 0.0,
        "tied": False,
    }
    return (
        chosen,
        *(_alternative_record(rank, other) for rank, other in enumerate(plan.alternatives, start=1)),
    )


def layout_record(layout: ParallelLayout) -> dict[str, Any]:
    """The fields of a layout as cells."""
    record = {field.name: getattr(layout, field.name) for field in fields(layout)}
    record["shard_degree"] = layout.effective_shard_degree
    record["axis_order"] = "-".join(layout.axis_order)
    return record


def _alternative_record(rank: int, other: Alternative) -> dict[str, Any]:
    """One alternative as a row."""
    return {
        "rank": rank,
        **layout_record(other.layout),
        "layers_of_stage": _dashed(other.layers_of_stage),
        "recompute_of_stage": _dashed(other.recompute_of_stage),
        "step_time_s": other.step_time_s,
        "lower_s": other.lower_s,
        "upper_s": other.upper_s,
        "peak_memory_bytes": other.peak_memory_bytes,
        "slower_by": other.slower_by,
        "tied": other.tied,
    }


def _dashed(counts: tuple[int, ...]) -> str:
    """Counts in one cell."""
    return "-".join(map(str, counts))
