"""Predicted against measured serving runs, row by row and summed up by group."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from costmodel.accuracy.serving_limits import refuse_faster_than_machine, refuse_unstated_machines
from costmodel.accuracy.serving_predictions import Latency, predict
from costmodel.accuracy.serving_runs import ServingRun, read_serving_run
from costmodel.kernels.tables import Calibration
from costmodel.runs.cells import STOPPED, Row, UnsupportedRunError, row_refusal
from topology.base.arrays import Floats
from topology.base.errors import InputError
from topology.builders import default_cluster
from topology.fabric.hierarchy import Hierarchy

RUN_GPUS = 64  # a fabric large enough for every pool of a published run
RACK_GPUS = 72  # GPUs named after a rack-scale system come in racks
FEWEST_LAYOUTS = 4  # a load needs this many layouts for a rank correlation to say something


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingResult:
    """One row, predicted. Latencies are None where the row could not be predicted."""

    name: str
    status: Literal["ok", "unsupported", "error"]
    reason: str = ""
    group: Mapping[str, str]
    measured_ttft_s: float | None = None
    predicted_ttft_s: float | None = None
    measured_tpot_s: float | None = None
    predicted_tpot_s: float | None = None

    @property
    def ttft_error(self) -> float | None:
        """Predicted over measured time to first token, minus one."""
        return _error(self.predicted_ttft_s, self.measured_ttft_s)

    @property
    def tpot_error(self) -> float | None:
        """Predicted over measured time per output token, minus one."""
        return _error(self.predicted_tpot_s, self.measured_tpot_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSummary:
    """Errors of one group of rows; shares, not percent. NaN where there is nothing to compare."""

    group: str
    rows: int
    unsupported: int
    ttft_median_error: float
    ttft_p90_error: float
    tpot_median_error: float
    tpot_p90_error: float
    tpot_bias: float
    rank_correlation: float


def predict_serving_rows(
    rows: Sequence[Row],
    cal: Calibration,
    *,
    done: dict[int, ServingResult] | None = None,
    places: Sequence[int] | None = None,
) -> list[ServingResult]:
    """Predict every row of a table; no row can fail the others.

    Args:
        rows: Of one table, or a part of it.
        cal: Kernel and collective tables.
        done: Takes every result by its place in the table as soon as it is there.
        places: Place of each of these rows; they are the first ones by default.
    """
    serving_results = {} if done is None else done
    places, known = range(len(rows)) if places is None else places, _Known()
    for at, row in zip(places, rows, strict=True):
        serving_results[at] = _predict_row(row, at + 1, cal, known)
    return [serving_results[at] for at in places]


class _Known(dict[ServingRun, Latency]):
    """Latencies of runs that tables publish more than once, by everything but name and measurement."""

    def of(self, cal: Calibration, run: ServingRun) -> Latency:
        """The run's latency, simulated once."""
        key = replace(run, name="", ttft_s=1.0, tpot_s=1.0)
        if key not in self:
            self[key] = predict(cal, run, fabric(run.gpu))
        return self[key]


def serving_not_reached(row: Row, at: int) -> ServingResult:
    """A row that was left when the prediction was stopped."""
    return ServingResult(name=_name(row, at + 1), status="unsupported", reason=STOPPED, group=_group(row))


def summarise_serving(results: Sequence[ServingResult], *, by: str | None = None) -> list[ServingSummary]:
    """Errors by the values of a column, in order of appearance; then by mode; then of all rows together."""
    groups: dict[str, list[ServingResult]] = defaultdict(list)
    if by is not None:
        for result in results:
            groups[result.group.get(by, "unnamed")].append(result)
    for result in results:
        groups[result.group["mode"]].append(result)
    return [*(_summary(name, members) for name, members in groups.items()), _summary("all", results)]


@functools.lru_cache(maxsize=64)
def fabric(gpu: str) -> Hierarchy:
    """The fabric a published run of this GPU is taken to have.

    Its usual nodes, or one rack of a rack-scale system.
    """
    return default_cluster(gpu, RACK_GPUS if gpu.lower().startswith("gb") else RUN_GPUS).hierarchy


_COLUMNS = (
    "model", "gpu", "engine", "engine_version", "precision", "mode", "input_tokens", "output_tokens",
    "concurrency",
)  # fmt: skip


def _group(row: Row) -> dict[str, str]:
    """Columns results can be grouped by."""
    group = {column: (row.get(column) or "unnamed") for column in _COLUMNS}
    group["mode"] = "disaggregated" if group["mode"].startswith("disagg") else "aggregated"
    return group


def _name(row: Row, index: int) -> str:
    return row.get("id") or f"row {index}"


def _predict_row(row: Row, index: int, cal: Calibration, known: _Known) -> ServingResult:
    """One row; whatever it lacks is a reason, never an exception."""
    name, group = _name(row, index), _group(row)
    try:
        run = read_serving_run(row, index)
        refuse_faster_than_machine(cal, run)
        refuse_unstated_machines(row, run, fabric(run.gpu))
        latency = known.of(cal, run)
    except Exception as failure:  # noqa: BLE001 - one row of a user's table must not cost them the others
        expected = isinstance(failure, UnsupportedRunError | InputError)
        reason = str(row_refusal(failure))
        return ServingResult(
            name=name, status="unsupported" if expected else "error", reason=reason, group=group
        )
    if not (math.isfinite(latency.ttft_s) and math.isfinite(latency.tpot_s) and latency.tpot_s > 0):
        return ServingResult(name=name, status="unsupported", reason="no time per token", group=group)
    return _compared(run, group, latency.ttft_s, latency.tpot_s)


def _compared(run: ServingRun, group: Mapping[str, str], ttft_s: float, tpot_s: float) -> ServingResult:
    """A row beside its prediction."""
    return ServingResult(
        name=run.name,
        status="ok",
        group=group,
        measured_ttft_s=run.ttft_s,
        predicted_ttft_s=ttft_s,
        measured_tpot_s=run.tpot_s,
        predicted_tpot_s=tpot_s,
    )


def _error(predicted: float | None, measured: float | None) -> float | None:
    """Predicted over measured, minus one."""
    return None if predicted is None or measured is None else predicted / measured - 1


def _summary(name: str, results: Sequence[ServingResult]) -> ServingSummary:
    """Errors of one group."""
    tpot = np.array([r.tpot_error for r in results if r.tpot_error is not None])
    ttft = np.array([r.ttft_error for r in results if r.ttft_error is not None])
    return ServingSummary(
        group=name,
        rows=len(results),
        unsupported=sum(r.status != "ok" for r in results),
        ttft_median_error=_quantile(np.abs(ttft), 0.5),
        ttft_p90_error=_quantile(np.abs(ttft), 0.9),
        tpot_median_error=_quantile(np.abs(tpot), 0.5),
        tpot_p90_error=_quantile(np.abs(tpot), 0.9),
        tpot_bias=_quantile(tpot, 0.5),
        rank_correlation=_rank_correlation(results),
    )


def _quantile(values: Floats, share: float) -> float:
    """Quantile, NaN of nothing."""
    return float(np.quantile(values, share)) if len(values) else math.nan


def _rank_correlation(results: Sequence[ServingResult]) -> float:
    """Median over equal loads of the Spearman correlation of measured.

    Predicted times per token of their layouts.
    """
    loads: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for r in results:
        if r.measured_tpot_s is not None and r.predicted_tpot_s is not None:
            loads[tuple(r.group.values())].append((r.measured_tpot_s, r.predicted_tpot_s))
    ranks = [_spearman(np.array(pairs)) for pairs in loads.values() if len(pairs) >= FEWEST_LAYOUTS]
    return _quantile(np.array([rank for rank in ranks if math.isfinite(rank)]), 0.5)


def _spearman(pairs: Floats) -> float:
    """Rank correlation of two columns; NaN when one of them is constant."""
    ranks = pairs.argsort(axis=0).argsort(axis=0).astype(float)
    if np.ptp(pairs[:, 0]) == 0 or np.ptp(pairs[:, 1]) == 0:
        return math.nan
    return float(np.corrcoef(ranks[:, 0], ranks[:, 1])[0, 1])
