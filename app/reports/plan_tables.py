"""Where the step and the memory go: the time of each part, the memory of each stage."""

from __future__ import annotations

from collections.abc import Sequence

from app.quantities import format_like, format_share
from app.reports.answer import Table, bar
from app.reports.layout_words import layer_words
from costmodel.estimate import PART_NAMES, Estimate
from costmodel.memory.stage import MemoryBreakdown
from planner.plan import Plan
from planner.pricing import capacities_bytes
from topology.base.units import GIB, format_bytes

_MEMORY_NAMES = ("weights", "gradients", "optimizer", "activations", "buffers", "overhead")
_MOST_ROWS = 16
_NEGLIGIBLE = 5e-4
"""Parts of the step below this share are left out of the table."""


def time_table(estimate: Estimate) -> Table:
    """Where the step goes, part by part."""
    total = estimate.step_time_s
    parts = [(name, float(getattr(estimate.time, part))) for part, name in PART_NAMES.items()]
    rows = [
        (name, format_like(value, total), format_share(value / total), bar(value / total))
        for name, value in parts
        if value > total * _NEGLIGIBLE
    ]
    rows.append(("total", format_like(total, total), "100 %", ""))
    communication = estimate.time.hidden_s.items()
    hidden = " · ".join(
        f"{axis} {format_like(s, total)}" for axis, s in communication if s > total * _NEGLIGIBLE
    )
    return Table(
        title="Time of a step", columns=("", "time", "share", ""), rows=tuple(rows), align="lrrl",
        note=f"hidden under compute, outside the sum: {hidden}" if hidden else "",
    )  # fmt: skip


def memory_table(plan: Plan) -> Table:
    """Memory of every stage, beside its layers; neighbouring stages that are equal share a row."""
    room = capacities_bytes(plan)
    stages = plan.estimate.memory_by_stage
    layers = layer_words(plan.layers_of_stage, plan.layout)
    cells = [
        _memory_cells(stages[rank], layers[rank], plan.recompute_of_stage[rank], room[rank])
        for rank in range(len(stages))
    ]
    ranges = equal_ranges(cells)
    shown = [ranges[number] for number in _shown(len(ranges), _fullest_range(ranges, stages))]
    hidden = len(ranges) - len(shown)
    return Table(
        title=f"Memory per stage, GiB of {' or '.join(map(format_bytes, dict.fromkeys(room)))}",
        columns=("stage", "layers", "recomputed", *_MEMORY_NAMES, "total", "of HBM", ""),
        rows=tuple((_range_name(*span), *cells[span[0]]) for span in shown),
        align="rrr" + "r" * (len(_MEMORY_NAMES) + 2) + "l",
        note=f"{hidden} rows between these are not shown; --json has all" if hidden else "",
    )


def _memory_cells(memory: MemoryBreakdown, layers: str, recomputed: int, capacity: float) -> tuple[str, ...]:
    """One stage as cells."""
    share = memory.total_bytes / capacity
    parts = [_gib(getattr(memory, f"{name}_bytes")) for name in _MEMORY_NAMES]
    return (layers, str(recomputed), *parts, _gib(memory.total_bytes), format_share(share), bar(share, 16))


def equal_ranges(cells: Sequence[tuple[str, ...]]) -> list[tuple[int, int]]:
    """First and last index of every run of equal rows.

    >>> equal_ranges([("a",), ("b",), ("b",), ("a",)])
    [(0, 0), (1, 2), (3, 3)]
    """
    starts = [i for i in range(len(cells)) if i == 0 or cells[i] != cells[i - 1]]
    return [(start, end - 1) for start, end in zip(starts, [*starts[1:], len(cells)], strict=True)]


def _range_name(first: int, last: int) -> str:
    """Name a run of stages."""
    return str(first) if first == last else f"{first}–{last}"


def _fullest_range(ranges: Sequence[tuple[int, int]], stages: Sequence[MemoryBreakdown]) -> int:
    """Index of the run that needs most memory."""
    return max(range(len(ranges)), key=lambda number: stages[ranges[number][0]].total_bytes)


def _shown(count: int, fullest: int) -> list[int]:
    """All rows, or when there are many: the first ones, the fullest, the last."""
    if count <= _MOST_ROWS:
        return list(range(count))
    return sorted({0, 1, 2, 3, fullest, count - 2, count - 1})


def _gib(value: float) -> str:
    """GiB with one decimal and without the unit, so that a column lines up."""
    return f"{value / GIB:.1f}"
