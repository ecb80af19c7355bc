"""Serving rows predicted by several processes: a table of thousands is simulated row by row, in plain Python.

Rows are handed out a few at a time and come back as they are done, so that whoever waits can say how far it
is and keeps what there is when it is stopped. The processes are loky's: those of the standard library run
the main program again at their start, which a script, a notebook or a page of the dashboard may not bear.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from concurrent.futures import as_completed

from loky import ProcessPoolExecutor

from costmodel.accuracy.serving import ServingResult, predict_serving_rows
from costmodel.kernels.tables import load_calibration
from costmodel.runs.cells import Row

WORTH_PROCESSES = 200  # rows: a process takes a second to start, twenty rows are simulated in that
HANDED_OUT = 8  # rows at a time
MEASURED = ("id", "source", "ttft_s", "tpot_s")  # columns that tell rows of one setup apart


def predict_by_processes(rows: Sequence[Row], done: dict[int, ServingResult]) -> None:
    """Predict every row with the shipped tables, each into `done` by its place as soon as it is there."""
    processes = os.cpu_count() or 1
    if len(rows) < WORTH_PROCESSES or processes == 1:
        predict_serving_rows(rows, load_calibration(), done=done)
        return
    pool = ProcessPoolExecutor(processes, initializer=_start_process)
    try:
        order = sorted(range(len(rows)), key=lambda at: _setup(rows[at]))
        parts = [order[start : start + HANDED_OUT] for start in range(0, len(rows), HANDED_OUT)]
        waited = [pool.submit(_predict_some, [rows[at] for at in part], part) for part in parts]
        for some in as_completed(waited):
            done.update(some.result())
    finally:
        pool.shutdown(wait=False, kill_workers=True)


def _start_process() -> None:
    """Leave Ctrl-C to the process that waits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _setup(row: Row) -> tuple[str, ...]:
    """What was served, so that rows which share it, or are the same run, meet in one process."""
    return tuple(str(cell) for name, cell in sorted(row.items()) if name not in MEASURED)


def _predict_some(rows: Sequence[Row], places: Sequence[int]) -> dict[int, ServingResult]:
    """A few rows by their places."""
    serving_results: dict[int, ServingResult] = {}
    predict_serving_rows(rows, load_calibration(), done=serving_results, places=places)
    return serving_results
