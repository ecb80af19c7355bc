"""Rules of axes: which a software stack can split a job over, and in which orders it places them."""

from __future__ import annotations

import functools

import numpy as np

from costmodel.layout import AXIS_ORDERS, LayoutTable, ParallelLayout
from costmodel.parallel.axes import AXES, RANK_AXES, Axis
from planner.law import Breach, Law, PlanLaw
from planner.plan import Problem
from planner.rules.rule import not_offered
from topology.base.arrays import Mask

_BITS = {axis: 1 << bit for bit, axis in enumerate(reversed(RANK_AXES))}


def _offered(axis: Axis) -> PlanLaw:
    """Only a stack that has an axis splits a job over it."""

    def broken(s: Problem, t: LayoutTable) -> Mask | bool:
        return (
            False
            if getattr(s.stack.supports, axis.offered)
            else np.asarray(getattr(t, axis.name) > 1, dtype=bool)
        )

    def explain(s: Problem, x: ParallelLayout) -> Breach:
        return not_offered(s, axis.name, getattr(x, axis.name), (1,))

    name = f"{axis.name.replace('_', '-')}-offered"
    return _rule(name=name, reads=(axis.name,), broken=broken, says=explain, ground="engine")


def _order_broken(s: Problem, t: LayoutTable) -> Mask | bool:
    if not s.stack.supports.axis_orders:
        return False
    active = sum((getattr(t, axis) > 1) * bit for axis, bit in _BITS.items())
    return np.asarray(~_orders_offered(s.stack.supports.axis_orders)[active, t.axis_order], dtype=bool)


@functools.lru_cache(maxsize=8)
def _orders_offered(offered: tuple[tuple[str, ...], ...]) -> Mask:
    """Whether a stack can place each order of the axes with members; shape (bits of axes, orders)."""
    allowed = np.zeros((1 << len(_BITS), len(AXIS_ORDERS)), dtype=bool)
    for active in range(len(allowed)):
        axes = {axis for axis, bit in _BITS.items() if active & bit}
        known = {_among(order, axes) for order in offered}
        allowed[active] = [_among(order, axes) in known for order in AXIS_ORDERS]
    return allowed


def _among(order: tuple[str, ...], axes: set[str]) -> tuple[str, ...]:
    """An order of just these axes; where the others are matters to no rank."""
    return tuple(axis for axis in order if axis in axes)


def _order(s: Problem, x: ParallelLayout) -> Breach:
    offered = tuple("-".join(order) for order in s.stack.supports.axis_orders)
    return not_offered(s, "axis_order", "-".join(x.axis_order), offered)


_rule = functools.partial(Law, lenient_at_one=False)

AXIS_RULES: tuple[PlanLaw, ...] = (
    *(_offered(axis) for axis in AXES.values() if axis.offered),
    _rule(
        name="axis-order-offered",
        reads=("axis_order", *RANK_AXES),
        broken=_order_broken,
        says=_order,
        ground="engine",
    ),
)
"""What a stack can split, judged after the arithmetic."""
