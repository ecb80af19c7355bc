"""How well the layouts of one job are ranked: what a planner needs of a cost model, whatever its level."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

JOB_COLUMNS = (
    "source", "gpu", "framework", "model", "precision", "num_gpus", "global_batch_size", "sequence_length",
    "num_layers", "hidden_size", "num_attention_heads", "num_experts", "flash_attention",
)  # fmt: skip
"""Rows that agree in these are layouts of one job."""

LAYOUT_COLUMNS = (
    "tp", "pp", "cp", "ep", "dp", "virtual_stages", "schedule", "zero_stage", "shard_degree",
    "microbatch_size", "recompute", "sequence_parallel",
)  # fmt: skip
"""Rows that agree in these, too, are one layout, measured more than once."""

FEWEST_LAYOUTS = 3  # of two, a rank correlation is a toss
Times = tuple[Mapping[str, str], float | None, float | None]
"""Columns of a row, its measured and its predicted step time in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedJob:
    """One job with enough measured layouts.

    Attributes:
        job: Values of `JOB_COLUMNS`.
        layouts: How many were measured.
        spearman: Rank correlation of predicted and measured step times, ties sharing their mean rank.
        regret: Slow-down of the layout predicted best over the one measured best, a share.
    """

    job: tuple[str, ...]
    layouts: int
    spearman: float
    regret: float


def ranked_jobs(rows: Iterable[Times]) -> list[RankedJob]:
    """Jobs with enough layouts whose times differ; of a layout measured more than once the means are ranked.

    >>> rows = [({"tp": str(tp)}, measured, tp) for tp, measured in ((1, 2.0), (2, 1.0), (4, 3.0))]
    >>> [(job.layouts, job.spearman, job.regret) for job in ranked_jobs(rows)]
    [(3, 0.5, 1.0)]
    """
    jobs: dict[tuple[str, ...], dict[tuple[str, ...], list[tuple[float, float]]]]
    jobs = defaultdict(lambda: defaultdict(list))
    for columns, measured_s, predicted_s in rows:
        if measured_s is not None and predicted_s is not None:
            job, layout = (tuple(columns.get(c, "") for c in cs) for cs in (JOB_COLUMNS, LAYOUT_COLUMNS))
            jobs[job][layout].append((measured_s, predicted_s))
    result = []
    for job, layouts in jobs.items():
        measured, predicted = np.array([np.mean(times, axis=0) for times in layouts.values()]).T
        if len(layouts) >= FEWEST_LAYOUTS and np.ptp(measured) > 0 and np.ptp(predicted) > 0:
            result.append(
                RankedJob(
                    job=job,
                    layouts=len(layouts),
                    spearman=float(np.corrcoef(_ranks(measured), _ranks(predicted))[0, 1]),
                    regret=float(measured[np.argmin(predicted)] / measured.min() - 1),
                )
            )
    return result


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from zero, ties averaged."""
    ordered = np.sort(values)
    below, upto = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    return np.asarray((below + upto - 1) / 2, dtype=np.float64)
