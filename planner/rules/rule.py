"""What several rules say alike: a choice that a stack lacks, and the largest divisor as the way out."""

from __future__ import annotations

from planner.law import Breach
from planner.plan import Problem


def not_offered(s: Problem, field: str, value: object, offered: tuple[object, ...]) -> Breach:
    """Build the violation of a choice that the stack does not have."""
    names = ", ".join(str(name) for name in offered) or "none"
    return Breach(
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
