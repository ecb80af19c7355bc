"""Steps and stalls in turn: seconds of the clock as a function of work done, and the other way round.

With a checkpoint of level l after every τ_l of work, each waited for c_l, and steps at speed v, work x takes
Y(x) = x/v + Σ c_l·⌊x/τ_l⌋. Its inverse goes through the levels from the rarest, whose cycles nest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.campaign.course import Course
from topology.base.arrays import Floats

_NEARLY = 1e-9
"""Of a cycle: what rounding leaves between a multiple and itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycles:
    """Work between checkpoints of each level, nearest first, with their stalls and latencies, in seconds."""

    every: tuple[float, ...]
    stalls: tuple[float, ...]
    latencies: tuple[float, ...]

    @classmethod
    def of(cls, course: Course) -> Cycles:
        """The cycles of a course."""
        return cls(
            every=course.every_s,
            stalls=tuple(level.stall_s for level in course.levels),
            latencies=tuple(level.durable_s for level in course.levels),
        )

    def wall(self, work: Floats, v: Floats) -> Floats:
        """Seconds of the clock that so much work takes, all stalls of checkpoints at or before it included.

        >>> one = Cycles(every=(10.0,), stalls=(1.0,), latencies=(0.0,))
        >>> one.wall(np.array([9.0, 10.0, 25.0]), np.array([1.0, 1.0, 0.5])).tolist()
        [9.0, 11.0, 52.0]
        """
        clock = work / v
        for every, stall in zip(self.every, self.stalls, strict=True):
            clock = clock + stall * np.floor(work / every + _NEARLY)
        return clock

    def work(self, wall: Floats, v: Floats) -> Floats:
        """Work done by a moment of the clock; none is done in a stall.

        >>> one = Cycles(every=(10.0,), stalls=(1.0,), latencies=(0.0,))
        >>> one.work(np.array([9.0, 10.5, 11.0, 12.0]), np.ones(4)).tolist()
        [9.0, 10.0, 10.0, 11.0]
        """
        lengths = self._lengths(v)
        left, done = wall, np.zeros_like(wall)
        cap = np.full_like(wall, np.inf)
        for index in range(len(self.every) - 1, -1, -1):
            whole = np.floor(left / lengths[index] + _NEARLY)
            done = done + whole * self.every[index]
            left = np.maximum(0.0, left - whole * lengths[index])
            cap = np.minimum(cap, done + self.every[index])
        return np.asarray(np.minimum(done + left * v, cap))

    def durable(self, index: int, wall: Floats, v: Floats) -> Floats:
        """Work of the newest checkpoint of a level that can be restored from at a moment of the clock."""
        every, then = self.every[index], wall - self.latencies[index]
        number = np.floor(self.work(np.maximum(then, 0.0), v) / every + _NEARLY)
        waits = self.wall(number * every, v) > then + _NEARLY * every
        return np.asarray(np.maximum(0.0, number - waits) * every)

    def _lengths(self, v: Floats) -> list[Floats]:
        """Seconds of the clock of one whole cycle of each level."""
        lengths: list[Floats] = []
        for index, (every, stall) in enumerate(zip(self.every, self.stalls, strict=True)):
            inner = every / v if not index else lengths[-1] * round(every / self.every[index - 1])
            lengths.append(inner + stall)
        return lengths
