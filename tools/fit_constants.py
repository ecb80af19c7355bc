"""Fit the constants of the training cost model to measured runs; `leave_out.py` cross-validates them.

    python tools/fit_constants.py ../shared/data/training_runs_v2.csv          # tables before and after a fit
    python tools/fit_constants.py RUNS.csv --write                             # store the fitted values

Raw times are computed once; every evaluation of all runs under other constants then takes some 30 ms, and one
of all runs under each constant moved in turn a second. The residual is log(predicted/measured) under a Huber
loss, sources weigh in by the root of their number of rows, and every constant is drawn towards its shipped
value by a weak prior on its relative change, within physical bounds.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fit_free import Values, bounds_of, predict, prior_centres, shipped
from fit_sample import Sample, load_sample

from topology.base.arrays import Vector

HUBER = 0.06  # residuals beyond this count linearly
PRIOR = 1e-4  # loss of a relative change of one in a constant; runs cost half their squared residual
STEPS = 25


def fit(sample: Sample, start: Values, names: Sequence[str] | None = None, steps: int = STEPS) -> Values:
    """Constants with the least Huber loss plus prior; damped Gauss–Newton within bounds."""
    names = list(names or start)
    centre = np.array([start[n] for n in names])
    low, high = bounds_of(names)
    tiled = sample.take(np.tile(np.arange(len(sample.measured)), len(names)))
    scale = np.maximum(np.abs(centre), 0.05 * (high - low))
    weight = sample.weight / sample.weight.sum()

    def residual(x: Vector) -> Vector:
        return np.log(
            predict(sample, {**start, **dict(zip(names, x.tolist(), strict=True))}) / sample.measured
        )

    def slopes(x: Vector, r: Vector) -> Vector:
        """Derivative of every residual by every scaled constant, all in one evaluation of a tiled sample."""
        h = np.where(x + 2e-3 * scale <= high, 2e-3, -2e-3) * scale
        moved = {n: np.repeat(x[j] + h[j] * np.eye(len(x))[j], len(r)) for j, n in enumerate(names)}
        tiles = np.log(predict(tiled, {**start, **moved}) / tiled.measured).reshape(len(x), len(r))
        return np.asarray(((tiles - r) * (scale / h)[:, None]).T)

    def loss(x: Vector, r: Vector) -> float:
        a = np.abs(r)
        huber = np.where(a < HUBER, 0.5 * a * a, HUBER * (a - 0.5 * HUBER))
        return float((weight * huber).sum() + PRIOR * (((x - centre) / scale) ** 2).sum())

    x, r = centre.copy(), residual(centre)
    best, damping = loss(x, r), 1e-2
    for _ in range(steps):
        robust = weight * np.where(np.abs(r) < HUBER, 1.0, HUBER / np.maximum(np.abs(r), 1e-12))
        jacobian = slopes(x, r)
        prior = 2 * PRIOR
        normal = jacobian.T @ (robust[:, None] * jacobian) + prior * np.eye(len(x))
        slope = -(jacobian.T @ (robust * r)) - prior * (x - centre) / scale
        for _ in range(8):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), slope) * scale
            candidate = np.clip(x + step, low, high)
            found = residual(candidate)
            value = loss(candidate, found)
            if value < best:
                break
            damping *= 4
        else:
            break
        gain, x, r, best, damping = best - value, candidate, found, value, max(damping / 3, 1e-7)
        if gain < 1e-6 * best:
            break
    return {**start, **dict(zip(names, x.tolist(), strict=True))}


def table(sample: Sample, predictions: Mapping[str, Vector]) -> None:
    """Print median / mean / p90 absolute error and median bias by source, in percent."""
    print(f"{'source':28s}{'n':>6s}" + "".join(f"{name:>30s}" for name in predictions))
    dense = sample.dense & (sample.source != "vtrain_single_node")
    groups = {s: sample.source == s for s in sorted(set(sample.source.tolist()))}
    groups |= {"DENSE without vTrain": dense, "MoE": ~sample.dense, "ALL": np.ones_like(dense)}
    for name, rows in groups.items():
        line = f"{name:28s}{rows.sum():6d}"
        for predicted in predictions.values():
            e = 100 * (predicted[rows] / sample.measured[rows] - 1)
            a = np.abs(e)
            line += f"   {np.median(a):6.1f}{a.mean():6.1f}{np.quantile(a, 0.9):6.1f} {np.median(e):+6.1f}"
        print(line)


def write(values: Values) -> None:
    """Store fitted values in the data files, three significant digits."""
    data = Path(__file__).resolve().parents[1] / "costmodel" / "data"
    for name, value in values.items():
        section, _, field = name.partition(".")
        file = data / ("stacks.toml" if field else "constants.toml")
        text = file.read_text(encoding="utf-8")
        section = f'"{section}"' if "." in section else section
        start = text.index(f"[{section}.timing]\n" if field else f"[{section}]\n")
        head, body = text[:start], text[start:]
        line = rf"^{field or 'value'} = .*$"
        body = re.sub(line, f"{field or 'value'} = {value:.3g}", body, count=1, flags=re.MULTILINE)
        file.write_text(head + body, encoding="utf-8")


def main() -> None:
    """Fit, show, and store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    sample, start = load_sample(options.runs), prior_centres()
    predictions = {"shipped": predict(sample, shipped()), "not fitted": predict(sample, start)}
    fitted = fit(sample, start)
    predictions["fitted in-sample"] = predict(sample, fitted)
    for name, value in fitted.items():
        print(f"{name:48s}{start[name]:12.4g}{value:12.4g}")
    table(sample, predictions)
    if options.write:
        write(fitted)


if __name__ == "__main__":
    main()
