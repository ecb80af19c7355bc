"""The verifier: which layouts are legal, and why the others are not.

Enumerator, solver decode, command line, dashboard and tests all ask here; nothing else decides what is legal.
Each rule is written once, over columns: `legal` judges a table of layouts, `check` explains one layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from costmodel.layout import AXIS_ORDERS, CP_KINDS, RECOMPUTES, SCHEDULES, LayoutTable, ParallelLayout
from costmodel.memory.stage import MemoryBreakdown
from costmodel.models.sizes import MOST_LAYERS
from planner.law import Ground, PlanLaw, Violation
from planner.plan import LAYERS_OF_STAGE, RECOMPUTE_OF_STAGE, RECOMPUTED_LAYERS, SPLIT_PINS, Problem
from planner.rules.axes import AXIS_RULES
from planner.rules.engines import engine_rules, runners_of, runs_for
from planner.rules.shapes import SHAPE_RULES
from planner.rules.sharding import SHARDING_RULES
from planner.rules.split_pins import read_layers, read_recomputed
from planner.rules.stacks import STACK_RULES
from topology.base.arrays import Mask
from topology.base.counts import parse_count
from topology.base.errors import InputError, shown
from topology.base.names import YES_NO
from topology.base.units import format_bytes

__all__ = [
    "RULES",
    "Problem",
    "Violation",
    "check",
    "check_memory",
    "check_pins",
    "legal",
    "parse_pins",
    "rules_of",
]

RULES: tuple[PlanLaw, ...] = SHAPE_RULES + AXIS_RULES + STACK_RULES + SHARDING_RULES


def rules_of(engine: str) -> tuple[PlanLaw, ...]:
    """Every rule that a plan for an engine keeps."""
    return RULES + engine_rules(engine)


def check(problem: Problem, layout: ParallelLayout) -> tuple[Violation, ...]:
    """Explain every rule that one layout breaks, those of an engine among them; empty when it is legal."""
    degrees, *others = rules_of(problem.engine)
    row = LayoutTable.from_rows([layout])
    if _breaks(degrees, problem, row):  # the arithmetic of the other rules needs positive degrees
        return (_explained(degrees, problem, layout),)
    return tuple(_explained(rule, problem, layout) for rule in others if _breaks(rule, problem, row))


def legal(
    problem: Problem,
    table: LayoutTable,
    *,
    only: frozenset[str] | None = None,
    waived: frozenset[str] = frozenset(),
) -> tuple[Mask, dict[str, int]]:
    """Judge many layouts: a mask of the legal ones, and how many each rule was the first to reject.

    Args:
        problem: what they are judged against.
        table: the layouts.
        only: judge just the rules that read no other field than these.
        waived: names of rules that are not judged: a job that runs is known to break them.
    """
    keep = np.ones(len(table), dtype=bool)
    rejected: dict[str, int] = {}
    for rule in rules_of(problem.engine):
        if rule.name in waived or (only is not None and not only.issuperset(rule.reads)):
            continue
        broken = keep & rule.broken(problem, table)
        count = int(broken.sum())
        if count:
            rejected[rule.name] = count
            keep &= ~broken
    return keep, rejected


def check_pins(problem: Problem, pins: Mapping[str, Any]) -> tuple[Violation, ...]:
    """Explain why no layout can have these pinned fields, judging only rules that the pins decide.

    Fields left open that have names, not numbers, may take any: a rule is broken if it is under all of them.
    """
    layout = ParallelLayout(**dict(pins))
    return tuple(
        _explained(rule, problem, layout)
        for rule in rules_of(problem.engine)
        if _decided(rule, pins)
        and all(
            _breaks(rule, problem, LayoutTable.from_rows([replace(layout, **chosen)]))
            for chosen in _open_choices(rule, pins)
        )
    )


def _open_choices(rule: PlanLaw, pins: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every value of the named fields that a rule reads and the pins leave open."""
    names = [name for name in rule.reads if name in _CHOICES and name not in pins]
    for values in itertools.product(*(_CHOICES[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def check_memory(
    memory_by_stage: tuple[MemoryBreakdown, ...],
    capacity_bytes: float | Sequence[float],
    headroom: float = 0.0,
) -> Violation | None:
    """Explain the stage that does not fit, part by part; None when all fit.

    Args:
        memory_by_stage: What each stage needs.
        capacity_bytes: A GPU's memory, or that of every stage's.
        headroom: Share of it to leave free.
    """
    totals = [memory.total_bytes for memory in memory_by_stage]
    room = np.broadcast_to(np.asarray(capacity_bytes, dtype=np.float64), len(totals))
    stage = int(np.argmax(totals / room))
    capacity_bytes = float(room[stage])
    budget = capacity_bytes * (1 - headroom)
    if totals[stage] <= budget:
        return None
    parts = [f.name for f in fields(MemoryBreakdown) if getattr(memory_by_stage[stage], f.name) > 0]
    terms = " + ".join(
        f"{name.removesuffix('_bytes')} {format_bytes(getattr(memory_by_stage[stage], name))}"
        for name in parts
    )
    whole = format_bytes(capacity_bytes)
    of_gpu = f"the {whole} of a GPU less {100 * headroom:.1f} % headroom" if headroom else "what a GPU has"
    return Violation(
        rule="memory",
        ground="room",
        message=f"stage {stage}: {terms} = {format_bytes(totals[stage])} > {format_bytes(budget)}, {of_gpu}",
        have=totals[stage],
        need=budget,
        unit="bytes",
        hint="recompute more layers, split over more GPUs, or use GPUs with more memory",
    )


def parse_pins(pins: Mapping[str, Any]) -> dict[str, Any]:
    """Turn pinned fields as users write them (text or values) into values of `ParallelLayout`.

    >>> parse_pins({"layout.tp": "8", "recompute": "full", "axis_order": "pp-dp-cp-tp"})
    {'tp': 8, 'recompute': 'full', 'axis_order': ('pp', 'dp', 'cp', 'tp')}
    """
    return {
        name.removeprefix("layout."): _parse_pin(name.removeprefix("layout."), value)
        for name, value in pins.items()
        if name not in SPLIT_PINS
    }


def user_pins(settings: Mapping[str, str]) -> dict[str, Any]:
    """The pins of a user, in whose words ``full`` is every layer.

    ``full:N`` is N layers of every pipeline rank, ``full:auto`` as many as memory asks for.

    >>> user_pins({"recompute": "full"}), user_pins({"recompute": "full:4"})
    ({'recompute': 'full', 'recomputed_layers': 'all'}, {'recompute': 'full', 'recomputed_layers': 4})
    >>> user_pins({"recompute": "full:auto"})
    {'recompute': 'full'}
    >>> user_pins({"pp": "4", "layers_of_stage": "8*3-6"})
    {'pp': 4, 'layers_of_stage': (8, 8, 8, 6)}
    """
    readers = {LAYERS_OF_STAGE: read_layers, RECOMPUTE_OF_STAGE: read_recomputed}
    split = {name: read(settings[name]) for name, read in readers.items() if name in settings}
    of_layout = {name: text for name, text in settings.items() if name not in split}
    return {**_layout_pins(of_layout), **split}


def _layout_pins(settings: Mapping[str, str]) -> dict[str, Any]:
    """The pins of fields of the layout, and how many layers of a rank ``full`` recomputes."""
    policy, colon, number = settings.get("recompute", "").lower().partition(":")
    if policy != "full":
        return parse_pins(settings)
    pins = parse_pins({**settings, "recompute": policy})
    if colon and number == "auto":
        return pins
    return {**pins, RECOMPUTED_LAYERS: _recomputed_layers(number) if colon else "all"}


def _recomputed_layers(text: str) -> int:
    """The N of ``full:N``."""
    if text.isdecimal() and text.isascii() and 0 < int(text[:6]) <= MOST_LAYERS:
        return int(text)
    raise InputError(
        what=f"layout.recompute cannot be {shown(f'full:{text}')}",
        cause=f"after the colon stand the layers of every pipeline rank, 1 to {MOST_LAYERS}, or auto",
        fix="pin for example layout.recompute=full for every layer, or layout.recompute=full:2",
    )


_CHOICES: dict[str, tuple[Any, ...]] = {"schedule": SCHEDULES, "recompute": RECOMPUTES, "cp_kind": CP_KINDS}


def _parse_pin(name: str, value: Any) -> Any:
    known = [field.name for field in fields(ParallelLayout)]
    if name not in known:
        raise InputError(
            what=f"there is no layout field {name!r} to pin",
            cause=f"the fields are {', '.join((*known, LAYERS_OF_STAGE, RECOMPUTE_OF_STAGE))}",
            fix="pin one of those, for example layout.tp=8",
        )
    if name == "axis_order":
        order = tuple(value.replace(",", "-").split("-")) if isinstance(value, str) else tuple(value)
        return _among(name, order, AXIS_ORDERS)
    if name in _CHOICES:
        return _among(name, str(value).lower(), _CHOICES[name])
    if name == "sequence_parallel":
        return YES_NO[str(_among(name, str(value).lower(), tuple(YES_NO)))]
    return _whole_number(name, value)


def _among(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    if value in choices:
        return value
    shown = ", ".join("-".join(choice) if isinstance(choice, tuple) else str(choice) for choice in choices)
    raise InputError(
        what=f"layout.{name} cannot be {value!r}", cause=f"it is one of {shown}", fix="pin one of those"
    )


def _whole_number(name: str, value: Any) -> int:
    least = 0 if name == "zero_stage" else 1
    text = str(value).strip()
    if not least and text in ("0", "0.0"):
        return 0
    try:
        return parse_count(text, f"layout.{name}")
    except InputError as wrong:
        raise InputError(
            what=f"layout.{name} cannot be {shown(value)}",
            cause=f"it is a whole number of at least {least}",
            fix=f"pin for example layout.{name}={least}",
        ) from wrong


def _explained(rule: PlanLaw, problem: Problem, layout: ParallelLayout) -> Violation:
    """The violation of a rule on its ground; what engines run that is not priced here is said with them."""
    violation, ground = rule.violation(problem, layout), ground_of(rule, problem, layout)
    if ground != "unpriced":
        return replace(violation, ground=ground)
    runners = runners_of(rule.name)
    reasons = {why: [title for title, how in runners.items() if how == why] for why in runners.values()}
    ways = [f"run by {' and '.join(titles)}: {why}" for why, titles in reasons.items()]
    return replace(violation, ground=ground, message="; ".join((violation.message, *ways)))


def ground_of(rule: PlanLaw, problem: Problem, layout: ParallelLayout) -> Ground:
    """Why a layout that breaks a rule is refused; what an engine runs all the same is not priced.

    A rule that looks at the layout knows it itself: an engine may run one that breaks it and not another.
    """
    if callable(rule.ground):
        return rule.ground(problem, layout)
    return "unpriced" if rule.ground == "engine" and runs_for(problem, rule.name) else rule.ground


def _breaks(rule: PlanLaw, problem: Problem, row: LayoutTable) -> bool:
    """Whether a layout, a table of one row, breaks a rule."""
    return bool(np.any(rule.broken(problem, row)))


def _decided(rule: PlanLaw, pins: Mapping[str, Any]) -> bool:
    """Whether pinned fields alone settle a rule: all of its fields, or some when the rest can only help."""
    judged = [field in pins for field in rule.reads]
    return all(judged) or (rule.lenient_at_one and any(judged))
