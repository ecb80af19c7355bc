"""How far publishers differ in parts of a step: the prior that anchors start from.

    python tools/fit_parts.py ../shared/data/training_runs_v2.csv    # after leave_out.py

`fit_bands.py` writes it. Every publisher's runs of an engine, predicted by constants fitted without them, are
given factors on the level and on each part of their steps (`costmodel.kernels.level.PARTS`) by the law of
anchors (`costmodel.accuracy.anchor`). The spread of these factors over publishers, with what remains in doubt
of each, is the prior of the next one; it is taken as prior in turn until it stays (expectation and
maximisation). Rows of a publisher weigh in by the root of their number, as in the fit of the constants.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from fit_sample import Sample, load_sample

from costmodel.accuracy.anchor import FURTHEST
from costmodel.accuracy.training import RunResult
from costmodel.kernels.level import PARTS
from costmodel.training.bands import level_deviation, shape_deviation
from costmodel.training.constants import default_constants
from costmodel.training.score import LONGER, even_step_seconds
from costmodel.training.step_time import compose
from topology.base.arrays import Vector

LEVEL = "level"
ROUNDS = 25
"""Of expectation and maximisation; the last five move no spread by a hundredth of itself."""
FIRST = 0.3  # spread of every part that the first round starts from
FEWEST = 2  # runs of a publisher that can tell parts apart
FURTHEST_MOVE = 0.5
"""Of the logarithm of a factor in one round: a part that hides shows no slope until others are shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """Runs of one publisher on one engine by their place in the sample, and how far such are off."""

    rows: Vector
    level: float
    noise: Vector


def publishers_of(sample: Sample, off: Vector, results: Mapping[str, RunResult]) -> list[Publisher]:
    """Publishers with runs enough; `off` is log(measured / predicted without them)."""
    names = [f"{source} {stack}" for source, stack in zip(sample.source, sample.stack, strict=True)]
    groups, publishers = np.array(names), []
    for group in sorted(set(groups.tolist())):
        rows = np.flatnonzero((groups == group) & (np.abs(off) < FURTHEST))
        if len(rows) >= FEWEST:
            doubts = [results[name].doubts for name in sample.name[rows]]
            noise = np.array([shape_deviation(each) for each in doubts]) * len(rows) ** 0.25
            level = level_deviation(replace(doubts[0], host_bound=0.0))
            publishers.append(Publisher(rows=rows, level=level, noise=noise))
    return publishers


def log_steps(sample: Sample, factors: Vector) -> Vector:
    """Logarithms of all steps under these logarithms of the level and of every part, shape (parts, runs)."""
    level, *parts = np.exp(factors)
    environment = replace(sample.features.environment, level=level, **dict(zip(PARTS, parts, strict=True)))
    costs = compose(replace(sample.features, environment=environment), default_constants())
    return np.log(even_step_seconds(costs, sample.types, sample.recomputed))


def slopes(sample: Sample, factors: Vector) -> Vector:
    """How far every step follows the level and each part, shape (runs, parts)."""
    step, columns = math.log(LONGER), [np.ones(len(sample.measured))]
    for at in range(1, len(PARTS) + 1):
        moved = np.zeros((len(PARTS) + 1, 1))
        moved[at] = step
        columns.append((log_steps(sample, factors + moved) - log_steps(sample, factors - moved)) / (2 * step))
    return np.stack(columns, axis=1)


def part_spreads(sample: Sample, off: Vector, results: Mapping[str, RunResult]) -> dict[str, float]:
    """Spread of each part's factor over publishers, and that of the level over the level of their engine."""
    publishers = publishers_of(sample, off, results)
    factors = np.zeros((len(PARTS) + 1, len(sample.measured)))
    cold, spread = log_steps(sample, factors), np.array([1.0, *(FIRST for _ in PARTS)])
    for _ in range(ROUNDS):
        shares, left = slopes(sample, factors), off - (log_steps(sample, factors) - cold)
        squares = []
        for of in publishers:
            scale, now = np.array([of.level, *(1.0 for _ in PARTS)]), factors[:, of.rows[0]]
            own = shares[of.rows] * (scale * spread) / of.noise[:, None]
            inverse = np.linalg.inv(np.eye(len(spread)) + own.T @ own)
            remaining = (scale * spread)[:, None] * inverse * (scale * spread)
            wanted = (left[of.rows] + shares[of.rows] @ now) / of.noise**2
            moved = remaining @ (shares[of.rows].T @ wanted) - now
            factors[:, of.rows] = (now + np.clip(moved, -FURTHEST_MOVE, FURTHEST_MOVE))[:, None]
            squares.append((factors[:, of.rows[0]] ** 2 + np.diag(remaining)) / scale**2)
        spread = np.sqrt(np.mean(squares, axis=0))
    return dict(zip((LEVEL, *PARTS), spread.tolist(), strict=True))


def fit_parts(
    path: str, results: Sequence[RunResult], kept: Mapping[str, Mapping[str, str]]
) -> dict[str, float]:
    """The spreads of a table of runs, each predicted without its vendor as the cross-validation keeps it."""
    sample = load_sample(path)
    seconds = [float(kept[name]["held_out_vendors_s"]) for name in sample.name]
    off = np.log(sample.measured / np.array(seconds))
    return part_spreads(sample, off, {result.name: result for result in results})


if __name__ == "__main__":
    from fit_bands import kept_columns

    from costmodel.accuracy.training import predict_rows
    from costmodel.accuracy.training_runs import read_rows
    from costmodel.kernels.tables import load_calibration

    predicted = predict_rows(read_rows(sys.argv[1]), load_calibration())
    for name, value in fit_parts(sys.argv[1], predicted, kept_columns()).items():
        print(f"{name} = {value:.3f}")
