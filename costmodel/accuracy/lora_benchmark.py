"""The MLPerf LoRA benchmark as measured training runs; where a row leaves its layout out, the best there is.

Half of the result files name no layout, and whoever submits takes the fastest that fits: so does the reader,
by predicted time alone. A measured time decides nothing here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.accuracy.csv_table import RunTable
from costmodel.accuracy.training_runs import read_run
from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable
from costmodel.runs.cells import Row, UnsupportedRunError
from costmodel.runs.lora_benchmark import is_lora_benchmark, lora_training_row, possible_rows
from costmodel.training.score import evaluate
from topology.base.errors import InputError


def read_benchmark(table: RunTable, cal: Calibration) -> RunTable:
    """A table of the benchmark in the columns of training runs; any other table as it is."""
    if not is_lora_benchmark(table.columns):
        return table
    rows = tuple(_settled(lora_training_row(row), cal) for row in table.rows)
    return replace(table, columns=tuple(rows[0]), rows=rows)


def _settled(row: Row, cal: Calibration) -> Row:
    """The row with its layout, or with the fastest that fits; one that cannot be read is left as it is."""
    try:
        rows = possible_rows(row)
        if len(rows) == 1:
            return rows[0]
        runs = [read_run({**row, "step_time_s": "", "oom": "1"}) for row in rows]
        first = runs[0]
        scores = evaluate(
            first.case(cal),
            LayoutTable.from_rows([run.layout for run in runs]),
            recomputed_share=np.array([run.recomputed_share for run in runs]),
        )
    except (UnsupportedRunError, InputError):
        return row
    fits = scores.peak_memory_bytes <= first.cluster.gpu.memory_bytes
    if not fits.any():
        return rows[int(np.argmin(scores.peak_memory_bytes))]
    return rows[int(np.argmin(np.where(fits, scores.step_time_s, np.inf)))]
