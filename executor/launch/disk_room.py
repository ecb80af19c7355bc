"""Whether the disk of a run's folder has room for the checkpoints that it will keep, before it starts."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

from executor.training.manifest import steps_on_disk
from executor.training.settings import CHECKPOINTS, RunSettings
from planner.campaign.finish import least_saved_bytes
from planner.plan import Plan
from topology.base.errors import InputError
from topology.base.units import format_bytes


def free_disk_bytes(folder: Path) -> float | None:
    """Bytes that a user may still write where a folder is, or will be; None where the system does not say."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        about = os.statvfs(place)
    except OSError:
        return None
    return float(about.f_bavail * about.f_frsize) if about.f_blocks else None


def check_disk_room(settings: RunSettings, plan: Plan) -> None:
    """Refuse a run whose disk cannot hold its checkpoints: those that it keeps, and the one being written.

    One holds fp32 values and the optimizer's moments, each once, on however many ranks.
    """
    folder = Path(settings.folder)
    each = least_saved_bytes(replace(plan.request, stack="meshplan"))
    every = settings.checkpoint_every or 1
    kept = min(settings.keep_checkpoints + 1, math.ceil(settings.steps / every))
    there = len(steps_on_disk(folder / CHECKPOINTS))
    needed, free = max(1, kept - there) * each, free_disk_bytes(folder / CHECKPOINTS)
    if free is None or needed <= free:
        return
    fits = int(free // each) + there - 1
    raise InputError(
        what=f"the disk of {folder} has no room for the run's checkpoints",
        cause=f"{max(1, kept - there)} more of {format_bytes(each)} are {format_bytes(needed)}, "
        f"{format_bytes(free)} are free",
        fix=f"give --keep-checkpoints {fits}, or a --run-dir on a larger disk"
        if fits >= 1
        else "free space, or give --run-dir a larger disk",
    )
