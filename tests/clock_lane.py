"""A lane of its own for tests that read a clock: while one of them runs, no other test of the run does.

A test marked `clock` compares seconds of wall clock that it measured with a number, and would lose against a test
beside it. It waits until what other workers run has ended, and they wait for it. Such tests run last: workers then have
little else to do, and one that has the lane keeps it for the next, so that it is waited for a few times and not often.

Workers meet at two files of the run. Who wants the lane holds the turnstile, so that nobody new enters the room, and
then waits for an empty room; other tests pass the turnstile and share the room.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from pathlib import Path

import pytest

CLOCK = "clock"


class Lane:
    """One worker's way into the room, as its tests come."""

    def __init__(self, folder: Path) -> None:
        """Open the two files, which all workers of a run name alike."""
        folder.mkdir(parents=True, exist_ok=True)
        self.turnstile, self.room = (
            os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            for name in ("turnstile", "room")
        )
        self.alone = False

    def close(self) -> None:
        """Hold nothing any more."""
        os.close(self.turnstile)
        os.close(self.room)

    def enter(self, *, alone: bool) -> None:
        """Wait for the room, or go on where it is held alone already."""
        if self.alone:
            return
        fcntl.flock(self.turnstile, fcntl.LOCK_EX)
        fcntl.flock(self.room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(self.turnstile, fcntl.LOCK_UN)
        self.alone = alone

    def leave(self, *, keeps: bool = False) -> None:
        """Give the room back, or keep what is held alone for the next test."""
        if keeps and self.alone:
            return
        fcntl.flock(self.room, fcntl.LOCK_UN)
        fcntl.flock(self.turnstile, fcntl.LOCK_UN)
        self.alone = False


def reads_a_clock(item: pytest.Item | None) -> bool:
    """Whether a test is marked so."""
    return item is not None and item.get_closest_marker(CLOCK) is not None


LANE = pytest.StashKey[Lane]()


def pytest_configure(config: pytest.Config) -> None:
    """Know the room of this run, in the folder that `tests/guard.py` makes; without workers none is needed."""
    run = getattr(config, "workerinput", {}).get("testrunuid")
    if run:
        config.stash[LANE] = lane = Lane(Path(os.environ["XDG_CACHE_HOME"]) / f"clock-lane-{run}")
        os.register_at_fork(
            after_in_child=lane.close
        )  # a child of a worker that died would hold the others up


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests that read a clock behind all others; workers collect alike."""
    items.sort(key=reads_a_clock)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Hold the room from before the fixtures of a test until after them; waiting is no part of its time."""
    lane = item.config.stash.get(LANE, None)
    if lane is None:
        return (yield)
    lane.enter(alone=reads_a_clock(item))
    try:
        return (yield)
    finally:
        lane.leave(keeps=reads_a_clock(nextitem))
