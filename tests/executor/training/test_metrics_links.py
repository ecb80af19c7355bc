"""What a run says reaches no file but its own, whatever other names somebody has given its files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from executor.training.evaluation import Evaluation
from executor.training.metrics import Reporter, StepMetrics
from executor.training.settings import EVALUATIONS_FILE, METRICS_FILE, SAVES_FILE
from topology.base.errors import InputError
from topology.base.files import json_rows

FILES = (METRICS_FILE, EVALUATIONS_FILE, SAVES_FILE)
STEP = StepMetrics(
    step=1, loss=2.0, gradient_norm=1.0, learning_rate=1e-3, step_time_s=0.1, predicted_step_time_s=0.1,
    tokens_per_s=10.0, mfu=0.1, peak_memory_bytes=0.0, samples=8,
)  # fmt: skip


def report(folder: Path) -> None:
    """A step, an evaluation and a checkpoint."""
    reporter = Reporter(folder, 2, compared=True, wandb=False)
    reporter.step(STEP)
    reporter.evaluation(Evaluation(step=1, loss=2.0, samples=8, took_s=0.1))
    reporter.saved(1, 0.1)
    reporter.close()


def test_a_hard_link_is_not_written_through(tmp_path: Path) -> None:
    """Its lines stay in the run's file, which goes on with its own bytes; the other name keeps what it had."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in FILES:
        (tmp_path / name).write_text('{"step": 0}\n')
        (folder / name).hardlink_to(tmp_path / name)
    report(folder)
    for name in FILES:
        assert (tmp_path / name).read_text() == '{"step": 0}\n', name
        assert [row["step"] for row in json_rows(folder / name)] == [0, 1], name


@pytest.mark.parametrize("name", FILES)
def test_a_soft_link_is_not_followed(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is added where it leads to: without metrics no run begins, of other lines there is a warning."""
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / name).write_text("kept\n")
    (folder / name).symlink_to(tmp_path / name)
    if name == METRICS_FILE:
        with pytest.raises(InputError, match="is a link"):
            report(folder)
    else:
        report(folder)
        assert f"{folder / name} is a link" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "kept\n"
