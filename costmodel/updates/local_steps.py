"""Workers that run apart for some steps, then agree: local SGD and DiLoCo.

A worker is a replica at ZeRO-0, over as many GPUs as tensor and pipeline parallelism give it. What that does
to the loss is not modelled: a layout is compared at the same number of steps.

Legend: ``H`` steps between two agreements.

Source: DiLoCo (arXiv 2311.08105) algorithm 1; its exchange spread over the steps between, under their
compute: Streaming DiLoCo (arXiv 2501.18512) section 2. Local SGD: arXiv 1805.09767.
"""

from __future__ import annotations

from dataclasses import dataclass

from topology.base.errors import InputError, shown

OUTER_BYTES = {"average": 0.0, "diloco": 8.0}
"""Of a parameter in fp32: weights of the last agreement, and the outer momentum."""
OUTER_MOVED_BYTES = {"average": 8.0, "diloco": 28.0}
"""What an agreement reads and writes of a parameter: weights; with an outer step momentum too."""
MOST_STEPS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSteps:
    """H steps apart, then parameters are averaged, or their change goes through an outer optimizer."""

    kind: str
    steps: int

    @property
    def kept_bytes(self) -> float:
        """Bytes of a parameter that stay beside the inner optimizer's."""
        return OUTER_BYTES[self.kind]

    @property
    def moved_bytes(self) -> float:
        """Bytes of a parameter that agreeing moves on a GPU, of one step."""
        return OUTER_MOVED_BYTES[self.kind] / self.steps


def parse_local_steps(text: str) -> LocalSteps:
    """Read it as people write it.

    >>> parse_local_steps("diloco:500")
    LocalSteps(kind='diloco', steps=500)

    Raises:
        InputError: If it is neither.
    """
    kind, _, steps = (word.strip() for word in text.strip().lower().partition(":"))
    if kind in OUTER_BYTES and steps.isdecimal() and 1 <= int(steps[:9]) <= MOST_STEPS:
        return LocalSteps(kind=kind, steps=int(steps[:9]))
    raise InputError(
        what=f"{shown(text)} is no way to run workers apart",
        cause=f"there are {', '.join(f'{name}:H' for name in OUTER_BYTES)} with 1 to {MOST_STEPS:,} steps",
        fix="write for example --set job.local_steps=diloco:100",
    )
