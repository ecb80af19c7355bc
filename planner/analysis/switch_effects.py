"""What each switch of the engine would change of a plan as it stands: same layout, same split, re-timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from costmodel.estimate import throughput_change
from costmodel.kernels.tables import Calibration
from costmodel.switches.profile import switches_of, with_switches
from costmodel.switches.switch import MASTER_BYTES, SwitchValue, switches
from costmodel.training.estimate import what_matters
from planner.engines.fields import is_numeric
from planner.plan import Plan
from planner.pricing import estimate_split, split_of

LEAST_MEMORY_SHARE = 0.01
"""Of the peak: what moves neither it nor the step by a thousandth is not spoken of."""
LEAST_TIME_SHARE = 1e-3


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
    """Effects of switches that keep the job's numerics and move something, the fastest first."""
    problem = plan.problem.of(cal=cal)
    split = split_of(problem.model, plan.layout, plan.layers_of_stage, plan.recompute_of_stage)
    before = estimate_split(problem, plan, plan.layout, split)[0]
    effects = []
    for name, after in _others(plan):
        changed = problem.of(stack=with_switches(problem.stack, {name: after}))
        estimate = estimate_split(changed, plan, plan.layout, split)[0]
        effect = SwitchEffect(
            name=name,
            before=switches_of(problem.stack)[name],
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
