"""How far a validation is: what is being done, since when, and about how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Final, TypeVar

EVERY_S: Final = 4.0
POLL_S: Final = 0.5
MOST_UNSEEN: Final = 0.9  # of a part is taken to be done by its time alone

T = TypeVar("T")


def seconds_left(done_s: float, total_s: float, elapsed_s: float) -> float:
    """What the rest takes, if the work that is left goes as that before it; at least a second.

    Args:
        done_s: work behind, as it was expected to take.
        total_s: all of it, likewise.
        elapsed_s: what was taken.

    >>> seconds_left(10.0, 40.0, 20.0), seconds_left(0.0, 40.0, 3.0)
    (60.0, 37.0)
    """
    left = (total_s - done_s) * elapsed_s / done_s if done_s > 0 else total_s - elapsed_s
    return max(1.0, left)


class Progress:
    """Says at the beginning of each part, and every four seconds within, how far it is.

    It is polled by whoever waits: a thread of its own would be forked with the ranks.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        expected_s: Mapping[str, float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the parts in their order, each with the seconds that it is expected to take."""
        self._say, self._expected_s, self._clock = say, dict(expected_s), clock
        self._start_s = self._said_s = clock()
        self._part, self._part_start_s, self._behind_s = "", self._start_s, 0.0

    def begin(self, part: str) -> None:
        """The part before has ended."""
        self._behind_s += self._expected_s.get(self._part, 0.0)
        self._part, self._part_start_s = part, self._clock()
        self._tell(0.0)

    def alive(self, share: float = 0.0) -> None:
        """This share of the part is done."""
        if self._clock() - self._said_s >= EVERY_S:
            self._tell(share)

    def _tell(self, share: float) -> None:
        """One line."""
        self._said_s = now_s = self._clock()
        elapsed_s, total_s = now_s - self._start_s, sum(self._expected_s.values())
        expected_s = self._expected_s[self._part]
        unseen_s = min(now_s - self._part_start_s, MOST_UNSEEN * expected_s)
        left_s = seconds_left(self._behind_s + max(share * expected_s, unseen_s), total_s, elapsed_s)
        self._say(f"{self._part}: {elapsed_s:.0f} s so far, about {left_s:.0f} s left")


def results(futures: Sequence[Future[T]], alive: Callable[[float], None] = lambda _: None) -> list[T]:
    """Wait for all, or for the first that fails, and tell meanwhile what share has come."""
    while True:
        done, waiting = wait(futures, timeout=POLL_S, return_when=FIRST_EXCEPTION)
        for future in done:
            if future.exception() is not None:
                for other in waiting:
                    other.cancel()
                return [future.result()]  # raises
        if not waiting:
            return [future.result() for future in futures]
        alive(len(done) / len(futures))
