"""The words rules are written in: a `Setting` that is judged, a `Rule`, and the `Violation` it may find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodel.job import TrainingJob
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.spec import ModelSpec
from costmodel.stack import SoftwareStack
from topology.cluster import Cluster

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything a layout is judged against.

    `memory_headroom` is the share of a GPU's memory that a plan leaves free.
    """

    model: ModelSpec
    cluster: Cluster
    job: TrainingJob
    stack: SoftwareStack
    memory_headroom: float = 0.0

    @property
    def memory_budget_bytes(self) -> float:
        """What a plan may fill of one GPU's memory."""
        return self.cluster.gpu.memory_bytes * (1 - self.memory_headroom)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken rule: the whole equation with the user's numbers, and a change that would satisfy it."""

    rule: str
    message: str
    have: float
    need: float
    unit: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A named law of layouts, defined once for many (`broken`) and explained for one (`explain`).

    Attributes:
        name: What counts of pruned layouts are kept under.
        fields: Layout fields the rule reads; empty when it judges the request alone.
        broken: Which rows of a table break it; may answer one bool for all rows.
        explain: The violation of a layout that breaks it.
        lenient_at_one: Whether a field left at its smallest value can only satisfy the rule, so that it can
            be judged when just some of its fields are pinned.
    """

    name: str
    fields: tuple[str, ...]
    broken: Callable[[Setting, LayoutTable], Mask | bool]
    explain: Callable[[Setting, ParallelLayout], Violation]
    lenient_at_one: bool = True


def not_offered(s: Setting, field: str, value: object, offered: tuple[object, ...]) -> Violation:
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
