"""What a single change of a plan is worth: no memory left free, or one switch of the engine set otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.quantities import format_percent, format_share
from app.reports.answer import Facts
from costmodel.memory.fit import fit_text
from planner.plan import Plan
from topology.base.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from planner.analysis.headroom import HeadroomPrice
    from planner.analysis.switch_effects import SwitchEffect

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


def switch_words(effect: SwitchEffect) -> str:
    """The flag that sets a switch otherwise, and what that gains."""
    return f"{effect.flag}: {format_share(effect.faster_by, signed=True)} tokens/s"


def switch_facts(effect: SwitchEffect | None) -> tuple[Facts, ...]:
    """The switch that shortens the step most, with the step and the peak of the same layout then."""
    if effect is None:
        return ()
    pairs = (
        ("change", switch_words(effect)),
        ("step", f"{format_seconds(effect.step_time_s)}, the layout as it is"),
        ("memory", format_bytes(effect.peak_memory_bytes)),
    )
    return (Facts(title="The switch worth most", pairs=pairs),)
