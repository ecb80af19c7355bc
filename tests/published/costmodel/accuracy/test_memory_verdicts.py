"""Verdicts of memory against ladders, rankings and fine-tuning runs that fitted or did not, each publisher as one.

Nothing of the cost model is fitted on these tables. Their chance of OOM was 0.095 off (Brier, publishers weigh as
one) and 60 of 713 runs that ran were expected to fail before torch's own moments of memory were told apart.
"""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import read_rows
from costmodel.kernels.tables import load_calibration

TABLES = ("ladders", "rankings", "finetune_runs")
FALSE_ALARMS, TRUE_ALARMS, BRIER = 0.06, 0.85, 0.055
MOST_OFF = {"ladders": 0.11, "finetune_runs": 0.12}
"""Median over publishers of each one's median error of memory."""
FEWEST_PEAKS = 2
FEWEST_OF_BIN = 40


@dataclass(frozen=True)
class Verdict:
    """One run: who published it, its chance of OOM, whether it had one, and how far its peak is off."""

    table: str
    source: str
    chance: float
    failed: bool
    off: float | None


@pytest.fixture(scope="module")
def verdicts(shared_dir: Path) -> list[Verdict]:
    """Every run that says whether it fitted."""
    result = []
    for table in TABLES:
        rows = read_rows(shared_dir / f"{table}.csv")
        for row, run in zip(rows, predict_rows(rows, load_calibration()), strict=True):
            says = run.out_of_memory or any(row.get(x) for x in ("step_time_s", "peak_memory_gib", "fits"))
            if run.status != "ok" or run.out_of_memory_chance is None or not says:
                continue
            seen, expected = run.measured_peak_memory_bytes, run.predicted_peak_memory_bytes
            off = abs(expected / seen - 1) if seen and expected else None
            result.append(Verdict(table, row["source"], run.out_of_memory_chance, run.out_of_memory, off))
    return result


def test_few_runs_that_ran_are_expected_to_fail_and_most_that_failed_are(verdicts: list[Verdict]) -> None:
    """At a chance above one half."""
    ran, failed = ([x.chance > 0.5 for x in verdicts if x.failed is failed] for failed in (False, True))
    assert len(ran) > 600
    assert len(failed) > 100
    assert np.mean(ran) <= FALSE_ALARMS
    assert np.mean(failed) >= TRUE_ALARMS


def test_a_chance_is_about_how_often_runs_fail(verdicts: list[Verdict]) -> None:
    """The mean square of chance less outcome, every publisher of a table weighing as one."""
    counts = Counter((x.table, x.source) for x in verdicts)
    weights = np.array([1 / counts[x.table, x.source] for x in verdicts])
    squares = np.array([(x.chance - x.failed) ** 2 for x in verdicts])
    assert np.average(squares, weights=weights) <= BRIER


def bins_of_ladders(verdicts: list[Verdict]) -> list[tuple[float, int, int, bool]]:
    """By rising chance, of 40 rungs or more: mean chance, rungs, failures, and whether they are in the interval.

    The interval is the 90 % binomial one about the mean chance.
    """
    rungs = sorted((x.chance, x.failed) for x in verdicts if x.table == "ladders")
    result = []
    for part in np.array_split(np.array(rungs), len(rungs) // FEWEST_OF_BIN):
        chance, number, failures = part[:, 0].mean(), len(part), int(part[:, 1].sum())
        exactly = [math.comb(number, k) * chance**k * (1 - chance) ** (number - k) for k in range(number + 1)]
        below, up_to = sum(exactly[:failures]), sum(exactly[: failures + 1])
        result.append((chance, number, failures, up_to > 0.05 and below < 0.95))
    return result


def test_rungs_of_ladders_fail_as_often_as_their_chance_says(verdicts: list[Verdict]) -> None:
    """Every bin holds the number of failures that its mean chance says."""
    assert all(inside for *_, inside in bins_of_ladders(verdicts))


def test_bins_of_ladders_rise_with_their_chance(verdicts: list[Verdict]) -> None:
    """No rung of the three leanest bins fails, and more fail in each bin than in the one before."""
    bins = bins_of_ladders(verdicts)
    shares = [failures / number for _, number, failures, _ in bins]
    assert len(bins) >= 8
    assert shares == sorted(shares) or shares[-2] >= shares[-1] > 0.9
    assert sum(shares[:3]) == 0


@pytest.mark.parametrize("table", sorted(MOST_OFF))
def test_peaks_of_publishers_are_met(verdicts: list[Verdict], table: str) -> None:
    """The publisher in the middle."""
    sources = {x.source for x in verdicts if x.table == table}
    errors = [
        [x.off for x in verdicts if x.table == table and x.source == name and x.off is not None]
        for name in sources
    ]
    medians = [np.median(of_one) for of_one in errors if len(of_one) >= FEWEST_PEAKS]
    assert np.median(medians) <= MOST_OFF[table]
