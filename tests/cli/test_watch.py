"""`plan watch` from the command line: a folder of `plan run`, logs with a plan, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest

from app.cli import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a planned job, a step takes some nine seconds: five steps, two of them again."""
    made = tmp_path_factory.mktemp("run")
    words = ["--model", "llama-3.2-1b", "--gpus", "8", "--tokens", "1B", "--top", "1", "--json"]
    assert run([*words, "-o", str(made / "plan.json")]) == 0
    lines = [
        {"step": n, "step_time_s": 9.0, "at_s": 1e9 + 9 * i} for i, n in enumerate((1, 2, 3, 2, 3, 4, 5))
    ]
    (made / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return made


def test_a_folder_is_watched_with_its_own_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In words, and as JSON: four new steps in the time of six."""
    assert run(["watch", str(folder)]) == 0
    assert "useful so far  66.7 % of 54 s" in capsys.readouterr().out
    assert run(["watch", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["restarts"], found["repeated_steps"]) == (5, 1, 2)
    assert found["useful_share"] == pytest.approx(4 / 6)
    assert found["days_left"]["p10"] <= found["days_left"]["p90"]


def test_a_run_that_was_told_its_steps_says_when_it_is_finished(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its settings: five of ten thousand steps are done, whatever tokens its plan was asked for, if any."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    settings = {"folder": str(tmp_path), "plan_file": "plan.json", "steps": 10_000}
    (tmp_path / "run.json").write_text(json.dumps(settings), encoding="utf-8")
    for tokens in ((), ("--tokens", "1B")):
        words = ["--model", "llama-3.2-1b", "--gpus", "8", *tokens, "--top", "1", "--json"]
        assert run([*words, "-o", str(tmp_path / "plan.json")]) == 0
        assert run(["watch", str(tmp_path), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["step"], found["steps"]) == (5, 10_000)
        assert found["days_left"]["p50"] > 9_995 * 9.0 / 86_400


def test_a_log_needs_a_plan(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log does not say what was planned; three lines say how to."""
    log = tmp_path / "train.log"
    log.write_text(" [2026-01-02 03:04:05] iteration 7/ 9 | elapsed time per iteration (ms): 2000.0 |\n")
    assert run(["watch", str(log)]) == 2
    assert "help:  add --plan PLAN.json" in capsys.readouterr().err
    assert run(["watch", str(log), "--plan", str(folder / "plan.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 7


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ["iteration 7/ 9 | elapsed time per iteration (ms): 9000.0 | global batch size: 77 |"],
            "its batch is 77",
        ),
        (["iteration 7/ 500000 | elapsed time per iteration (ms): 9000.0 |"], "it has 500,000 steps"),
        (
            ["step 7 | epoch 0 | loss 1.0 | mem 70 GiB | tps 90000.0(9000000.0/gpu) |"],
            "TFLOP/s per GPU, and a",
        ),
    ],
)
def test_a_log_of_another_run_is_called_that(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], words: str
) -> None:
    """First of all, with what differs and without a finish; the JSON has none either."""
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines), encoding="utf-8")
    asked = ["watch", str(log), "--plan", str(folder / "plan.json")]
    assert run(asked) == 0
    told = capsys.readouterr().out
    assert told.startswith("not this plan's run: ")
    assert words in " ".join(told.split())
    assert "days left" not in told
    assert run([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["days_left"] is None
    assert any(words in one for one in found["differs"])


def test_a_log_without_a_step_is_told_which_forms_are_known(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not that it is some other format."""
    log = tmp_path / "train.log"
    log.write_text("[rank0]: hello\n", encoding="utf-8")
    assert run(["watch", str(log), "--plan", str(folder / "plan.json")]) == 2
    said = capsys.readouterr().err
    assert "known forms are those of plan run, " in said
    assert "torchtitan" in said


def test_what_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that does not exist is not a question about its plan."""
    assert run(["watch", "/nonexistent/run"]) == 2
    assert "there is no '/nonexistent/run'" in capsys.readouterr().err


def test_saves_and_a_scheduler_are_read_beside_the_steps(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder's own file of checkpoints, and Slurm's accounting by name; another file is refused."""
    (folder / "saves.jsonl").write_text('{"step": 3, "held_s": 0.5, "at_s": 1e9}\n', encoding="utf-8")
    events = tmp_path / "sacct.txt"
    events.write_text("JobID|State|Start|End\n7|NODE_FAIL|2026-01-01T00:00:00|2026-01-01T00:10:00\n")
    assert run(["watch", str(folder), "--events", str(events)]) == 0
    told = capsys.readouterr().out
    assert "holds steps up for 500 ms" in told
    assert "interruptions" in told
    assert "a node failed 1" in told
    assert run(["watch", str(folder), "--events", str(folder / "metrics.jsonl")]) == 2
    assert "is no list of events" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("step", "told", "absent"),
    [
        (5, "days left, 234 steps of 9 s: its band is less than one of them", "80 % band"),
        (239, "step 239 of 239 · finished", "days left"),
    ],
)
def test_a_finish_without_doubt_says_what_a_step_is(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], step: int, told: str, absent: str
) -> None:
    """A short run has a band narrower than a step; one at its end has nothing left."""
    line = {"step": step, "step_time_s": 9.0, "at_s": 1e9}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(line)}\n", encoding="utf-8")
    shutil.copy(folder / "plan.json", tmp_path)
    assert run(["watch", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert told in out
    assert absent not in out
