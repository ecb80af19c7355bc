"""How long tests wait for what must happen: long enough for a machine that does other things too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Self

PATIENCE_S: Final = 90.0
LEAST_S: Final = 10.0
"""Of a wait whose end fails a test; a shorter one needs a lane of its own (`tests/clock_lane.py`)."""
TRIES: Final = 3
CALM_S: Final = 0.02
"""A sleep that is later than this waited for several time slices of others: the machine was not the test's."""
TICK_S: Final = 0.005
"""A sleep by which the machine is judged."""


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    """Whether something happened in time."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True


class Lateness:
    """By how much sleeps of this machine are late at the most, in seconds, while a block runs.

    A clock that others' work holds up is not the program's: a test allows for what a plain sleep shows of it.
    """

    def __init__(self) -> None:
        """Nothing is late yet."""
        self.seconds = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        """Begin to sleep again and again."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, once the sleep that is under way has ended."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.is_set():
            began_s = time.monotonic()
            time.sleep(TICK_S)
            self.seconds = max(self.seconds, time.monotonic() - began_s - TICK_S)


def undisturbed(judge: Callable[[], str]) -> str:
    """What is wrong with a measurement; it is taken again where something is, and sleeps beside it were late.

    On a machine that is the test's, what is wrong is so at once.
    """
    for _ in range(TRIES):
        with Lateness() as late:
            wrong = judge()
        if not wrong or late.seconds <= CALM_S:
            break
    return f"{wrong} (sleeps were up to {late.seconds * 1e3:.0f} ms late)" if wrong else ""
