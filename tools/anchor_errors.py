"""What a few measured runs of an unseen publisher are worth: errors of its other runs, cold and anchored.

    python tools/anchor_errors.py ../shared/data/training_runs_v2.csv    # after leave_out.py

Every publisher's runs of an engine are predicted by constants fitted without its vendor on that engine.
Random ones of them anchor the others: by a level alone, and by the level and the parts of a step that these
runs tell apart (`costmodel.accuracy.anchor`). `write_accuracy_page.py` writes the table.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from fit_parts import Publisher, log_steps, publishers_of, slopes
from fit_sample import Sample, load_sample

from costmodel.accuracy.anchor import PASSES, MeasuredStep, anchored, fit_anchor, stack_level
from costmodel.accuracy.training import RunResult
from costmodel.kernels.level import PARTS, StackLevel
from costmodel.training.bands import QUANTILE_80, time_deviation
from topology.base.arrays import Vector

COUNTS = (1, 2, 3, 5)
DRAWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchored:
    """Other runs of publishers of which some were drawn: absolute errors, and which band holds, by way."""

    cold: Vector
    by_level: Vector
    by_part: Vector
    held: Vector


def anchored_runs(
    sample: Sample, off: Vector, results: Mapping[str, RunResult], count: int, draws: int = DRAWS
) -> Anchored:
    """All draws of so many runs of every publisher that has more.

    Args:
        sample: Measured runs.
        off: log(measured / predicted without their vendor).
        results: Predictions of the same runs, for what makes each less sure.
        count: Runs that are drawn of each publisher.
        draws: How often.
    """
    chance = np.random.default_rng(0)
    large = [each for each in publishers_of(sample, off, results) if len(each.rows) > count]
    errors: list[Vector] = []
    for _ in range(draws):
        drawn = [chance.choice(each.rows, count, replace=False) for each in large]
        errors.append(_errors(sample, off, results, large, drawn))
    cold, by_level, by_part, held = np.concatenate(errors, axis=1)
    return Anchored(cold=cold, by_level=by_level, by_part=by_part, held=held)


def _errors(
    sample: Sample,
    off: Vector,
    results: Mapping[str, RunResult],
    publishers: list[Publisher],
    drawn: list[Vector],
) -> Vector:
    """Errors of the runs that were not drawn: cold, by a level, by parts; and 1 where the last band holds."""
    factors = np.zeros((len(PARTS) + 1, len(sample.measured)))
    cold, levels, shares = log_steps(sample, factors), [], np.zeros((len(sample.measured), len(PARTS)))

    def fitted(rows: Vector, left: Vector, *, by_part: bool) -> StackLevel:
        steps = [
            MeasuredStep(
                float(left[row]), results[sample.name[row]].doubts, tuple(shares[row]) if by_part else ()
            )
            for row in rows
        ]
        return stack_level("", steps)

    alone = [fitted(rows, off, by_part=False) for rows in drawn]
    for _ in range(PASSES + 1):
        slope = slopes(sample, factors)
        shares = slope[:, 1:]
        left = off - (log_steps(sample, factors) - cold) + (slope * factors.T).sum(axis=1)
        levels = [fitted(rows, left, by_part=True) for rows in drawn]
        for of, level in zip(publishers, levels, strict=True):
            factors[:, of.rows] = np.log([level.level, *level.parts.values()])[:, None]
    last = off - (log_steps(sample, factors) - cold)
    columns = []
    for of, rows, by_level, by_part in zip(publishers, drawn, alone, levels, strict=True):
        for row in np.setdiff1d(of.rows, rows):
            deviation = time_deviation(
                results[sample.name[row]].doubts, by_part.deviation_of(shares[row].tolist())
            )
            ends = (off[row], off[row] - np.log(by_level.level), last[row])
            columns.append((*np.abs(np.expm1(np.negative(ends))), abs(last[row]) <= QUANTILE_80 * deviation))
    return np.array(columns, dtype=float).T


def dense_sample(path: str, kept: Mapping[str, Mapping[str, str]]) -> tuple[Sample, Vector]:
    """Dense runs but vTrain's single nodes, of a table, and how far they are off without their vendor."""
    sample = load_sample(path)
    dense = sample.take(np.flatnonzero(sample.dense & (sample.source != "vtrain_single_node")))
    seconds = [float(kept[name]["held_out_vendors_s"]) for name in dense.name]
    return dense, np.log(dense.measured / np.array(seconds))


def anchoring_table(
    path: str, results: Mapping[str, RunResult], kept: Mapping[str, Mapping[str, str]]
) -> str:
    """Cold and anchored errors side by side, by how many runs were drawn."""
    sample, off = dense_sample(path, kept)
    lines = ["| runs of the source | cold | level alone | level and parts | in band |", "|---:" * 5 + "|"]
    for count in COUNTS:
        runs = anchored_runs(sample, off, results, count)
        ways = (runs.cold, runs.by_level, runs.by_part)
        cells = (
            f"{100 * np.median(way):.1f} / {100 * way.mean():.1f} / {100 * np.quantile(way, 0.9):.1f}"
            for way in ways
        )
        lines.append(f"| {count} | {' | '.join(cells)} | {100 * runs.held.mean():.0f} |")
    return "\n".join(lines)


STRANGERS_RUNS = 3
"""Runs of a publication that anchor its others in the table by publication."""


def stranger_errors(timed: Sequence[RunResult], count: int) -> dict[str, Vector]:
    """Absolute errors of other runs of every publication, cold and anchored by so many, shape (runs, 2).

    Runs of one publication on one profile anchor each other; parts are followed as in the cold step.
    """
    chance, errors = np.random.default_rng(0), defaultdict(list)
    of_profile: dict[tuple[str, str], list[RunResult]] = defaultdict(list)
    for result in timed:
        of_profile[result.group["source"], result.stack].append(result)
    for (source, _), results in of_profile.items():
        for _ in range(DRAWS if len(results) > count else 0):
            drawn = chance.choice(len(results), count, replace=False).tolist()
            anchor = fit_anchor([results[at] for at in drawn])
            for at in set(range(len(results))) - set(drawn):
                after = anchored(results[at], anchor).error or 0.0
                errors[source].append((abs(results[at].error or 0.0), abs(after)))
    return {source: np.array(pairs) for source, pairs in sorted(errors.items())}


def strangers_table(timed: Sequence[RunResult]) -> str:
    """Cold and anchored errors of publishers that nothing was fitted to, side by side."""
    lines = ["| publication | runs that anchor | cold | anchored |", "|---" + "|---:" * 3 + "|"]
    errors = {count: stranger_errors(timed, count) for count in COUNTS}
    shown = errors[STRANGERS_RUNS].items()
    lines += [_cold_and_anchored(name, STRANGERS_RUNS, pairs) for name, pairs in shown]
    for count, by_source in errors.items():
        lines.append(_cold_and_anchored("**all**", count, np.concatenate(list(by_source.values()))))
    return "\n".join(lines)


def _cold_and_anchored(name: str, count: int, pairs: Vector) -> str:
    cells = (
        f"{100 * np.median(way):.1f} / {100 * way.mean():.1f} / {100 * np.quantile(way, 0.9):.1f}"
        for way in pairs.T
    )
    return f"| {name} | {count} | {' | '.join(cells)} |"


if __name__ == "__main__":
    from fit_bands import kept_columns
    from unseen_publishers import unseen_runs

    from costmodel.accuracy.training import predict_rows
    from costmodel.accuracy.training_runs import read_rows
    from costmodel.kernels.tables import load_calibration

    predicted = predict_rows(read_rows(sys.argv[1]), load_calibration())
    print(anchoring_table(sys.argv[1], {result.name: result for result in predicted}, kept_columns()))
    print(strangers_table(unseen_runs(sys.argv[1]).timed))
