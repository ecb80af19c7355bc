"""What a picture of a diagnosis shows: the middle step of ranks in slots of time, and the predicted one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.diagnose.beside import SideEvidence
from planner.diagnose.diagnosis import Diagnosis
from planner.diagnose.intervals import clipped
from planner.diagnose.prediction import PARTS_OF, PartResidual
from planner.diagnose.record import stretches

SLOTS = 240
"""Stretches of a lane; in each the longest part is drawn."""
MOST_LANES = 16
REST = "rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePart:
    """A stretch of a lane."""

    part: str
    """In words of the budget."""
    term: str
    """The term of the model that it stands beside; `rest` for none."""
    start_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisView:
    """Lanes by name, the predicted one last; what is off by term."""

    lanes: dict[str, tuple[LanePart, ...]]
    residuals: tuple[PartResidual, ...] = ()
    recorded_s: float = 0.0
    predicted_s: float | None = None


def diagnosis_view(diagnosis: Diagnosis | SideEvidence) -> DiagnosisView:
    """The picture of a diagnosis; without lanes where no trace is among its files."""
    if isinstance(diagnosis, SideEvidence):
        return DiagnosisView(lanes={})
    lanes = {f"rank {rank}": _lane(diagnosis, rank) for rank in sorted(diagnosis.job.timelines)[:MOST_LANES]}
    predicted = diagnosis.prediction
    if predicted is not None:
        at, parts = 0.0, list[LanePart]()
        for name, value in predicted.parts.items():
            if value > 0:
                term = name.removesuffix("_s")
                parts.append(LanePart(part=term, term=term, start_s=at, seconds=value))
                at += value
        lanes["predicted"] = tuple(parts)
    return DiagnosisView(
        lanes=lanes,
        residuals=diagnosis.residuals,
        recorded_s=diagnosis.job.step_s,
        predicted_s=None if predicted is None else predicted.estimate.step_time_s,
    )


def _lane(diagnosis: Diagnosis, rank: int) -> tuple[LanePart, ...]:
    """The middle step of a rank: in each slot the part that fills most of it; equal neighbours are joined."""
    line = diagnosis.job.timelines[rank]
    steps = stretches(line)
    step = sorted(steps, key=lambda each: each.seconds)[len(steps) // 2]
    edges = np.linspace(step.start_s, step.end_s, SLOTS + 1)
    names = ["unexplained", *dict.fromkeys(name for name, _ in line.layers)]
    filled = np.zeros((len(names), SLOTS))
    for name, layer in line.layers:
        rows = clipped(layer, step.start_s, step.end_s)
        if len(rows):  # what lies before an edge, less what lies before the last
            before = np.cumsum(rows[:, 1] - rows[:, 0])
            place = np.searchsorted(rows[:, 0], edges, "right") - 1
            done = np.where(place >= 0, before[place] - np.maximum(0.0, rows[place, 1] - edges), 0.0)
            filled[names.index(name)] += np.diff(done)
    filled[0] = np.diff(edges) - filled.sum(axis=0)
    longest = filled.argmax(axis=0)
    cuts = np.flatnonzero(np.diff(longest)) + 1
    starts, stops = np.r_[0, cuts], np.r_[cuts, SLOTS]
    return tuple(
        LanePart(
            part=names[longest[start]],
            term=PARTS_OF.get(names[longest[start]], REST).removesuffix("_s"),
            start_s=float(edges[start] - step.start_s),
            seconds=float(edges[stop] - edges[start]),
        )
        for start, stop in zip(starts, stops, strict=True)
    )
