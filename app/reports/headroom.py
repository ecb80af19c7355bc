"""What the memory that a plan leaves free costs, beside what it spares."""

from __future__ import annotations

from typing import Final

from app.quantities import format_percent
from app.reports.answer import Facts
from costmodel.memory.fit import fit_text
from planner.analysis.headroom import HeadroomPrice
from planner.plan import Plan
from topology.base.units import format_bytes, format_seconds

_LEAST_SHARE: Final = 0.001
"""Of a step: what costs less is said to cost nothing."""


def headroom_facts(plan: Plan, price: HeadroomPrice | None) -> tuple[Facts, ...]:
    """The fastest plan that leaves no memory free, beside the plan; nothing where no price is known."""
    if price is None:
        return ()
    share = price.costs_s / plan.estimate.step_time_s
    costs = f"cost {format_seconds(price.costs_s)} of the step, {format_percent(share)}"
    words = costs if share > _LEAST_SHARE else "cost nothing"
    pairs = (
        ("headroom", f"{format_bytes(price.free_bytes)} of a GPU {words}"),
        ("step", f"{format_seconds(price.step_time_s)} with --memory-headroom 0"),
        ("memory", fit_text(price.out_of_memory_chance)),
    )
    return (Facts(title="Without headroom", pairs=pairs),)
