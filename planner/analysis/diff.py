"""Two plans side by side: which choices differ, and what every part of the estimate gains or loses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from costmodel.estimate import TimeBreakdown
from costmodel.layout import layout_record
from costmodel.switches.profile import switches_of
from planner.campaign.finish import campaign_or_none
from planner.engines.fields import job_facts
from planner.plan import Plan, stack_of


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityChange:
    """One quantity in both plans; `relative` is second/first − 1, None where there is no such ratio."""

    name: str
    first: float | None
    second: float | None
    relative: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDiff:
    """What differs between two plans.

    `choices` has both values of every choice that differs (of the request, the layout, the stages), by name;
    `quantities` every estimated quantity of both.
    """

    choices: Mapping[str, tuple[Any, Any]]
    quantities: tuple[QuantityChange, ...]

    def rows(self) -> list[dict[str, Any]]:
        """The quantities as a table, one row each."""
        names = [field.name for field in fields(QuantityChange)]
        return [{name: getattr(change, name) for name in names} for change in self.quantities]


def diff(first: Plan, second: Plan) -> PlanDiff:
    """Compare two plans: what was chosen differently, and what it costs."""
    return PlanDiff(choices=changed_choices(first, second), quantities=changed_quantities(first, second))


def changed_choices(first: Plan, second: Plan) -> Mapping[str, tuple[Any, Any]]:
    """Every choice that differs, by name: of the request, of the layout, of the stages."""
    stated = {**first.request.switches, **second.request.switches}
    a, b = (_choices(plan) | _switches(plan, stated) for plan in (first, second))
    return {name: (a.get(name), b.get(name)) for name in (a | b) if a.get(name) != b.get(name)}


def changed_quantities(first: Plan, second: Plan) -> tuple[QuantityChange, ...]:
    """Every estimated quantity of both plans, in the order a reader wants them."""
    a, b = _quantities(first), _quantities(second)
    return tuple(
        QuantityChange(name=name, first=a[name], second=b[name], relative=_relative(a[name], b[name]))
        for name in a
    )


def _choices(plan: Plan) -> dict[str, Any]:
    """What was asked and decided, flat."""
    request = plan.request
    return {
        "model": request.model.name,
        "cluster": request.cluster.name,
        "gpus": request.cluster.num_gpus,
        **job_facts(request.job),
        "stack": request.stack,
        "objective": request.objective,
        **layout_record(plan.layout),
        "layers_of_stage": list(plan.layers_of_stage),
        "recompute_of_stage": list(plan.recompute_of_stage),
    }


def _switches(plan: Plan, stated: Iterable[str]) -> dict[str, str]:
    """The value that a plan's engine has of switches that either plan states."""
    mine = {**switches_of(stack_of(plan.request)), **plan.request.switches}
    return {f"switch.{name}": mine.get(name, "") for name in stated}


def _quantities(plan: Plan) -> dict[str, float | None]:
    """What the plan is estimated to cost, flat; keys carry units. Days and dollars of the run are medians."""
    estimate, run = plan.estimate, campaign_or_none(plan)
    names = [field.name for field in fields(TimeBreakdown) if field.name != "hidden_s"]
    return {
        "step_time_s": estimate.step_time_s,
        **{f"time.{name}": float(getattr(estimate.time, name)) for name in names},
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "mfu": estimate.mfu,
        "peak_memory_bytes": estimate.peak_memory_bytes,
        "out_of_memory_chance": estimate.out_of_memory_chance,
        "usd_per_billion_tokens": estimate.usd_per_billion_tokens,
        "wh_per_billion_tokens": estimate.wh_per_billion_tokens,
        "days": None if run is None else run.days.p50,
        "usd": None if run is None or run.usd is None else run.usd.p50,
        "deadline_chance": None if run is None else run.deadline_chance,
        "budget_chance": None if run is None else run.budget_chance,
    }


def _relative(first: float | None, second: float | None) -> float | None:
    """Second over first, minus one."""
    return None if first is None or second is None or first == 0 else second / first - 1
