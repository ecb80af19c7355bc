"""A sign of life on stderr when an answer takes longer than half a second."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from app.terminal.streams import silent_s, tell
from topology.base.errors import shortened

PATIENCE_S: Final = 0.5
PACE_S: Final = 5.0
_REFRESH_S: Final = 0.2
_REPEAT_S: Final = 4.0  # never silent for more than five seconds
_SECOND_S: Final = 1.5  # after the first line: a first answer is there by then
_LOOK_S: Final = 0.25
_lives_on = threading.Event()


@contextmanager
def waiting(what: str | Callable[[], str], *, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Say on stderr what is being waited for, once it takes longer than `patience_s`.

    On a terminal the line counts the seconds and disappears; elsewhere it is written again every few seconds,
    with how far things are where `what` says that (a function of no arguments).
    """
    with _Ticker(what, patience_s):
        yield


@contextmanager
def never_silent(what: str) -> Iterator[None]:
    """Say on stderr what runs, and for how long, whenever nothing was told for a few seconds.

    The whole of a command is held by it, so that no step of it can be silent; one that shows its own progress
    is never interrupted, and one that serves until it is stopped says so (`lives_on`).
    """
    _lives_on.clear()
    watch = _Watch(what)
    _watches.append(watch)
    watch.start()
    try:
        yield
    finally:
        _watches.remove(watch)
        watch.stop()


@contextmanager
def without_watch() -> Iterator[None]:
    """Watch no command for the moment in which processes are forked: none may be while a thread runs."""
    for watch in _watches:
        watch.stop()
    try:
        yield
    finally:
        for watch in _watches:
            watch.start()


def lives_on() -> None:
    """From here on a command serves, trains or follows until it is stopped: silence is no fault."""
    _lives_on.set()


def paced(say: Callable[[str], None], *, every_s: float = PACE_S) -> Callable[[str], None]:
    """Pass on what is said, at most once in so many seconds."""
    last = time.monotonic()

    def passed(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= every_s:
            last = time.monotonic()
            say(text)

    return passed


class _Watch:
    """A thread that looks whether anything was told of late; it may stop and start again."""

    def __init__(self, what: str) -> None:
        self._what, self._started = what, time.monotonic()
        self._done, self._thread = threading.Event(), threading.Thread()

    def start(self) -> None:
        """Look from now on."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(self._done,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more, and have no thread."""
        self._done.set()
        self._thread.join()

    def _look(self, done: threading.Event) -> None:
        """Tell how long the command lasts where it is silent."""
        while not done.wait(_LOOK_S) and not _lives_on.is_set():
            lasted_s = time.monotonic() - self._started
            if min(lasted_s, silent_s()) >= _REPEAT_S:
                tell(f"{self._what} … {lasted_s:.0f} s\n")


_watches: Final[list[_Watch]] = []


class _Ticker:
    """A thread that writes the line until it is told to stop."""

    def __init__(self, what: str | Callable[[], str], patience_s: float) -> None:
        self._say: Callable[[], str] = what if callable(what) else lambda: what
        self._patience_s = patience_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _tick(self) -> None:
        """Wait, then write until done."""
        started = time.monotonic()
        if self._done.wait(self._patience_s):
            return
        if not sys.stderr.isatty():
            tell(f"{self._say()} …\n")
            wait_s = min(_SECOND_S, _REPEAT_S)
            while not self._done.wait(wait_s):
                tell(f"{self._say()} … {time.monotonic() - started:.0f} s\n")
                wait_s = _REPEAT_S
            return
        while not self._done.wait(_REFRESH_S):
            seconds = f" … {time.monotonic() - started:.1f} s"
            most = shutil.get_terminal_size().columns - len(seconds) - 1
            tell(f"\r\033[K{shortened(self._say(), max(most, 1))}{seconds}")
        tell("\r\033[K")
