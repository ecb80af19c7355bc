"""How the fleets of a serving question are told beside each other: mode, precision and GPU kind."""

from __future__ import annotations

from collections.abc import Sequence

from app.quantities import format_usd
from app.reports.answer import Table
from costmodel.serving.bands import UNMEASURED_AXES
from planner.analysis.serving.contenders import plan_summary
from planner.serving.plan import FleetSummary, ServingPlan
from topology.base.units import format_chance, format_seconds, three_digits

_SHORT = {"aggregated": "one pool", "disaggregated": "two pools", "mixed": "two kinds"}
_MARK = " ¹"
_STAGED = " ²"
_CACHE = " ³"
_NARROW_CACHE = "³ keys and values in eight bits: answers change, so check them; --kv fp8 plans it"
_NOT_PROPOSED = "¹ another checkpoint, so not proposed unless --weights names it"


def comparison_table(plan: ServingPlan) -> Table:
    """The best fleet of every GPU kind, precision and mode: the plan, then the cheapest first.

    Of GPUs one has, which cost the same, the fastest. Who has no fleet is named with the reason below.
    """
    sized = plan.request.num_gpus is not None and plan.request.job.request_rate_per_s is None
    fleets = [
        plan_summary(plan),
        *(other_fleet for other_fleet in plan.other_fleets if not other_fleet.why_not),
    ]
    ranked = sorted(fleets[1:], key=lambda fleet: _rank(fleet, sized=sized))
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
        rows=tuple(_row(fleet, sized=sized) for fleet in (fleets[0], *ranked)),
        align="lllrrrrrrl",
        note=_note(plan, fleets),
        wraps=(2,),
    )


def _rank(fleet: FleetSummary, *, sized: bool) -> tuple[float, ...]:
    """Order of the lines."""
    dollars = fleet.usd_per_hour if fleet.usd_per_hour is not None else float("inf")
    return (-fleet.request_rate_per_s, dollars) if sized else (dollars, fleet.num_gpus)


def _row(fleet: FleetSummary, *, sized: bool) -> tuple[str, ...]:
    """One fleet."""
    cache = f", {fleet.kv_dtype} cache{_CACHE}" if fleet.kv_dtype else ""
    mark = "" if fleet.proposed or fleet.mode == "mixed" or cache else _MARK
    return (
        f"{fleet.gpu} {fleet.weights}{cache or mark}",
        _SHORT[fleet.mode],
        fleet.label.replace("prefill ", "").replace(", decode ", " → "),
        three_digits(fleet.request_rate_per_s) if sized else _rented(fleet),
        _hourly(fleet),
        format_usd(fleet.usd_per_million_tokens),
        format_seconds(fleet.ttft_s) if fleet.ttft_s is not None else "–",
        format_seconds(fleet.tpot_s) if fleet.tpot_s is not None else "–",
        format_chance(fleet.chance) if fleet.chance is not None else "–",
        _measured(fleet),
    )


def _rented(fleet: FleetSummary) -> str:
    """GPUs of a fleet, and the whole machines that they come in."""
    rental = fleet.rental
    return (
        f"{fleet.num_gpus}"
        if rental is None
        else f"{fleet.num_gpus} ({rental.machines} × {rental.offer.gpus})"
    )


def _measured(fleet: FleetSummary) -> str:
    """Measured runs behind a fleet, and whether an axis is what none of them has."""
    axes = any(name in UNMEASURED_AXES for name in fleet.not_measured)
    return f"{fleet.rows or 'no'} run{'s' * (fleet.rows != 1)}{_STAGED if axes else ''}"


def _hourly(fleet: FleetSummary) -> str:
    """Dollars an hour, and what no fleet of its kind costs less than where that is less."""
    least = fleet.least_usd_per_hour
    hourly = format_usd(fleet.usd_per_hour)
    unproven = (
        least is not None and fleet.usd_per_hour is not None and least < fleet.usd_per_hour * (1 - 1e-9)
    )
    return f"{hourly} (≥ {format_usd(least)})" if unproven else hourly


def _note(plan: ServingPlan, fleets: Sequence[FleetSummary]) -> str:
    """What the mark says, the smallest fleet, and who has none and why."""
    smallest = min(fleets, key=lambda fleet: fleet.num_gpus)
    missing: dict[str, list[str]] = {}
    for other_fleet in plan.other_fleets:
        if other_fleet.why_not:
            missing.setdefault(other_fleet.why_not, []).append(
                f"{other_fleet.gpu} {other_fleet.weights} in {_SHORT[other_fleet.mode]}"
            )
    parts = ["chance: of keeping every limit"] if any(fleet.chance is not None for fleet in fleets) else []
    others = [fleet for fleet in fleets if not fleet.proposed and fleet.mode != "mixed"]
    parts += [_NOT_PROPOSED] if any(not fleet.kv_dtype for fleet in others) else []
    parts += [_NARROW_CACHE] if any(fleet.kv_dtype for fleet in others) else []
    if any(fleet.mode == "mixed" for fleet in fleets):
        parts.append("two kinds: shown, but no deployment of them is written")
    axes = [axis for axis in UNMEASURED_AXES if any(axis in fleet.not_measured for fleet in fleets)]
    if axes:
        parts.append(f"² {', '.join(axes)}: not measured")
    if plan.request.num_gpus is None:
        parts.append(f"smallest fleet: {smallest.num_gpus} × {smallest.gpu} {smallest.weights}")
    return "; ".join([*parts, *(f"{', '.join(who)}: {why}" for why, who in missing.items())])
