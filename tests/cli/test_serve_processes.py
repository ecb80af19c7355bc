"""A command searches its boards by several processes, a library one after the other: one answer."""

import json
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

from app.terminal import progress
from planner.analysis.serving.fleets import _searched
from planner.analysis.serving.processes import WORTH_PROCESSES, by_processes
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving
from tests.cli import commands
from topology.base.decode import unstructure

QUESTION = {
    "gpu": "h100-sxm,h200-sxm", "weights": "bf16,fp8", "rate": "4/s", "ttft": "500ms", "input": "1000",
    "output": "100",
}  # fmt: skip


def test_the_command_answers_what_the_library_answers() -> None:
    """Four boards, worth processes: every figure but the time that it took."""
    import meshplan

    words = [word for name, value in QUESTION.items() for word in (f"--{name}", value)]
    answer = commands.plan("serve", "--model", "8b", *words, "--json")
    assert answer.returncode == 0, answer.stderr
    library = meshplan.serve("8b", **QUESTION)
    told, same = json.loads(answer.stdout), json.loads(json.dumps(unstructure(library)))
    assert len(same["other_fleets"]) >= WORTH_PROCESSES
    for name in ("estimate", "num_gpus", "other_fleets", "commands"):
        assert told[name] == same[name], name


NOTING = """
import os, sys
from pathlib import Path
from planner.analysis.serving import processes
FOLDER, start = Path(sys.argv.pop(1)), processes._start_process
def noted():
    start()
    (FOLDER / str(os.getpid())).touch()
processes._start_process = noted
os.sched_getaffinity = lambda _: {0, 1}
from app.cli import run
raise SystemExit(run(sys.argv[1:]))
"""
"""The command, whose processes leave a file each in a folder."""


def test_the_command_does_search_by_several_processes(tmp_path: Path) -> None:
    """Whatever else a command runs beside its answer: a thread that watches it must not be in their way."""
    words = [word for name, value in QUESTION.items() for word in (f"--{name}", value)]
    answer = subprocess.run(
        [sys.executable, "-c", NOTING, str(tmp_path), "serve", "--model", "8b", *words],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert len(list(tmp_path.iterdir())) == 2


def test_a_watched_command_is_watched_again_once_its_processes_run() -> None:
    """The watch has no thread while they are forked, and one before and after."""
    before = threading.active_count()
    with progress.never_silent("plan serve"):
        assert threading.active_count() == before + 1
        with progress.without_watch():
            assert threading.active_count() == before
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_boards_are_searched_in_turn_where_processes_would_not_pay_or_be_safe() -> None:
    """Few boards; a process that has threads must not be forked."""
    with by_processes(WORTH_PROCESSES - 1) as each:
        assert each is map
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, daemon=True)
    thread.start()
    with by_processes(100) as each:
        assert each is map
    stop.set()
    thread.join()


ENDED = """
import os, signal, sys
from planner.analysis.serving.processes import by_processes
os.sched_getaffinity = lambda _: {0, 1}
ASKS = os.getpid()
def half(item):
    if item == 3 and os.getpid() != ASKS:
        os.kill(os.getpid(), signal.SIGKILL)
    return item / 2
with by_processes(8) as each:
    assert each is not map
    if sys.argv[1] == "one that searches":
        print(list(each(half, range(8))))
    else:
        os.kill(ASKS, signal.SIGKILL)
"""
"""Something that ends one of its processes, or itself, as the system does where memory is short."""


def _ended(which: str) -> subprocess.CompletedProcess[str]:
    """What is left of it, once all its processes, which share its streams, have ended."""
    command = [sys.executable, "-c", ENDED, which]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_a_killed_process_searched_is_searched_again() -> None:
    """Nobody waits for ever: the one that asks does the rest itself."""
    ended = _ended("one that searches")
    assert ended.stdout == f"{[item / 2 for item in range(8)]}\n", ended.stderr


def test_processes_end_with_the_one_that_asked() -> None:
    """It ended without a word: none of them waits for work that nobody will send."""
    assert _ended("the one that asks").returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "asked",
    [
        {"rate": "4/s", "ttft": "500ms"},
        {"rate": "4/s", "mode": "disaggregated"},
        {"gpus": "8"},
        {"concurrency": "64", "gpus": "4"},
        {"concurrency": "64", "gpus": "4", "mode": "auto", "ttft": "2s"},
        {"trace": "replayed"},
    ],
    ids="-".join,
)
def test_whatever_a_board_was_searched_for_can_be_sent_back(asked: dict[str, str], tmp_path: Path) -> None:
    """Every kind of question: what a process found is what it sends."""
    if "trace" in asked:
        lines = [f"{0.2 * at},{900 + at},{80 + at % 9}" for at in range(300)]
        path = tmp_path / "trace.csv"
        path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *lines]), encoding="utf-8")
        asked = {"trace": str(path), "gpus": "2"}
    sizes = {} if "trace" in asked else {"input_tokens": "1000", "output_tokens": "100"}
    flags = ServeFlags(model="8b", gpu="h100-sxm", weights="bf16")
    question = understand_serving(replace(flags, **sizes, **asked))
    for pair in question.requests:
        found = _searched(pair, trace=question.trace, shown=())
        again = ForkingPickler.loads(ForkingPickler.dumps(found))
        assert [one.plan for one in again] == [one.plan for one in found]
        assert any(one.plan for one in found)
