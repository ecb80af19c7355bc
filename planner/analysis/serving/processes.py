"""Contenders searched by several processes, where a command waits for many of them.

The processes are forked from the one that asks while it has no threads: they begin with its tables and
modules, in milliseconds, where new ones take a second to start. A page of the dashboard or a notebook, which
has threads, searches one contender after the other.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from costmodel.kernels.tables import load_calibration

SELDOM = 100_000, 20, 100
"""Objects after which garbage in circles is looked for: a search makes none, and looking took a tenth."""
WORTH_PROCESSES = 2
"""Boards: one takes a third of a second to search, or several, and two hundredths to send back."""


class Each(Protocol):
    """`map`: a function of every item, in their order, as they are done."""

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]:
        """Yield the results."""


@contextmanager
def by_processes(
    boards: int, *, forking: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[Each]:
    """`map` over as many processes as there are cores, or the builtin one where that is not worth it.

    Args:
        boards: How many are searched.
        forking: Held while the processes start: stops the threads of whoever asks, and starts them again.
    """
    with _seldom_collected():
        pool = _pool(min(_cores(), boards), forking) if boards >= WORTH_PROCESSES else None
        if pool is None:
            yield map
            return
        try:
            yield pool.map
        finally:
            pool.end()


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pool(processes: int, forking: Callable[[], AbstractContextManager[None]]) -> _Forked | None:
    """So many processes; None where one is enough, or where a thread runs, which a fork would cut off."""
    if processes == 1 or sys.platform != "linux":
        return None
    load_calibration()  # once, and not in every process
    with forking():
        if threading.active_count() > 1:
            return None
        return _Forked(processes)


class _Forked:
    """Processes that are forked at once, while there is no thread, and the results of what they do."""

    def __init__(self, processes: int) -> None:
        before = multiprocessing.active_children()
        fork = multiprocessing.get_context("fork")
        self._pool = ProcessPoolExecutor(processes, mp_context=fork, initializer=_start_process)
        self._pool.submit(os.getpid)  # the first task starts all of them
        self._children = [child for child in multiprocessing.active_children() if child not in before]

    def map(self, function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterator[Any]:
        """Results in their order; where a process was killed, as for memory, this one finds what is left."""
        items, done = tuple(items), 0
        try:
            for result in self._pool.map(function, items):
                done += 1
                yield result
        except BrokenProcessPool:
            yield from map(function, items[done:])

    def end(self) -> None:
        """Wait for nothing that is still done."""
        for child in self._children:
            child.kill()
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Look for garbage in circles less often."""
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _start_process() -> None:
    """Leave Ctrl-C to the process that waits, and end when it does, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of the process that asked."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(1)
