"""Every tool a plan can be written for, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from executor.export import megatron, torchtitan
from executor.export.facts import Exported
from executor.export.schedulers import export_kubeflow, export_skypilot, export_slurm
from executor.export.zero import export_accelerate, export_deepspeed
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
