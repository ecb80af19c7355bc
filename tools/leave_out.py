"""Predict every measured run by constants fitted without it, in four ways of leaving runs out.

    python tools/leave_out.py ../shared/data/training_runs_v2.csv   # writes docs/data/cross_validation.csv

*vendors* leaves out one publisher's runs of one family of engines, *generations* one architecture of GPU,
*models* one family of models, *layouts* a fifth of all layouts of all jobs. What a user reads off their own
setup stays (the mechanisms of a stack's profile, kernel tables); what was fitted does not: all constants are
fitted anew to the runs that are left, and a property of a stack of which no run is left is the median of the
profiles that have runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fit_constants import fit
from fit_free import STACK_FIELDS, Values, bounds_of, predict, prior_centres, profiles_of
from fit_parts import slopes
from fit_sample import Sample, load_sample

from costmodel.accuracy.training_runs import read_rows
from costmodel.evidence.keys import engine_family
from costmodel.kernels.level import PARTS
from costmodel.runs.cells import Row
from costmodel.stack import stacks
from topology.base.arrays import Vector
from topology.catalog import gpu

KEPT = Path(__file__).resolve().parents[1] / "docs" / "data" / "cross_validation.csv"
FOLDS = 5
STEPS = 8
Groups = NDArray[Any]
PUBLISHERS: Mapping[str, str] = {
    "rocm": "AMD",
    "vtrain": "KAIST",
    "bloom": "BigScience",
    "mosaic": "MosaicML",
    "torchtitan": "Meta",
    "torchao": "Meta",
    "ibm": "IBM",
    "internevo": "Shanghai AI Lab",
    "zero_bubble": "Sea AI Lab",
    "simumax": "Moore Threads",
}
"""Who measured, by a word of a row's source or engine; all others are NVIDIA's."""


def publisher_of(row: Row) -> str:
    """Who measured a run."""
    words = f"{row.get('framework', '')} {row.get('source', '')}".lower()
    return next((who for word, who in PUBLISHERS.items() if word in words), "NVIDIA")


def model_family(name: str) -> str:
    """The letters that a model's name begins with.

    >>> model_family("Llama3.1-8B (MLPerf v5.1)"), model_family("Qwen/Qwen3_30B_a3B")
    ('llama', 'qwen')
    """
    found = re.match(r"[a-z]+", name.rsplit("/", 1)[-1].lower())
    return found.group() if found else "unnamed"


def ways_of(sample: Sample, rows: Mapping[str, Row]) -> dict[str, Groups]:
    """The group that every run belongs to, by way of leaving out."""
    of = [rows[name] for name in sample.name]
    vendors = [f"{publisher_of(r)} {engine_family(s)}" for r, s in zip(of, sample.stack, strict=True)]
    return {
        "vendors": np.array(vendors),
        "generations": np.array([gpu(row["gpu"]).architecture for row in of]),
        "models": np.array([model_family(row.get("model", "")) for row in of]),
        "layouts": folds(sample),
    }


def folds(sample: Sample) -> Groups:
    """Fold of every run; runs of one layout of one job share it."""
    names = sorted(set(sample.layout.tolist()))
    shuffled = np.random.default_rng(0).permutation(len(names))
    fold = {name: f"fold {int(place) % FOLDS}" for name, place in zip(names, shuffled, strict=True)}
    return np.array([fold[layout] for layout in sample.layout])


def without_own(start: Values, left: Sample) -> Values:
    """Where a fit sets out when no run of some stacks is left: their properties are those of the others."""
    there, found = sorted(set(left.stack.tolist())), dict(start)
    for name in STACK_FIELDS:
        if set(there) & set(profiles_of(name)):
            continue
        low, high = (float(bound[0]) for bound in bounds_of([name]))
        others = [getattr(stacks()[profile].timing, name.split(".")[-1]) for profile in there]
        found[name] = float(np.clip(np.median(np.array(others, dtype=float)), low, high))
    return found


def cross_validate(sample: Sample, groups: Groups) -> Vector:
    """Predictions of every run by constants fitted without its group."""
    predicted, start = np.zeros(len(sample.measured)), prior_centres()
    for group in sorted(set(groups.tolist())):
        held = groups == group
        left = sample.take(~held)
        fitted = fit(left, without_own(start, left), steps=STEPS)
        predicted[held] = predict(sample.take(held), fitted)
        errors = 100 * np.abs(predicted[held] / sample.measured[held] - 1)
        median, p90 = np.quantile(errors, [0.5, 0.9])
        print(f"  without {group} ({held.sum()}): {median:.1f} / {p90:.1f} %", flush=True)
    return predicted


def share_columns(sample: Sample) -> dict[str, list[str]]:
    """How far every step follows each part, in columns of the stored cross-validation."""
    shares = slopes(sample, np.zeros((len(PARTS) + 1, len(sample.measured))))[:, 1:]
    return {
        f"{part}_share": [f"{share:.3f}" for share in column]
        for part, column in zip(PARTS, shares.T, strict=True)
    }


def leave_out(path: str, kept: Path = KEPT) -> None:
    """Store the group and the held-out seconds of every run, by way of leaving out, five digits.

    Beside them stands how far its step follows each part, as shipped constants price it.
    """
    sample, rows = load_sample(path), {row["id"]: row for row in read_rows(path)}
    columns: dict[str, list[str]] = {
        "id": sample.name.tolist(),
        "source": sample.source.tolist(),
        "stack": sample.stack.tolist(),
        "dense": [str(int(dense)) for dense in sample.dense],
        "measured_s": [f"{seconds:.5g}" for seconds in sample.measured],
    }
    columns |= share_columns(sample)
    for way, groups in ways_of(sample, rows).items():
        print(f"{way} left out", flush=True)
        columns[way] = groups.tolist()
        columns[f"held_out_{way}_s"] = [f"{seconds:.5g}" for seconds in cross_validate(sample, groups)]
    lines = [",".join(columns), *(",".join(cells) for cells in zip(*columns.values(), strict=True))]
    kept.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    leave_out(sys.argv[1])
