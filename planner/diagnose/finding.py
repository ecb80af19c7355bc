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
    "queueing",
    "prefill",
    "decode",
    "no start",
    "full cache",
    "batch limit",
    "preempted requests",
    "slow start",
)
"""Every cause that a finding can name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinding:
    """One cause, what it costs, what shows it, and the change that cures it."""

    cause: str
    rank: int | None = None
    """The rank that causes it; None where all ranks do, or where no record says which."""
    gpu: int | None = None
    """Index of the GPU on its node, where samples of GPUs show it: they do not say its rank."""
    seconds: float
    """What it costs a step."""
    share: float
    """Of the step."""
    step_without_s: float | None = None
    """The step timed once more without the cause; None where only a bound is known: `seconds` less."""
    evidence: str
    """What in the trace shows it, with numbers."""
    fix: str
    """The change, or the measurement that would decide."""

    @property
    def words(self) -> str:
        """The cause, and the rank or GPU where it lies."""
        places = (("rank", self.rank), ("GPU", self.gpu))
        place = next((f" ({name} {number})" for name, number in places if number is not None), "")
        return f"{self.cause}{place}"

    def __post_init__(self) -> None:
        """Hold the list closed. Raises ValueError for a cause that is not in it."""
        if self.cause not in CAUSES:
            raise ValueError(f"{self.cause!r} is no cause of the list")
