"""No group of published runs may be worse than at the last release by more than the stated margin.

The figures of that release are a small committed table, which `tools/write_accuracy_page.py --release` alone
rewrites: what changes the model since is compared with what users have, never with itself.
"""

from pathlib import Path

from costmodel.accuracy.snapshot import read_snapshot, snapshot_of, worse
from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import read_rows, shipped_runs
from costmodel.kernels.tables import load_calibration


def test_no_group_of_the_packaged_runs_is_worse_than_at_the_release() -> None:
    """Median, mean and p90 of step time, median of memory, and what is unsupported."""
    now = snapshot_of(predict_rows(shipped_runs(), load_calibration()))
    assert worse(read_snapshot()["published"], now) == []


def test_no_group_of_the_second_data_set_is_worse_than_at_the_release(shared_dir: Path) -> None:
    """The same over all 1,973 rows."""
    now = snapshot_of(predict_rows(read_rows(shared_dir / "training_runs_v2.csv"), load_calibration()))
    assert worse(read_snapshot()["full"], now) == []


def test_the_gate_closes_on_what_it_should() -> None:
    """A larger error, a new unsupported row and a vanished group are each found; an improvement is not."""
    before = {"a": {"rows": 5.0, "unsupported": 0.0, "median_error": 0.03}}
    assert worse(before, {"a": {**before["a"], "median_error": 0.04}}) == [
        "a: median_error 0.0300 became 0.0400"
    ]
    assert worse(before, {"a": {**before["a"], "unsupported": 1.0}}) == ["a: 1 rows are unsupported"]
    assert worse(before, {}) == ["a is gone"]
    assert worse(before, {"a": {**before["a"], "median_error": 0.01}}) == []
