"""Processes die: the launcher restarts them, shrinks the run when ranks are gone for good, and stops it in order."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from app.store.run_log import read_steps
from app.store.run_metrics import GrowingLines
from costmodel.layout import ParallelLayout
from executor.launch import agent
from executor.launch.agent import Team, has_started, run_team
from executor.launch.environment import environment_of_ranks
from executor.launch.nodes import Nodes, loopback
from executor.launch.rank_source import RankSource
from executor.launch.supervise import Supervision, supervise, with_plan, write_run
from executor.training.manifest import steps_on_disk
from executor.training.settings import (
    CHECKPOINTS,
    METRICS_FILE,
    RunSettings,
    RunStatus,
    read_status,
    write_json,
)
from executor.training.worker import RANKS_FOLDER
from planner.plan import Plan
from tests.counts import cases_of_run
from tests.executor.conftest import TINY, make_plan
from topology.base.errors import InputError
from topology.base.files import json_rows

LAYOUT = ParallelLayout(dp=2, zero_stage=1)
STEPS = 12


@pytest.fixture
def plan_of() -> Callable[..., Plan]:
    """Build a plan of a model of one layer."""
    return functools.partial(make_plan, spec=replace(TINY, num_layers=1))


def settings_in(folder: Path, *, steps: int = STEPS) -> RunSettings:
    """Settings of a short fp32 run on CPU ranks with frequent checkpoints."""
    base = RunSettings(
        folder="",
        plan_file="",
        steps=steps,
        device="cpu",
        precision="fp32",
        checkpoint_every=2,
        learning_rate=1e-2,
    )
    return with_plan(base, folder)


def reported(folder: Path) -> list[dict[str, float]]:
    """Every line of the metrics so far."""
    path = folder / METRICS_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kill(folder: Path, rank: int) -> None:
    """Kill −9 one rank."""
    os.kill(int((folder / RANKS_FOLDER / str(rank)).read_text()), signal.SIGKILL)


PATIENCE_S = 120.0


def when(condition: Callable[[], bool], action: Callable[[], None]) -> threading.Thread:
    """Act once, as soon as a condition holds; never if it does not within our patience."""

    def watch() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                return
            time.sleep(0.002)
        action()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def alone(max_restarts: int = 3, **fields: object) -> Supervision:
    """Supervision that never shrinks unless told how."""
    defaults: dict[str, object] = {"min_gpus": None, "replan": lambda *_: None, "say": lambda _: None}
    return Supervision(**(defaults | fields), max_restarts=max_restarts)  # type: ignore[arg-type]


@pytest.mark.clock
@pytest.mark.slow
def test_killed_rank_restarts_and_changes_nothing(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Kill −9 while a checkpoint is being written: same losses, every sample once."""
    plan, settings = plan_of(LAYOUT), settings_in(tmp_path)
    writing = tmp_path / CHECKPOINTS / ".writing-step-00000006"
    when(writing.exists, lambda: kill(tmp_path, 1))
    status = supervise(settings, plan, alone())
    rows = reported(tmp_path)
    first_again = next(i for i in range(1, len(rows)) if rows[i]["step"] <= rows[i - 1]["step"])
    before, after = rows[:first_again], rows[first_again:]
    assert (status.state, status.step) == ("finished", STEPS)
    assert after[0]["step"] in (5, 7)  # the checkpoint after step 4, or after 6 if it was complete by then
    assert [row["step"] for row in after] == list(range(int(after[0]["step"]), STEPS + 1))
    assert [row["samples"] for row in after] == [row["step"] * 8 for row in after]
    repeated = {row["step"]: row["loss"] for row in before} | {row["step"]: row["loss"] for row in after}
    again = {row["step"]: row["loss"] for row in before if row["step"] >= after[0]["step"]}
    assert again == pytest.approx({step: repeated[step] for step in again}, rel=1e-6)


@pytest.mark.clock
@pytest.mark.slow
def test_lost_rank_shrinks_the_run(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """A rank is gone for good: the run is planned again for what is left and continues from its checkpoint."""
    smaller, said = plan_of(ParallelLayout()), []
    asked: list[int] = []

    def replan(count: int, _lost: tuple[str, ...]) -> Plan:
        asked.append(count)
        return smaller

    when(lambda: len(reported(tmp_path)) >= 5, lambda: kill(tmp_path, 1))
    supervision = alone(max_restarts=0, min_gpus=1, replan=replan, say=said.append)
    status = supervise(settings_in(tmp_path), plan_of(LAYOUT), supervision)
    steps = [int(row["step"]) for row in reported(tmp_path)]
    assert (status.state, asked) == ("finished", [1])
    assert said == ["1 of 2 ranks are lost: continuing on 1"]
    assert list(dict.fromkeys(steps)) == list(range(1, STEPS + 1))
    assert [row["samples"] for row in reported(tmp_path)] == [8 * step for step in steps]


WAYS_TO_STOP: dict[str, tuple[signal.Signals, Callable[[int, int], None]]] = {
    "SIGTERM-to-the-launcher": (signal.SIGTERM, os.kill),
    "SIGUSR1-to-the-process-group": (signal.SIGUSR1, os.killpg),
    "ctrl-c-in-a-terminal": (signal.SIGINT, os.killpg),
}


@pytest.mark.clock
@pytest.mark.slow
@pytest.mark.parametrize(
    "way", cases_of_run(WAYS_TO_STOP, ["SIGUSR1-to-the-process-group", "ctrl-c-in-a-terminal"])
)
def test_a_signal_to_the_launcher_stops_in_order(
    way: str,
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
) -> None:
    """It reaches the ranks: a checkpoint is written, exit 0, and no traceback is printed."""
    number, send = WAYS_TO_STOP[way]
    plan, settings = estimated_plan_of(LAYOUT, num_layers=1), settings_in(tmp_path, steps=10_000)
    write_run(settings, plan)
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "app",
            "run",
            settings.plan_file,
            "--run-dir",
            str(tmp_path),
            "--device",
            "cpu",
            "--fp32",
            "--steps",
            "10000",
            "--checkpoint-every",
            "1000",
            "--json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    when(lambda: len(reported(tmp_path)) >= 2, lambda: send(launcher.pid, number)).join()
    document, messages = launcher.communicate(timeout=120)
    answer = json.loads(document)
    assert (launcher.returncode, answer["state"]) == (0, "stopped")
    assert "Traceback" not in messages
    assert steps_on_disk(tmp_path / CHECKPOINTS)[0] == answer["step"] >= 2


NEVER_READY = """
import os, pathlib, signal, sys, time
marks = pathlib.Path(sys.argv[-1]).parent / ".ranks"
marks.mkdir()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
(marks / "0").write_text(str(os.getpid()))
time.sleep(60)
"""


STOPPED_WHILE_IMPORTING = """import os, signal

class Freed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

Freed()  # an exception of a handler is printed here, and the import goes on
"""


def test_a_rank_that_is_stopped_while_it_imports_says_nothing(tmp_path: Path) -> None:
    """SIGTERM may come anywhere in seconds of imports; the rank goes, its mark too, and no traceback is left."""
    (tmp_path / "torch.py").write_text(STOPPED_WHILE_IMPORTING)
    settings = RunSettings(folder=str(tmp_path), plan_file="plan.json", steps=1)
    write_json(tmp_path / "run.json", settings)
    code = "import sys; from executor.training.worker import main; sys.exit(main([sys.argv[1]]))"
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}",
            tmp_path / "run.json",
        ],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"", b"")
    assert list((tmp_path / RANKS_FOLDER).iterdir()) == []


def team_of(folder: Path, worker: str, monkeypatch: pytest.MonkeyPatch, **fields: object) -> Team:
    """A team of two ranks that run a program of the test's."""
    (folder / "stand_in.py").write_text(worker)
    monkeypatch.setattr(agent, "WORKER", "stand_in")
    defaults: dict[str, object] = {
        "folder": folder,
        "run_file": folder / "run.json",
        "nodes": Nodes(),
        "num_local": 2,
        "environment": environment_of_ranks({**os.environ, "PYTHONPATH": str(folder)}, interface=loopback()),
        "meeting": folder,
        "lock": os.open(folder, os.O_RDONLY),
    }
    return Team(**(defaults | fields))  # type: ignore[arg-type]


def test_nohup_keeps_a_run_from_a_closed_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGHUP that is ignored already stops nothing."""
    worker = (
        f"import os, time; os.kill({os.getpid()}, {int(signal.SIGHUP)}); time.sleep(0.2); raise SystemExit(3)"
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ended = run_team(team_of(tmp_path, worker, monkeypatch, num_local=1, max_restarts=0))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ended == (3, None)


@pytest.mark.clock
def test_a_run_stopped_too_late_is_not_a_smaller_run(
    plan_of: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that the notice did not suffice are not lost for good: the run ends, with what would help."""
    (tmp_path / "never_ready.py").write_text(NEVER_READY)
    monkeypatch.setattr(agent, "WORKER", "never_ready")
    monkeypatch.setattr(RankSource, "rank", lambda *_: None)  # which would fork ranks of ours
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    marks = tmp_path / RANKS_FOLDER
    when((marks / "0").exists, lambda: os.kill(os.getpid(), signal.SIGTERM))
    supervision = alone(min_gpus=1, replan=lambda *_: pytest.fail("asked for a smaller plan"), notice_s=7)
    with pytest.raises(InputError, match="stopped by SIGTERM before it could write") as raised:
        supervise(settings_in(tmp_path), plan_of(LAYOUT), supervision)
    assert ("7 s" in raised.value.cause, "--notice" in raised.value.fix) == (True, True)


DEAF = """
import os, pathlib, signal, sys, time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
folder = pathlib.Path(sys.argv[1]).parent
(folder / f"{rank}-{attempt}").touch()
if (rank, attempt) == ("1", "0"):
    while not (folder / "deaf").exists():
        time.sleep(0.01)
    sys.exit(1)
if attempt == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / ".ranks").mkdir()
    (folder / ".ranks" / rank).touch()
    (folder / "deaf").touch()
    time.sleep(60)
"""


@pytest.mark.clock
def test_a_rank_that_hangs_does_not_hold_up_the_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One dies, the other is stuck in a collective and deaf: it is killed after the grace, and is not lost."""
    monkeypatch.setattr(agent, "GRACE_S", 1)
    assert run_team(team_of(tmp_path, DEAF, monkeypatch, max_restarts=1)) == (0, None)
    first, second = ((tmp_path / name).stat().st_mtime for name in ("deaf", "0-1"))
    assert 1 <= second - first < 20
    assert list((tmp_path / RANKS_FOLDER).iterdir()) == []


HIT_AGAIN = """
import os, pathlib, sys
folder, attempt = pathlib.Path(sys.argv[1]).parent, int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if os.environ["RANK"] == "0":
    step = min(attempt, 5)  # a new checkpoint by each of the first six attempts
    (folder / "checkpoints" / f"step-{step:08d}").mkdir(parents=True, exist_ok=True)
    (folder / f"started-{attempt}").touch()
(folder / f"attempt-{attempt}").touch()
sys.exit(1)
"""


def test_restarts_are_counted_from_the_last_new_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hits between which the run gets further are no reason to end it; those without are."""
    team = team_of(tmp_path, HIT_AGAIN, monkeypatch, num_local=1, max_restarts=2)
    assert run_team(team) == (1, None)
    assert len(list(tmp_path.glob("attempt-*"))) == 6 + 2  # which is what is left after the sixth


UNSTARTED = """
import os, pathlib, sys
folder, attempt = pathlib.Path(sys.argv[1]).parent, int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt in (2, 5):
    (folder / f"started-{attempt}").touch()
(folder / f"attempt-{attempt}").touch()
sys.exit(1)
"""


def test_attempts_that_never_trained_are_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three failed starts, twice, use up no restart of training; a third in a row ends the run."""
    team = team_of(tmp_path, UNSTARTED, monkeypatch, num_local=1, max_restarts=2)
    assert run_team(team) == (1, None)
    assert len(list(tmp_path.glob("attempt-*"))) == 6 + 3
    assert has_started(tmp_path)


def test_the_first_node_decides_on_another_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one, which may see another newest checkpoint, goes by its word."""
    fields = {"nodes": Nodes(count=2, rank=1), "num_local": 1, "max_restarts": 0}
    (tmp_path / "again-0").touch()
    (tmp_path / "enough-1").touch()
    team = team_of(tmp_path, "raise SystemExit(1)", monkeypatch, **fields)
    assert run_team(team) == (1, None)
    assert sorted(path.name for path in tmp_path.glob("failed-*")) == ["failed-0", "failed-1"]


STUBBORN = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = pathlib.Path(sys.argv[1]).parent / "deaf"
if os.environ["RANK"] == "0":
    deaf.touch()
else:
    while not deaf.exists():
        time.sleep(0.01)
    os.kill(LAUNCHER, signal.SIGTERM)
time.sleep(60)
"""


@pytest.mark.clock
def test_ranks_get_the_notice_less_what_the_launcher_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has not ended is killed two seconds before the scheduler would kill it, and not sooner."""
    worker = STUBBORN.replace("LAUNCHER", str(os.getpid()))
    ended = run_team(team_of(tmp_path, worker, monkeypatch, notice_s=5))
    assert ended == (-signal.SIGKILL, signal.SIGTERM)
    assert 3 <= time.time() - (tmp_path / "deaf").stat().st_mtime < 10


@pytest.mark.slow
def test_input_error_of_a_rank_reaches_the_user(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Ranks that meet a wrong token end the run with the three lines, not with their own reports."""
    plan = estimated_plan_of(LAYOUT, num_layers=1)
    np.save(tmp_path / "tokens.npy", np.full(1000, plan.request.model.vocab_size))
    settings = settings_in(tmp_path)
    write_run(settings, plan)
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "app",
            "run",
            settings.plan_file,
            "--run-dir",
            str(tmp_path),
            "--device",
            "cpu",
            "--data",
            str(tmp_path / "tokens.npy"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert finished.returncode == 2
    assert f"error: {tmp_path / 'tokens.npy'} has a token beyond the vocabulary" in finished.stderr
    assert read_status(tmp_path).state == "error"  # type: ignore[union-attr]


def test_a_torn_line_costs_no_later_start(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Power is lost in the middle of a line: the run goes on, its steps are whole, and what it measured is kept."""
    from app.actions.runs.training_run import keep_measured

    plan = plan_of(LAYOUT)
    supervise(settings_in(tmp_path, steps=8), plan, alone())
    path = tmp_path / METRICS_FILE
    path.write_bytes(path.read_bytes()[:-40])
    status = supervise(settings_in(tmp_path, steps=STEPS), plan, alone())
    assert (status.state, status.step) == ("finished", STEPS)
    whole = [row["step"] for row in json_rows(path)]
    assert whole == [*range(1, 8), *range(9, STEPS + 1)]
    assert [step.step for step in read_steps(tmp_path)] == whole
    lines = GrowingLines(path)
    lines.update()
    assert (lines.rows, lines.returns) == (len(whole), 0)
    keep_measured(settings_in(tmp_path), status)


def test_what_follows_training_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is wrong with a run's files once it has succeeded is told."""
    from app.actions.runs.training_run import keep_measured

    def fails(*_: object) -> None:
        raise ZeroDivisionError("of a log")

    monkeypatch.setattr("app.requests.plan_file.read_plan", fails)
    keep_measured(settings_in(tmp_path), RunStatus(state="finished", step=3))
    assert "what was measured is not kept: ZeroDivisionError: of a log" in capsys.readouterr().err
