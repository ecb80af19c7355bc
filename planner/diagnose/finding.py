"""What is off, by how much, why, and what changes it: a cause from a closed list, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass

CAUSES = (
    "layout contradiction",
    "overlap off",
    "axis across nodes",
    "slow link",
    "slow rank",
    "uneven stages",
    "last stage with head",
    "router imbalance",
    "dispatcher backend",
    "sequence imbalance",
    "host-bound",
    "synchronisation in the step",
    "copies in the step",
    "precision",
    "unfused attention",
    "unplanned recompute",
    "small buckets",
    "sockets",
    "loader",
    "checkpoint in the step",
    "allocator",
    "garbage collection",
    "throttled clocks",
    "memory errors",
    "hang",
)
"""Every cause that a finding can name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinding:
    """One cause, what it costs, what shows it, and the change that cures it."""

    cause: str
    rank: int | None = None
    """The rank that causes it; None where all ranks do."""
    seconds: float
    """What it costs a step."""
    share: float
    """Of the step."""
    evidence: str
    """What in the trace shows it, with numbers."""
    fix: str
    """The change, or the measurement that would decide."""

    def __post_init__(self) -> None:
        """Hold the list closed. Raises ValueError for a cause that is not in it."""
        if self.cause not in CAUSES:
            raise ValueError(f"{self.cause!r} is no cause of the list")
