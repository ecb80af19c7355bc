"""A run of which something is unknown: priced as each that it may be, its band their mixture.

Of an engine that nobody knows these are known ones, of a network that is not stated those of machines.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.accuracy.training_runs import TrainingRun
from costmodel.evidence.keys import Footing


def as_each(run: TrainingRun) -> tuple[TrainingRun, ...]:
    """The run under each profile that its engine may be like, on each network; itself if both are known."""
    return tuple(
        replace(run, stack=stack, cluster=cluster)
        for stack in run.stand_ins or (run.stack,)
        for cluster in ([cluster for _, cluster in run.networks] or [run.cluster])
    )


def of_unknown_engine(footing: Footing) -> Footing:
    """The same footing of an unknown engine: evidence of a known one says nothing of another."""
    keys = tuple(key for key in footing.keys if not key.name.startswith("profile "))
    return replace(footing, engine="unknown", keys=keys)
