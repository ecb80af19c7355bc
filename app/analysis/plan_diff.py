"""Two plans side by side: which choices differ, and what every part of the estimate gains or loses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from app.quantities import format_percent, format_share, format_usd
from app.reports.answer import Answer, Section, Table, json_text
from app.reports.plan_rows import layout_record
from costmodel.estimate import PART_NAMES, TimeBreakdown
from planner.plan import Plan
from topology.base.units import format_bytes, format_seconds, three_digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One quantity in both plans; `relative` is second/first − 1, None where there is no such ratio."""

    name: str
    first: float | None
    second: float | None
    relative: float | None


def diff_answer(first: Plan, second: Plan, first_name: str = "A", second_name: str = "B") -> Answer:
    """Everything `plan diff` says."""
    choices = changed_choices(first, second)
    changes = changed_quantities(first, second)
    faster = first.estimate.step_time_s / second.estimate.step_time_s
    sections: list[Section] = [_choices_table(choices), _quantities_table(changes)]
    document = {
        "first": first_name,
        "second": second_name,
        "choices": {name: {"first": a, "second": b} for name, (a, b) in choices.items()},
        "quantities": {
            change.name: {"first": change.first, "second": change.second, "relative": change.relative}
            for change in changes
        },
    }
    return Answer(
        headline=f"A = {first_name} · B = {second_name} · B is {three_digits(faster)} × as fast as A",
        sections=tuple(sections),
        document=json_text(document),
        records=tuple(
            {field.name: getattr(change, field.name) for field in fields(change)} for change in changes
        ),
    )


def changed_choices(first: Plan, second: Plan) -> Mapping[str, tuple[Any, Any]]:
    """Every choice that differs, by name: of the request, of the layout, of the stages."""
    a, b = _choices(first), _choices(second)
    return {name: (a.get(name), b.get(name)) for name in (a | b) if a.get(name) != b.get(name)}


def changed_quantities(first: Plan, second: Plan) -> tuple[Change, ...]:
    """Every estimated quantity of both plans, in the order a reader wants them."""
    a, b = _quantities(first), _quantities(second)
    return tuple(
        Change(name=name, first=a[name], second=b[name], relative=_relative(a[name], b[name])) for name in a
    )


def _choices(plan: Plan) -> dict[str, Any]:
    """What was asked and decided, flat."""
    request = plan.request
    job = {f"job.{field.name}": getattr(request.job, field.name) for field in fields(request.job)}
    return {
        "model": request.model.name,
        "cluster": request.cluster.name,
        "gpus": request.cluster.num_gpus,
        **job,
        "stack": request.stack,
        "objective": request.objective,
        **layout_record(plan.layout),
        "layers_of_stage": list(plan.layers_of_stage),
        "recompute_of_stage": list(plan.recompute_of_stage),
    }


def _quantities(plan: Plan) -> dict[str, float | None]:
    """What the plan is estimated to cost, flat; keys carry units."""
    estimate = plan.estimate
    names = [field.name for field in fields(TimeBreakdown) if field.name != "hidden_s"]
    return {
        "step_time_s": estimate.step_time_s,
        **{f"time.{name}": float(getattr(estimate.time, name)) for name in names},
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "mfu": estimate.mfu,
        "peak_memory_bytes": estimate.peak_memory_bytes,
        "usd_per_billion_tokens": estimate.usd_per_billion_tokens,
        "wh_per_billion_tokens": estimate.wh_per_billion_tokens,
    }


def _relative(first: float | None, second: float | None) -> float | None:
    """Second over first, minus one."""
    return None if first is None or second is None or first == 0 else second / first - 1


def _choices_table(choices: Mapping[str, tuple[Any, Any]]) -> Table:
    """Choices that differ."""
    rows = tuple((name, _cell(a), _cell(b)) for name, (a, b) in choices.items())
    return Table(
        title="Chosen differently", columns=("", "A", "B"), rows=rows or (("nothing", "", ""),), align="lll"
    )


def _quantities_table(changes: tuple[Change, ...]) -> Table:
    """Quantities of both, with the change; parts that both lack are left out."""
    rows = tuple(
        (
            _label(change.name),
            _write(change.name)(change.first),
            _write(change.name)(change.second),
            "" if change.relative is None else format_share(change.relative, signed=True),
        )
        for change in changes
        if change.first or change.second
    )
    return Table(title="Estimated", columns=("", "A", "B", "change"), rows=rows)


def _label(name: str) -> str:
    """A quantity's name for people.

    >>> _label("time.bubble_s"), _label("step_time_s")
    ('  pipeline bubble', 'step time')
    """
    part = PART_NAMES.get(name.removeprefix("time."))
    if part is not None:
        return f"  {part}"
    bare = name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")
    words = bare.removesuffix(" per").replace("usd", "$").replace("wh ", "Wh ")
    return {"mfu": "MFU", "tokens per s per gpu": "tokens/s/GPU"}.get(words, words)


def _write(name: str) -> Callable[[float | None], str]:
    """How to write a quantity, by the unit at the end of its name."""
    if name.endswith("_bytes"):
        return lambda value: "" if value is None else format_bytes(value)
    if name.endswith("_s"):
        return lambda value: "" if value is None else format_seconds(value)
    if name.startswith("usd"):
        return format_usd
    if name == "mfu":
        return lambda value: "" if value is None else format_percent(value)
    return lambda value: "" if value is None else three_digits(value)


def _cell(value: object) -> str:
    """A choice in one cell."""
    if isinstance(value, list):
        return "-".join(map(str, value))
    return "–" if value is None else str(value)
