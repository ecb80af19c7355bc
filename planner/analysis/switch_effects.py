"""What each switch of the engine would change of a plan as it stands: same layout, same split, re-timed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from costmodel.estimate import throughput_change
from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable
from costmodel.memory.fit import fit_of
from costmodel.switches.profile import switches_of, with_switches
from costmodel.switches.switch import MASTER_BYTES, SwitchValue, switches
from costmodel.training.estimate import what_matters
from planner.engines.fields import is_numeric
from planner.plan import Plan
from planner.pricing import estimate_split, split_of
from planner.rules.check import legal

LEAST_MEMORY_SHARE = 0.01
"""Of the peak: what moves neither it nor the step by a thousandth is not spoken of."""
LEAST_TIME_SHARE = 1e-3
FASTEST = frozenset(("on", "native", "fused"))
"""Values that no other of their switch is faster than."""
WORTH_NAMING = 0.01
"""Change of tokens a second from which one switch is named beside a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchEffect:
    """One switch set otherwise.

    Attributes:
        name: The switch.
        before: Its value in the plan.
        after: The value that it would have.
        step_time_s: The step then.
        faster_by: Change of tokens a second, 0.1 is 10 % more.
        peak_memory_bytes: The peak then.
        memory_bytes: Change of the peak.
    """

    name: str
    before: str
    after: str
    step_time_s: float
    faster_by: float
    peak_memory_bytes: float
    memory_bytes: float

    @property
    def flag(self) -> str:
        """What sets it."""
        return f"--set switch.{self.name}={self.after}"


def switch_effects(plan: Plan, cal: Calibration) -> tuple[SwitchEffect, ...]:
    """Effects of switches that keep the job's numerics and move something, the fastest first.

    One that breaks a rule of the engine with this layout is none.
    """
    return _effects(plan, cal, _others(plan))


def best_switch(plan: Plan, cal: Calibration) -> SwitchEffect | None:
    """The switch that shortens the step most, by a hundredth at least, and fits; None where none does.

    Only those are tried that are not set to their fastest value.
    """
    if fit_of(plan.estimate.out_of_memory_chance) == "does not fit":
        return None
    values = switches_of(plan.problem.stack)
    others = [each for each in _others(plan) if _may_shorten(plan, each[0], values)]
    room = max(plan.problem.memory_budget_bytes, plan.estimate.peak_memory_bytes)
    fitting = (
        effect
        for effect in (_effects(plan, cal, others) if others else ())
        if effect.faster_by >= WORTH_NAMING and effect.peak_memory_bytes <= room
    )
    return next(fitting, None)


def _may_shorten(plan: Plan, name: str, values: Mapping[str, str]) -> bool:
    """Whether a switch can shorten the step: it is not at its fastest, and what it spares takes time."""
    time, step_s = plan.estimate.time, plan.estimate.step_time_s
    if switches()[name].of == "experts":
        return plan.layout.ep > 1 or time.host_s >= WORTH_NAMING * step_s
    if name == "cuda_graph_scope":
        return time.host_s >= WORTH_NAMING * step_s
    return values[name] not in FASTEST


def _effects(plan: Plan, cal: Calibration, others: Iterable[tuple[str, str]]) -> tuple[SwitchEffect, ...]:
    """Effects of switches set otherwise, of those that break no rule with the plan's layout."""
    problem = plan.problem.of(cal=cal)
    split = split_of(problem.model, plan.layout, plan.layers_of_stage, plan.recompute_of_stage)
    row, values = LayoutTable.from_rows([plan.layout]), switches_of(problem.stack)
    before, effects = None, []
    for name, after in others:
        changed = problem.of(stack=with_switches(problem.stack, {name: after}))
        if not legal(changed, row)[0].all():
            continue
        before = before or estimate_split(problem, plan, plan.layout, split)[0]
        estimate = estimate_split(changed, plan, plan.layout, split)[0]
        effect = SwitchEffect(
            name=name,
            before=values[name],
            after=after,
            step_time_s=estimate.step_time_s,
            faster_by=throughput_change(before.step_time_s, estimate.step_time_s),
            peak_memory_bytes=estimate.peak_memory_bytes,
            memory_bytes=estimate.peak_memory_bytes - before.peak_memory_bytes,
        )
        slight = abs(effect.memory_bytes) < LEAST_MEMORY_SHARE * before.peak_memory_bytes
        if abs(effect.faster_by) >= LEAST_TIME_SHARE or not slight:
            effects.append(effect)
    return tuple(sorted(effects, key=lambda effect: (-effect.faster_by, effect.memory_bytes)))


def _others(plan: Plan) -> Iterator[tuple[str, str]]:
    """Switches and values that a plan has not, of those that matter for its job."""
    stack = plan.problem.stack
    matters, values = what_matters(plan.problem.case, plan.layout), switches_of(stack)
    for name, switch in switches().items():
        if switch.of and switch.of not in matters:
            continue
        for value, record in switch.values.items():
            if record.is_priced and not _is_numeric(record) and value != values[name].partition(":")[0]:
                yield name, value
        if switch.modules is not None and switch.modules.of and matters >= {"experts"}:
            yield name, ";".join(switch.modules.of)


def _is_numeric(value: SwitchValue) -> bool:
    """Whether a value decides what is computed, not only how."""
    return any(field == MASTER_BYTES or is_numeric(f"stack.{field}") for field in value.sets)
