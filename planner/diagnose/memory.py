"""The memory of a rank at its peak beside what the plan of its stage holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from costmodel.memory.stage import MemoryBreakdown
from planner.diagnose.prediction import Prediction
from planner.traces.memory_snapshots import RecordedMemory

TERMS: Final[Mapping[str, str]] = {
    "weights": "weights_bytes",
    "gradients": "gradients_bytes",
    "optimizer states": "optimizer_bytes",
    "buffers": "buffers_bytes",
    **dict.fromkeys(("activations", "logits", "inputs", "temporary", "autograd"), "activations_bytes"),
}
"""Categories of a recorded memory, and the part of a plan that each is in; others are in none."""
FRAGMENTATION: Final = "fragmentation"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryResidual:
    """One part of a rank's memory, recorded and planned."""

    part: str
    recorded_bytes: int
    predicted_bytes: float | None
    """None without a plan."""
    of: str = ""
    """What it consists of, where it is several categories."""


def memory_budget(memory: RecordedMemory, prediction: Prediction | None = None) -> tuple[MemoryResidual, ...]:
    """Parts of what a rank's allocator held at most; they sum to that.

    Fragmentation is what it held of the device beyond what was allocated at the peak.
    """
    parts: dict[str, dict[str, int]] = {}
    for category, size in memory.at_peak.items():
        parts.setdefault(_part(category), {})[category] = size
    held = max(memory.peak_reserved_bytes or 0, memory.peak_bytes)
    if held > memory.peak_bytes:
        parts[FRAGMENTATION] = {FRAGMENTATION: held - memory.peak_bytes}
    planned = _planned(memory, prediction)
    names = [*parts, *(part for part in planned if part not in parts and planned[part])]
    rows = [
        MemoryResidual(
            part=part,
            recorded_bytes=sum(parts.get(part, {}).values()),
            predicted_bytes=planned.get(part) if planned else None,
            of=", ".join(parts[part]) if len(parts.get(part, {})) > 1 else "",
        )
        for part in names
    ]
    return tuple(sorted(rows, key=lambda row: -max(row.recorded_bytes, row.predicted_bytes or 0.0)))


def _part(category: str) -> str:
    """The part of a plan that a category is in, in its words."""
    term = TERMS.get(category)
    return category if term is None else _words(term)


def _words(term: str) -> str:
    return term.removesuffix("_bytes")


def _planned(memory: RecordedMemory, prediction: Prediction | None) -> dict[str, float]:
    """Bytes of each part of the rank's stage; the first stage where nobody says the rank."""
    if prediction is None:
        return {}
    stages, layout = prediction.estimate.memory_by_stage, prediction.layout
    rank = memory.rank if memory.rank is not None and memory.rank < layout.num_gpus else 0
    stage: MemoryBreakdown = stages[min(rank * layout.pp // layout.num_gpus, len(stages) - 1)]
    return {_words(term): float(getattr(stage, term)) for term in dict.fromkeys(TERMS.values())}
