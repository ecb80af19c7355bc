"""One worker of a plan's pool: what its replica does a step, under the scheduler that the plan gave it."""

from __future__ import annotations

from dataclasses import replace

from costmodel.kernels.tables import Calibration
from planner.serving.plan import PoolPlan, ServingPlan
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY, WHOLE, Option, Rejected, build_option
from planner.serving.space import deployment_of
from topology.base.errors import InputError
from topology.fabric.hierarchy import Hierarchy

PHASES = {"": WHOLE, "prefill": PROMPT_ONLY, "decode": OUTPUT_ONLY}
"""What a pool does of a request, by its role; the only pool has none."""


def worker_of(
    cal: Calibration, plan: ServingPlan, hierarchy: Hierarchy, role: str, pool: PoolPlan, *, asked: str
) -> Option:
    """One worker of a pool with its own scheduler.

    Raises:
        InputError: What was `asked` cannot be: the pool is rejected today.
    """
    deployment = deployment_of(plan.request, hierarchy, plan.weights, pool.layout)
    option = build_option(cal, deployment, plan.request.job, phase=PHASES[role])
    if isinstance(option, Rejected):
        raise InputError(
            what=asked,
            cause=f"its {role or 'only'} pool is rejected: {option.reason}",
            fix="plan it again",
        )
    rules = replace(
        option.rules,
        token_budget=pool.token_budget,
        balance_steps=pool.balance_steps,
        gather_steps=pool.gather_steps,
        max_batch=pool.max_batch,
        kv_capacity_tokens=pool.kv_capacity_tokens,
    )
    return replace(option, rules=rules)
