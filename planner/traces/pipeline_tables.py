"""Tables of the operations of a pipeline-parallel job: one row an operation, of many ranks and steps.

The columns are those of the published traces of "Understanding Stragglers in Large Model Training Using
What-if Analysis" (arXiv:2505.05713): dp_rank, stage, rank, step, optype, start_ts, duration, seq_id, mc, gmc,
mb_id. Parquet needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from topology.base.errors import InputError, shortened
from topology.base.files import LONGEST_PATH, require_regular

MAX_ROWS: Final = 20_000_000
NUMBERS: Final = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "gmc", "mb_id")
SECONDS: Final = ("start_ts", "duration")
MAX_PLACE: Final = 2**24
"""Of a rank, a stage or a microbatch; steps may be more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineRows:
    """Operations as columns."""

    source: str
    kinds: tuple[str, ...]
    """Distinct operations; `kind` has places in it."""
    kind: NDArray[np.int64]
    dp_rank: NDArray[np.int64]
    stage: NDArray[np.int64]
    rank: NDArray[np.int64]
    step: NDArray[np.int64]
    sequence: NDArray[np.int64]
    """Place among the operations of its kind of a rank and a step."""
    chunk: NDArray[np.int64]
    """Virtual stage within the rank; -1 where none is meant."""
    model_chunk: NDArray[np.int64]
    """Virtual stage within the model; -1 where none is meant."""
    microbatch: NDArray[np.int64]
    start_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]

    def __len__(self) -> int:
        """How many operations there are."""
        return len(self.kind)


def read_pipeline_table(path: str | Path) -> PipelineRows:
    """The operations of a parquet file.

    Raises:
        InputError: It is no such table, is too large, or pyarrow is not installed.
        OSError: There is none, or it may not be read.
    """
    name = shortened(str(path), LONGEST_PATH)
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        fix = "pip install pyarrow"
        raise InputError(f"{name} is not read", "the pyarrow library is not installed", fix) from None
    try:
        with parquet.ParquetFile(require_regular(path)) as file:
            _require(name, file.metadata.num_rows, set(file.schema_arrow.names))
            table = file.read(columns=[*NUMBERS, *SECONDS, "optype"])
            columns = {column: table.column(column).to_pylist() for column in table.column_names}
    except (ArrowException, OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        cause = shortened(next(iter(str(error).splitlines()), type(error).__name__))
        raise InputError(f"{name} is no parquet file", cause, "pass the unchanged file") from None
    return pipeline_rows(columns, name)


def _require(name: str, rows: int, columns: set[str]) -> None:
    """Refuse a table of other columns, or too large a one."""
    missing = sorted({*NUMBERS, *SECONDS, "optype"} - columns)
    if missing:
        fix = f"give each operation its {', '.join((*NUMBERS, *SECONDS, 'optype'))}"
        raise InputError(f"{name} is no table of operations", f"it has no column {', '.join(missing)}", fix)
    if not 0 < rows <= MAX_ROWS:
        raise InputError(
            f"{name} is not read", f"it has {rows:,} rows", f"pass 1 to {MAX_ROWS:,}: fewer steps"
        )


def pipeline_rows(columns: Mapping[str, Any], source: str) -> PipelineRows:
    """Operations of columns. Raises InputError for a column that is missing or holds no numbers."""
    _require(source, len(columns.get("optype", ())), set(columns))
    kinds, kind = np.unique([str(name) for name in columns["optype"]], return_inverse=True)
    try:
        numbers = {name: np.array(columns[name], np.int64) for name in NUMBERS}
        seconds = {name: np.array(columns[name], np.float64) for name in SECONDS}
    except (TypeError, ValueError, OverflowError) as error:
        cause = shortened(str(error))
        raise InputError(f"{source} holds no numbers", cause, "write integers and seconds") from None
    for name, values in numbers.items():
        if len(values) and (values.min() < -1 or (name != "step" and values.max() >= MAX_PLACE)):
            cause = f"{name} is {values.min()} to {values.max()}"
            raise InputError(f"{source} is no table of operations", cause, "count from 0")
    duration_s = seconds["duration"]
    if not all(np.isfinite(values).all() for values in seconds.values()) or (duration_s < 0).any():
        cause = "a start or a duration is no number of seconds"
        raise InputError(f"{source} is no table of operations", cause, "write seconds from 0")
    return PipelineRows(
        source=source,
        kinds=tuple(map(str, kinds)),
        kind=kind.astype(np.int64),
        dp_rank=numbers["dp_rank"],
        stage=numbers["stage"],
        rank=numbers["rank"],
        step=numbers["step"],
        sequence=numbers["seq_id"],
        chunk=numbers["mc"],
        model_chunk=numbers["gmc"],
        microbatch=numbers["mb_id"],
        start_s=seconds["start_ts"],
        duration_s=duration_s,
    )
