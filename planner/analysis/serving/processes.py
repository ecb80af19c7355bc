"""Contenders searched by several processes, where a command waits for many of them.

The processes are forked from the one that asks before it has threads: they begin with its tables and modules,
in milliseconds, where new ones take a second to start. A page of the dashboard or a notebook, which has
threads, searches one contender after the other.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from costmodel.kernels.tables import load_calibration

SELDOM = 100_000, 20, 100
"""Objects after which garbage in circles is looked for: a search makes none, and looking took a tenth."""
WORTH_PROCESSES = 4
"""Boards: one takes a third of a second to search, and two hundredths to send back."""


class Each(Protocol):
    """`map`: a function of every item, in their order, as they are done."""

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]:
        """Yield the results."""


@contextmanager
def by_processes(boards: int) -> Iterator[Each]:
    """`map` over as many processes as there are cores, or the builtin one where that is not worth it."""
    processes = min(os.cpu_count() or 1, boards)
    alone = threading.active_count() == 1 and sys.platform == "linux"
    with _seldom_collected():
        if boards < WORTH_PROCESSES or processes == 1 or not alone:
            yield map
            return
        load_calibration()  # once, and not in every process
        with multiprocessing.get_context("fork").Pool(processes, initializer=_start_process) as pool:
            yield pool.imap


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
