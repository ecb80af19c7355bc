"""How the fleets of a serving question are told beside each other: mode, precision and GPU kind."""

from __future__ import annotations

from collections.abc import Sequence

from app.quantities import format_usd
from app.reports.answer import Table
from costmodel.serving.bands import UNMEASURED_AXES
from planner.analysis.serving.contenders import summary_of
from planner.serving.plan import FleetSummary, ServingPlan
from topology.base.units import format_chance, format_seconds, three_digits

_SHORT = {"aggregated": "one pool", "disaggregated": "two pools", "mixed": "two kinds"}
_MARK = " ¹"
_STAGED = " ²"
_NOT_PROPOSED = "¹ another checkpoint, so not proposed unless --weights names it"


def comparison_table(plan: ServingPlan) -> Table:
    """The best fleet of every GPU kind, precision and mode: the plan, then the cheapest first.

    Of GPUs one has, which cost the same, the fastest. Who has no fleet is named with the reason below.
    """
    sized = plan.request.num_gpus is not None and plan.request.job.request_rate_per_s is None
    found = [summary_of(plan), *(one for one in plan.other_fleets if not one.why_not)]
    ranked = sorted(found[1:], key=lambda one: _rank(one, sized=sized))
    at = f"p{plan.request.job.percentile:g}"
    return Table(
        title="Compared",
        columns=(
            "kind",
            "mode",
            "layout",
            "requests/s" if sized else "GPUs, machines",
            "per hour",
            "per M tokens",
            f"{at} first",
            f"{at} each",
            "chance",
            "measured",
        ),
        rows=tuple(_row(one, sized=sized) for one in (found[0], *ranked)),
        align="lllrrrrrrl",
        note=_note(plan, found),
        wraps=(2,),
    )


def _rank(one: FleetSummary, *, sized: bool) -> tuple[float, ...]:
    """Order of the lines."""
    dollars = one.usd_per_hour if one.usd_per_hour is not None else float("inf")
    return (-one.request_rate_per_s, dollars) if sized else (dollars, one.num_gpus)


def _row(one: FleetSummary, *, sized: bool) -> tuple[str, ...]:
    """One fleet."""
    return (
        f"{one.gpu} {one.weights}{'' if one.proposed or one.mode == 'mixed' else _MARK}",
        _SHORT[one.mode],
        one.label.replace("prefill ", "").replace(", decode ", " → "),
        three_digits(one.request_rate_per_s) if sized else _rented(one),
        _hourly(one),
        format_usd(one.usd_per_million_tokens),
        format_seconds(one.ttft_s) if one.ttft_s is not None else "–",
        format_seconds(one.tpot_s) if one.tpot_s is not None else "–",
        format_chance(one.chance) if one.chance is not None else "–",
        _measured(one),
    )


def _rented(one: FleetSummary) -> str:
    """GPUs of a fleet, and the whole machines that they come in."""
    rental = one.rental
    return (
        f"{one.num_gpus}" if rental is None else f"{one.num_gpus} ({rental.machines} × {rental.offer.gpus})"
    )


def _measured(one: FleetSummary) -> str:
    """Measured runs behind a fleet, and whether an axis is what none of them has."""
    axes = any(name in UNMEASURED_AXES for name in one.not_measured)
    return f"{one.rows or 'no'} run{'s' * (one.rows != 1)}{_STAGED if axes else ''}"


def _hourly(one: FleetSummary) -> str:
    """Dollars an hour, and what no fleet of its kind costs less than where that is less."""
    least = one.least_usd_per_hour
    told = format_usd(one.usd_per_hour)
    unproven = least is not None and one.usd_per_hour is not None and least < one.usd_per_hour * (1 - 1e-9)
    return f"{told} (≥ {format_usd(least)})" if unproven else told


def _note(plan: ServingPlan, found: Sequence[FleetSummary]) -> str:
    """What the mark says, the smallest fleet, and who has none and why."""
    smallest = min(found, key=lambda one: one.num_gpus)
    missing: dict[str, list[str]] = {}
    for one in plan.other_fleets:
        if one.why_not:
            missing.setdefault(one.why_not, []).append(f"{one.gpu} {one.weights} in {_SHORT[one.mode]}")
    parts = ["chance: of keeping every limit"] if any(one.chance is not None for one in found) else []
    parts += [_NOT_PROPOSED] if any(not one.proposed and one.mode != "mixed" for one in found) else []
    if any(one.mode == "mixed" for one in found):
        parts.append("two kinds: shown, but no deployment of them is written")
    axes = [axis for axis in UNMEASURED_AXES if any(axis in one.not_measured for one in found)]
    if axes:
        parts.append(f"² {', '.join(axes)}: not measured")
    if plan.request.num_gpus is None:
        parts.append(f"smallest fleet: {smallest.num_gpus} × {smallest.gpu} {smallest.weights}")
    return "; ".join([*parts, *(f"{', '.join(who)}: {why}" for why, who in missing.items())])
