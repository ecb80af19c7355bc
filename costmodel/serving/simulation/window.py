"""The time over which a simulation is averaged: that in which the requests that count arrive."""

from __future__ import annotations

from costmodel.serving.simulation.load import Load
from costmodel.serving.simulation.requests import NEVER


class Window:
    """The time over which a simulation is averaged.

    From the first arrival after those that fill to the last one; of a load without any, the whole run.
    """

    def __init__(self, load: Load) -> None:
        """Nothing has arrived; a load that nothing fills has no end but the run's."""
        count = len(load)
        self._marks: list[float] = [load.filling + 1, count, NEVER] if load.filling else [NEVER]
        self._seen: list[tuple[float, float]] = []

    @property
    def next(self) -> float:
        """Arrivals after which it has to be told."""
        return self._marks[len(self._seen)]

    def passes(self, arrived: int, clock_s: float, busy_s: float) -> None:
        """So many have arrived, and who serves them was busy for so long until now."""
        while arrived >= self.next:
            self._seen.append((clock_s, busy_s))

    def closed(self, busy_s: float, end_s: float) -> tuple[float, float]:
        """Seconds that were busy, and of how many, once all is served."""
        if len(self._seen) < 2 or self._seen[0][0] >= self._seen[1][0]:
            return busy_s, end_s
        (first_s, before_s), (last_s, until_s) = self._seen
        return until_s - before_s, last_s - first_s
