"""The words rules are written in: a `Rule` that judges a `Problem`, and the `Violation` it may find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from costmodel.layout import LayoutTable, ParallelLayout
from planner.plan import Problem
from topology.base.arrays import Mask

Ground = Literal["impossible", "engine", "unpriced", "room"]
"""Why a layout is refused: no program can run it, this software stops at it, nothing here prices it though
programs run it, or it needs more memory than there is."""
REFUSED: Final[Mapping[Ground, str]] = {
    "impossible": "this layout is not possible",
    "engine": "this software does not run this layout",
    "unpriced": "this layout is not priced here",
    "room": "this layout needs more memory than there is",
}
"""What is said of a layout on each ground."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken rule: the whole equation with the user's numbers, and a change that would satisfy it.

    `ground` is that of its rule (`planner.rules.check`).
    """

    rule: str
    message: str
    have: float
    need: float
    unit: str
    hint: str
    ground: Ground = "impossible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A named law of layouts, defined once for many (`broken`) and explained for one (`explain`).

    Attributes:
        name: What counts of pruned layouts are kept under.
        fields: Layout fields the rule reads; empty when it judges the request alone.
        broken: Which rows of a table break it; may answer one bool for all rows.
        explain: The violation of a layout that breaks it.
        ground: Why such a layout is refused; a function where that depends on the layout.
        lenient_at_one: Whether a field left at its smallest value can only satisfy the rule, so that it can
            be judged when just some of its fields are pinned.
    """

    name: str
    fields: tuple[str, ...]
    broken: Callable[[Problem, LayoutTable], Mask | bool]
    explain: Callable[[Problem, ParallelLayout], Violation]
    ground: Ground | Callable[[Problem, ParallelLayout], Ground]
    lenient_at_one: bool = True


def not_offered(s: Problem, field: str, value: object, offered: tuple[object, ...]) -> Violation:
    """Build the violation of a choice that the stack does not have."""
    names = ", ".join(str(name) for name in offered) or "none"
    return Violation(
        rule=f"{field.replace('_', '-')}-offered",
        message=f"{field} = {value}, but {s.stack.name} has only {names}",
        have=0,
        need=1,
        unit="",
        hint=f"use {field}={next(iter(offered), 'none')}, or another stack",
    )


def largest_divisor(value: int, limit: int) -> int:
    """Largest divisor of `value` that is at most `limit`.

    >>> largest_divisor(12, 5)
    4
    """
    return next(d for d in range(max(1, min(value, limit)), 0, -1) if value % d == 0)
