"""Every tool a plan can be written for, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.engines import megatron, torchtitan
from planner.engines.deepspeed import export_accelerate, export_deepspeed
from planner.engines.facts import Exported
from planner.engines.schedulers import export_kubeflow, export_skypilot, export_slurm
from planner.plan import Plan

TARGETS: Mapping[str, Callable[[Plan], Exported]] = {
    "megatron": megatron.export,
    "torchtitan": torchtitan.export,
    "deepspeed": export_deepspeed,
    "accelerate": export_accelerate,
    "kubeflow": export_kubeflow,
    "skypilot": export_skypilot,
    "slurm": export_slurm,
}


def export_plan(plan: Plan, target: str) -> Exported:
    """Write a plan for a tool, leniently named; a plan the tool cannot run is an `InputError`."""
    from topology.base.names import resolve

    return TARGETS[resolve(target, tuple(TARGETS), "export target")](plan)
