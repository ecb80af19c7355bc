"""How much longer or shorter a user's own steps are than a profile says."""

from __future__ import annotations

from dataclasses import dataclass

from topology.base.errors import InputError

FURTHEST_LEVEL = 100.0
"""A step this many times as long as predicted, or as short, is another job, not another level."""
WIDEST = 5.0
"""Deviation of a logarithm beyond which a level says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackLevel:
    """Measured over predicted step time of a stack profile, from own runs (`costmodel.accuracy.anchor`).

    Attributes:
        stack: The profile it corrects.
        level: Factor on predicted step time.
        deviation: Standard deviation of its logarithm that remains.
        runs: Measured steps it rests on.
        name: What the runs are remembered under, or the file they came from.
    """

    stack: str
    level: float
    deviation: float
    runs: int
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse a level that no runs can give: it would make every time negative or absurd."""
        if not (1 / FURTHEST_LEVEL <= self.level <= FURTHEST_LEVEL and 0 <= self.deviation <= WIDEST):
            text = f"level {self.level:g}, deviation {self.deviation:g}"
            fix = f"a level is at most {FURTHEST_LEVEL:g}, one over it at least; a deviation {WIDEST:g}"
            raise InputError(f"the level of {self.stack} is out of reach", text, fix)
