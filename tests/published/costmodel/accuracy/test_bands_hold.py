"""Bands hold 80 % of runs that were left out, and few runs that fitted are said to run out of memory.

Bands are judged on groups that fitted neither the constants nor the terms; both are stored by
`tools/renew_evidence.py`, and read here from the table that they came from.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from costmodel.accuracy.training import RunResult, predict_rows
from costmodel.accuracy.training_runs import read_rows, shipped_runs
from costmodel.evidence.table import RUNS, shipped_table
from costmodel.kernels.tables import load_calibration
from costmodel.runs.cells import Row
from costmodel.training.bands import deviations

TOOL = Path(__file__).parents[4] / "tools" / "fit_bands.py"
MOST_FALSE = 0.05


def fit_bands() -> ModuleType:
    """The tool, as a module."""
    spec = importlib.util.spec_from_file_location(TOOL.stem, TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[TOOL.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> list[RunResult]:
    """The second data set, predicted."""
    folder: Path = request.getfixturevalue("shared_dir")
    return predict_rows(read_rows(folder / "training_runs_v2.csv"), load_calibration())


@pytest.mark.slow
@pytest.mark.parametrize("way", ["vendors", "generations", "models", "layouts"])
def test_four_in_five_runs_left_out_are_inside_their_band(results: list[RunResult], way: str) -> None:
    """74 to 88 % in every way of leaving out, sources weighing in by the root of their rows."""
    tool = fit_bands()
    residuals = tool.time_residuals(results)
    mine = [r for r in residuals if r.way == way]
    assert 0.74 <= tool.coverage(mine, tool.nested(residuals, ways=(way,))) <= 0.88


@pytest.fixture(scope="module")
def beside(request: pytest.FixtureRequest) -> list[tuple[Row, RunResult]]:
    """The tables of peaks beside it, predicted."""
    folder: Path = request.getfixturevalue("shared_dir")
    found: list[tuple[Row, RunResult]] = fit_bands().peak_tables(folder / "training_runs_v2.csv")
    return found


def test_the_stored_counts_are_those_of_the_table(
    results: list[RunResult], beside: list[tuple[Row, RunResult]]
) -> None:
    """Every run that can be predicted is evidence once, peaks of engines that it has none of beside it."""
    tool = fit_bands()
    assert tool.table_of(results, tool.peaks_beside(beside, results)) == shipped_table()


@pytest.mark.parametrize("experts", [False, True])
def test_the_stored_spreads_of_peaks_are_those_of_rows_as_printed(
    results: list[RunResult], beside: list[tuple[Row, RunResult]], *, experts: bool
) -> None:
    """None is held by hand, and no row judges whose script was read when its peak was known."""
    tool = fit_bands()
    judges = [*results, *tool.peaks_beside(tool.as_printed(beside), results)]
    assert len(tool.as_printed(beside)) < len(beside)
    stored = deviations()["memory"]["experts" if experts else "engines"]
    for engine, spread in tool.memory_spreads(judges, experts=experts).items():
        assert stored[engine] == pytest.approx(list(spread.deviations), abs=5e-4)


@pytest.mark.slow
def test_another_precision_moves_a_peak_as_predicted(
    results: list[RunResult], beside: list[tuple[Row, RunResult]], shared_dir: Path
) -> None:
    """Pairs of one job in two precisions say so in four publications of three engines; the worst is stored."""
    tool, path = fit_bands(), shared_dir / "training_runs_v2.csv"
    priced = [*zip(read_rows(path), results, strict=True), *beside]
    stored = deviations()["memory"]["precision"]
    assert tool.precision_difference(priced) == pytest.approx(stored, abs=5e-4)
    engines = {
        r.doubts.engine for row, r in priced if r.memory_error is not None and row["precision"] == "fp8"
    }
    assert len(engines) >= 2


def test_few_runs_that_fitted_are_said_not_to(results: list[RunResult]) -> None:
    """False alarms, counted over all runs that fitted."""
    fitted = [r for r in results if r.status == "ok" and not r.out_of_memory]
    assert len(fitted) > 1900
    assert sum(r.flagged for r in fitted) <= MOST_FALSE * len(fitted)


def test_no_packaged_run_is_of_an_engine_without_evidence() -> None:
    """What the package can show was counted: its engine on its generation is never unmeasured."""
    table = shipped_table()
    for r in predict_rows(shipped_runs(), load_calibration()):
        assert r.footing is not None
        assert table[r.footing.engine][r.footing.generation][RUNS] > 0, r.name
