"""Levels of a server are found again from what a client would measure of it."""

import math
from dataclasses import replace

import pytest

from costmodel.accuracy.serving_predictions import predict
from costmodel.accuracy.serving_runs import ServingRun, read_serving_run
from costmodel.calibration.serving_levels import fit_serving_levels
from costmodel.kernels.tables import load_calibration
from costmodel.serving.engine import serving_stack
from costmodel.serving.levels import ServingLevel, at_levels
from tests.unit.costmodel.accuracy.test_serving_runs import ROW
from topology.base.errors import InputError
from topology.builders import default_cluster

CAL = load_calibration()
FABRIC = default_cluster("h100-sxm", 8).hierarchy


def measured(concurrency: int, *, host: float, kernel: float) -> ServingRun:
    """What a server of these levels would show."""
    run = read_serving_run({**ROW, "concurrency": str(concurrency), "lowest_length_share": "0.8"}, 1)
    found = predict(CAL, run, FABRIC, at_levels(serving_stack("trtllm"), host=host, kernel=kernel))
    return replace(run, ttft_s=found.ttft_s, tpot_s=found.tpot_s)


@pytest.mark.parametrize(("host", "kernel"), [(1.0, 1.0), (2.5, 1.15), (0.6, 0.9)])
def test_levels_are_found_again(host: float, kernel: float) -> None:
    """From three loads: drawn towards one by less than 30 % of a level's logarithm, the errors small."""
    runs = [measured(many, host=host, kernel=kernel) for many in (1, 4, 16)]
    fitted = fit_serving_levels(CAL, runs, FABRIC)
    for level, true in ((fitted.level.host, host), (fitted.level.kernel, kernel)):
        assert math.log(level) == pytest.approx(0.85 * math.log(true), abs=0.15 * abs(math.log(true)) + 0.01)
    assert fitted.level.runs == 3
    for run, after in zip(runs, fitted.after, strict=True):
        assert after.tpot_s == pytest.approx(run.tpot_s, rel=0.03)


def test_a_benchmark_of_another_server_is_refused() -> None:
    """No level makes tokens five times as slow."""
    run = measured(8, host=1.0, kernel=1.0)
    with pytest.raises(InputError, match="another server"):
        fit_serving_levels(CAL, [replace(run, tpot_s=5 * run.tpot_s)], FABRIC)


def test_levels_that_no_server_has_are_refused() -> None:
    """Kernels three and a half times as slow are those of another GPU, and no host takes no time."""
    for host, kernel in ((1.0, 3.5), (1.0, 0.3), (0.01, 1.0), (float("nan"), 1.0)):
        with pytest.raises(InputError, match="level of vllm on h100-sxm is out of reach"):
            ServingLevel(engine="vllm", gpu="h100-sxm", host=host, kernel=kernel, runs=1)


def test_more_benchmarks_draw_the_levels_further_from_the_shipped_profile() -> None:
    """One of a slow host says less than three."""
    runs = [measured(many, host=2.5, kernel=1.15) for many in (1, 4, 8)]
    one, three = (fit_serving_levels(CAL, some, FABRIC).level.host for some in (runs[:1], runs))
    assert 1.0 < one < three < 2.6
