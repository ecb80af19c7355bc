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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.pool import Pool
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
        with pool:
            yield pool.imap


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pool(processes: int, forking: Callable[[], AbstractContextManager[None]]) -> Pool | None:
    """So many processes; None where one is enough, or where a thread runs, which a fork would cut off."""
    if processes == 1 or sys.platform != "linux":
        return None
    load_calibration()  # once, and not in every process
    with forking():
        if threading.active_count() > 1:
            return None
        return multiprocessing.get_context("fork").Pool(processes, initializer=_start_process)


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
    """Leave Ctrl-C to the process that waits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
