"""Several runs: measured over predicted, and none is judged by a plan for something else."""

import json
import os
from pathlib import Path

import pytest

from app.figures.executor.runs import runs_over_time
from app.figures.style import alt_text
from app.store import runs
from app.store.runs import RunSummary, run_summary, runs_in
from topology.base.units import GIB

LINE = {
    "loss": 3.0, "predicted_step_time_s": 2.0, "tokens_per_s": 1000.0, "mfu": 0.4, "peak_memory_bytes": 60 * GIB,
}  # fmt: skip


def a_run(folder: Path, name: str, step_s: float, written_s: float) -> Path:
    """A run of three steps, whose first is slow."""
    made = folder / name
    made.mkdir()
    lines = [{**LINE, "step": 1, "step_time_s": 9.0}]
    lines += [{**LINE, "step": number, "step_time_s": step_s} for number in (2, 3)]
    log = made / "metrics.jsonl"
    log.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    os.utime(log, (written_s, written_s))
    return made


def test_runs_are_told_in_the_order_they_were_written(tmp_path):
    """A run's own folder holds no runs; a folder of runs holds those with a log."""
    a_run(tmp_path, "zero", 2.0, 100.0)
    late = a_run(tmp_path, "late", 2.2, 300.0)
    a_run(tmp_path, "between", 2.1, 200.0)
    (tmp_path / "no-run").mkdir()
    assert [path.name for path in runs_in(tmp_path)] == ["zero", "between", "late"]
    assert runs_in(late) == []


def test_the_median_step_is_compared_and_the_picture_says_by_how_much(tmp_path):
    """Ratios are measured over predicted; the reading names the latest run and the furthest."""
    found = [run_summary(a_run(tmp_path, name, step_s, 100.0)) for name, step_s in (("a", 3.0), ("b", 2.2))]
    assert [run.step_s for run in found] == [3.0, 2.2]
    (step,) = runs_over_time(found).data  # no memory was planned: no name without a mark in the legend
    assert (step.name, list(step.y)) == ("step time", pytest.approx([1.5, 1.1]))
    assert "b, is +10 % to its plan; furthest off is a with +50 %" in alt_text(runs_over_time(found))


def test_a_run_on_another_device_is_never_compared(tmp_path, monkeypatch):
    """It keeps its own numbers, has no predicted ones, and no mark in the picture."""
    monkeypatch.setattr(
        runs, "unlike_device", lambda folder: "It runs on cpu." if folder.name == "cpu" else ""
    )
    found = [run_summary(a_run(tmp_path, name, 2.0, 100.0)) for name in ("cpu", "gpu")]
    assert (found[0].predicted_step_s, found[0].predicted_memory_bytes) == (None, None)
    assert found[0].step_s == 2.0
    picture = runs_over_time(found)
    assert list(picture.data[0].x) == ["gpu"]
    assert "1 of 2 are not compared" in alt_text(picture)


def test_memory_is_a_term_of_its_own():
    """Peak memory over what the plan holds."""
    run = RunSummary(
        name="a", state="done", steps=3, repeated_steps=0, step_s=2.0, memory_bytes=66 * GIB, predicted_step_s=2.0,
        predicted_memory_bytes=60 * GIB,
    )  # fmt: skip
    assert list(runs_over_time([run]).data[1].y) == pytest.approx([1.1])


def test_the_page_lists_the_runs_and_follows_the_latest(open_page, monkeypatch, tmp_path):
    """A table with a row for each, and one that the link chooses."""
    a_run(tmp_path, "first", 2.0, 100.0)
    a_run(tmp_path, "second", 3.0, 200.0)
    from app.actions.dash import RUN_FOLDER

    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    page = open_page("executor")
    assert list(page.dataframe[0].value["run"]) == ["second", "first"]
    assert list(page.dataframe[0].value["off"]) == ["+50 %", "0 %"]
    assert page.selectbox(key="run_name").value == "second"
    assert open_page("executor", run_name="first").selectbox(key="run_name").value == "first"
    assert "error:" in open_page("executor", run_name="third").code[0].value
