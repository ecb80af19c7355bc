"""Show what every fitted constant buys on vendors left out: fit all others without it, and compare.

    python tools/ablate.py ../shared/data/training_runs_v2.csv      # writes docs/data/ablation.csv

Without it means at its neutral value, at which its term is none, or is what kernel tables and counts say.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fit_constants import fit
from fit_free import Values, predict, prior_centres
from fit_sample import Sample, load_sample
from leave_out import STEPS, Groups, ways_of, without_own

from costmodel.accuracy.training_runs import read_rows
from topology.base.arrays import Vector

KEPT = Path(__file__).resolve().parents[1] / "docs" / "data" / "ablation.csv"
ONE = ("split_accumulation", "scores_in_step", "elementwise_in_step", "network_in_step", "p2p_exposed",
       "p2p_overlapped")  # fmt: skip
"""Factors on what tables and counts say; every other constant adds a term, and is none at 0."""
RATIOS = ("product_time_ratio", "tp_slowdown")
"""Properties of a profile that are factors."""
VTRAIN = "vtrain_single_node"
"""The source that is not among the dense rows of the table: one node's 1,440 rows."""


def neutral(name: str) -> float:
    """The value at which a constant's term is none.

    >>> neutral("jitter"), neutral("megatron-deepspeed.tp_slowdown"), neutral("p2p_exposed")
    (0.0, 1.0, 1.0)
    """
    return float(name in ONE or name.rpartition(".")[2] in RATIOS)


def held_out(sample: Sample, groups: Groups, without: str | None) -> Vector:
    """Predictions of every run by constants fitted without its group, one of them at its neutral value."""
    start = prior_centres()
    fixed: Values = {} if without is None else {without: neutral(without)}
    predicted = np.zeros(len(sample.measured))
    for group in sorted(set(groups.tolist())):
        held = groups == group
        left = sample.take(~held)
        names = [name for name in start if name not in fixed]
        fitted = fit(left, {**without_own(start, left), **fixed}, names, steps=STEPS)
        predicted[held] = predict(sample.take(held), fitted)
    return predicted


def errors(sample: Sample, predicted: Vector) -> Mapping[str, float]:
    """Median and p90 of dense rows without vTrain's single node, and of rows with experts, in percent."""
    absolute = 100 * np.abs(predicted / sample.measured - 1)
    kinds = {"dense": sample.dense & (sample.source != VTRAIN), "moe": ~sample.dense}
    return {
        f"{kind}_{label}": float(np.quantile(absolute[rows], share))
        for kind, rows in kinds.items()
        for label, share in (("median", 0.5), ("p90", 0.9))
    }


def ablate(path: str, kept: Path = KEPT) -> None:
    """Print and store the errors with every constant, then without each."""
    sample, rows = load_sample(path), {row["id"]: row for row in read_rows(path)}
    groups = ways_of(sample, rows)["vendors"]
    lines = ["without,dense_median,dense_p90,moe_median,moe_p90"]
    for name in (None, *prior_centres()):
        figures = errors(sample, held_out(sample, groups, name))
        lines.append(",".join([name or "none", *(f"{value:.2f}" for value in figures.values())]))
        print(lines[-1], flush=True)
    kept.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    ablate(sys.argv[1])
