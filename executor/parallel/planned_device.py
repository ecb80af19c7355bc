"""Whether a device is what a plan is for: by its name, without torch, so that who shows a run needs none."""

from __future__ import annotations

from planner.plan import Plan
from topology.base.errors import InputError
from topology.builders import build
from topology.hardware.device_names import gpu_of_device


def is_device(plan: Plan, device: str, memory_bytes: float) -> bool:
    """Whether a device is what the plan was made for, by its name and memory; of unlike stages none is."""
    if plan.kind_of_stage:
        return False
    planned = build(plan.request.cluster).gpu
    if device == "cpu" or planned.architecture == "cpu":
        return device == planned.architecture
    try:
        return gpu_of_device(device, memory_bytes) == planned.name
    except InputError:
        return False
