"""Cells of a row of measured runs as numbers: finite, of a size that exists, whole where they count.

One reader for training and serving runs. A cell that holds something else makes its row unsupported, with
the column and the text in the reason; the other rows do not notice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from costmodel.job import LARGEST_BUCKET
from costmodel.models.sizes import LARGEST_SIZE, MOST_LAYERS
from topology.base.errors import InputError, shown
from topology.spec_rules import MAX_GPUS, MOST_NODE_GPUS

Row = Mapping[str, str]
SURPLUS = "(cells beyond the last column)"
"""Column that holds what a row has beyond the header; such a row is misaligned."""

SMALLEST = 1e-9  # a nanosecond; what is smaller is a typing error, and errors relative to it overflow
MOST_IN_FLIGHT = 16_384  # requests: the largest published benchmark has 12,288
MOST_WORKERS = 64  # of one phase: published ones have up to 15

LARGEST: Mapping[str, int] = {
    "num_gpus": MAX_GPUS,
    "gpus_per_node": MOST_NODE_GPUS,
    "num_layers": MOST_LAYERS,
    "pp": MOST_LAYERS,
    "prefill_pp": MOST_LAYERS,
    "decode_pp": MOST_LAYERS,
    "bucket_bytes": int(LARGEST_BUCKET),
    "concurrency": MOST_IN_FLIGHT,
    "prefill_batch": MOST_IN_FLIGHT,
    "decode_batch": MOST_IN_FLIGHT,
    "prefill_workers": MOST_WORKERS,
    "decode_workers": MOST_WORKERS,
}
"""What no cluster, model or benchmark exceeds, by column; of all others `LARGEST_SIZE`."""

_YES, _NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")


STOPPED = "stopped before its turn"
"""Reason of a row that was left when the prediction of its table was interrupted."""


class UnsupportedRunError(Exception):
    """A row that does not say enough, or something the cost model cannot express; the message says which."""


def row_refusal(failure: Exception) -> UnsupportedRunError:
    """The reason why a row is without a prediction, whatever was raised on the way to it."""
    if isinstance(failure, UnsupportedRunError):
        return failure
    if isinstance(failure, InputError):
        return UnsupportedRunError(f"{failure.what}: {failure.cause}")
    return UnsupportedRunError(f"{type(failure).__name__}: {failure}")


def require_cells(row: Row, names: tuple[str, ...]) -> None:
    """Refuse a row that is misaligned, or says nothing in a column that every run needs."""
    if row.get(SURPLUS):
        raise UnsupportedRunError("more cells than columns: is a text with a comma unquoted?")
    missing = [name for name in names if not row.get(name)]
    if missing:
        raise UnsupportedRunError(f"no {', '.join(missing)}")


def number_cell(row: Row, name: str, default: float | None = None) -> float:
    """A positive number; `default` where the cell is empty, zero only where that is the default."""
    text = row.get(name, "")
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (SMALLEST <= value < math.inf or value == default == 0):
        raise UnsupportedRunError(f"{name} = {shown(text)} is not a positive number")
    most = LARGEST.get(name, LARGEST_SIZE)
    if value > most:
        raise UnsupportedRunError(f"{name} = {shown(text)} is more than the {most:,} that can be")
    return value


def count(row: Row, name: str, default: int | None = None) -> int:
    """A positive whole number; `default` where the cell is empty, zero only where that is the default."""
    value = number_cell(row, name, None if default is None else float(default))
    if value != int(value):
        raise UnsupportedRunError(f"{name} = {row.get(name)} is not a whole number")
    return int(value)


def degree(row: Row, name: str) -> int:
    """A parallel degree: empty or zero means that there is no such axis, which is one."""
    return max(count(row, name, 0), 1)


def yes_no_cell(row: Row, name: str, *, default: bool) -> bool:
    """A yes or no; `default` where the cell is empty."""
    text = row.get(name, "").lower()
    if text and text not in _YES + _NO:
        raise UnsupportedRunError(f"{name} = {shown(text)} is neither yes nor no")
    return text in _YES if text else default
