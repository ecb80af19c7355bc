"""Whether tensor-parallel messages of a plan can run under its products: asked before anything is started.

What only the ranks can see, the links between their GPUs, they look at themselves
(`executor.parallel.device.require_nvlink`).
"""

from __future__ import annotations

from planner.plan import Plan
from topology.base.errors import InputError


def check_overlaps(plan: Plan, device: str, *, fp32: bool = False) -> None:
    """Refuse a plan without such messages, a format without such kernels, or ranks without GPUs."""
    layout, precision = plan.layout, "fp32" if fp32 else plan.request.job.precision
    causes = {
        f"the plan has tp = {layout.tp}: no tensor-parallel messages": layout.tp == 1,
        "the plan has no sequence parallelism, whose messages these are": not layout.sequence_parallel,
        f"the plan multiplies in {precision}: such products are not overlapped": precision != "bf16",
        "the plan trains an adapter: its projections are not overlapped": plan.request.job.adapter
        is not None,
        "ranks on a CPU map no memory into each other": device == "cpu",
    }
    for cause in (cause for cause, holds in causes.items() if holds):
        raise InputError(what="--async-tp would overlap nothing", cause=cause, fix="leave --async-tp out")
