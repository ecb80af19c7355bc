"""How long predicting published runs takes, and what one measured run of an unseen source is worth.

`python -m pytest -n 0 benchmarks/bench_accuracy.py` times it; run as a script it prints the anchoring table.
"""

import csv
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.accuracy.anchor import anchored, fit_anchor  # noqa: E402
from costmodel.accuracy.training import RunResult, predict_rows  # noqa: E402 - the checkout is not installed
from costmodel.accuracy.training_runs import shipped_runs  # noqa: E402
from costmodel.kernels.tables import load_calibration  # noqa: E402

DRAWS = 20


def test_predict_the_published_runs(benchmark):
    """Packaged runs through reading, kernels, composition and bands."""
    rows, cal = shipped_runs(), load_calibration()
    predict_rows(rows, cal)
    results = benchmark(predict_rows, rows, cal)
    assert {result.status for result in results} == {"ok"}


def held_out() -> dict[str, list[RunResult]]:
    """Dense runs but vTrain's, predicted by constants fitted without their source."""
    sources: dict[str, list[RunResult]] = defaultdict(list)
    with (ROOT / "docs" / "data" / "cross_validation.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["dense"] == "1" and row["source"] != "vtrain_single_node":
                sources[row["source"]].append(
                    RunResult(
                        name=row["id"], group={}, status="ok", stack=row["stack"],
                        measured_step_time_s=float(row["measured_s"]),
                        predicted_step_time_s=float(row["held_out_vendors_s"]),
                    )
                )  # fmt: skip
    return sources


def errors_anchored_by(runs: int) -> np.ndarray:
    """Absolute errors of all other rows of a source under an anchor of this many random ones."""
    chance, errors = np.random.default_rng(0), []
    for rows in held_out().values():
        for _ in range(DRAWS if len(rows) > runs else 0):
            chosen = set(chance.choice(len(rows), runs, replace=False).tolist())
            anchor = fit_anchor([rows[i] for i in chosen])
            errors += [anchored(row, anchor).error for i, row in enumerate(rows) if i not in chosen]
    return np.abs(np.array(errors, dtype=float))


if __name__ == "__main__":
    for count in (0, 1, 2, 3, 5):
        found = 100 * errors_anchored_by(count)
        median, mean, p90 = np.median(found), found.mean(), np.quantile(found, 0.9)
        assert math.isfinite(median)
        print(f"{count} runs of the source: median {median:.1f}, mean {mean:.1f}, p90 {p90:.1f} %")
