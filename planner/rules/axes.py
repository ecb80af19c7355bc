"""Rules of axes: which a software stack can split a job over, and in which orders it places them."""

from __future__ import annotations

import functools

import numpy as np

from costmodel.layout import AXIS_ORDERS, LayoutTable, ParallelLayout
from planner.problem import Setting
from planner.rules.rule import Mask, Rule, Violation, not_offered

_AXIS_BITS = {"pp": 8, "dp": 4, "cp": 2, "tp": 1}


def _tensor_broken(s: Setting, t: LayoutTable) -> Mask | bool:
    return np.asarray(False if s.stack.supports.tensor_parallel else t.tp > 1, dtype=bool)


def _tensor(s: Setting, x: ParallelLayout) -> Violation:
    return not_offered(s, "tp", x.tp, (1,))


def _context_broken(s: Setting, t: LayoutTable) -> Mask | bool:
    return np.asarray(False if s.stack.supports.context_parallel else t.cp > 1, dtype=bool)


def _context(s: Setting, x: ParallelLayout) -> Violation:
    return not_offered(s, "cp", x.cp, (1,))


def _pipeline_broken(s: Setting, t: LayoutTable) -> Mask | bool:
    return np.asarray(False if s.stack.supports.pipeline_parallel else t.pp > 1, dtype=bool)


def _pipeline(s: Setting, x: ParallelLayout) -> Violation:
    return not_offered(s, "pp", x.pp, (1,))


def _expert_broken(s: Setting, t: LayoutTable) -> Mask | bool:
    return np.asarray(False if s.stack.supports.expert_parallel else t.ep > 1, dtype=bool)


def _expert(s: Setting, x: ParallelLayout) -> Violation:
    return not_offered(s, "ep", x.ep, (1,))


def _order_broken(s: Setting, t: LayoutTable) -> Mask | bool:
    if not s.stack.supports.axis_orders:
        return False
    active = sum((getattr(t, axis) > 1) * bit for axis, bit in _AXIS_BITS.items())
    return np.asarray(~_orders_offered(s.stack.supports.axis_orders)[active, t.axis_order], dtype=bool)


@functools.lru_cache(maxsize=8)
def _orders_offered(offered: tuple[tuple[str, ...], ...]) -> Mask:
    """Whether a stack can place each order of the axes with members; shape (bits of axes, orders)."""
    allowed = np.zeros((1 << len(_AXIS_BITS), len(AXIS_ORDERS)), dtype=bool)
    for active in range(len(allowed)):
        axes = {axis for axis, bit in _AXIS_BITS.items() if active & bit}
        known = {_among(order, axes) for order in offered}
        allowed[active] = [_among(order, axes) in known for order in AXIS_ORDERS]
    return allowed


def _among(order: tuple[str, ...], axes: set[str]) -> tuple[str, ...]:
    """An order of just these axes; where the others are matters to no rank."""
    return tuple(axis for axis in order if axis in axes)


def _order(s: Setting, x: ParallelLayout) -> Violation:
    offered = tuple("-".join(order) for order in s.stack.supports.axis_orders)
    return not_offered(s, "axis_order", "-".join(x.axis_order), offered)


_rule = functools.partial(Rule, lenient_at_one=False)

AXIS_RULES: tuple[Rule, ...] = (
    _rule(name="tp-offered", fields=("tp",), broken=_tensor_broken, explain=_tensor),
    _rule(name="ep-offered", fields=("ep",), broken=_expert_broken, explain=_expert),
    _rule(name="cp-offered", fields=("cp",), broken=_context_broken, explain=_context),
    _rule(name="pp-offered", fields=("pp",), broken=_pipeline_broken, explain=_pipeline),
    _rule(
        name="axis-order-offered",
        fields=("axis_order", "pp", "dp", "cp", "tp"),
        broken=_order_broken,
        explain=_order,
    ),
)
"""What a stack can split, judged after the arithmetic."""
