"""How long predicting published runs takes: `python -m pytest -n 0 benchmarks/bench_accuracy.py`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.accuracy.training import predict_rows  # noqa: E402 - the checkout is not installed
from costmodel.accuracy.training_runs import shipped_runs  # noqa: E402
from costmodel.kernels.tables import load_calibration  # noqa: E402


def test_predict_the_published_runs(benchmark):
    """Packaged runs through reading, kernels, composition and bands."""
    rows, cal = shipped_runs(), load_calibration()
    predict_rows(rows, cal)
    results = benchmark(predict_rows, rows, cal)
    assert {result.status for result in results} == {"ok"}
