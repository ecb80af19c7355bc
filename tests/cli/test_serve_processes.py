"""A command searches its boards by several processes, a library one after the other: one answer."""

import json
import subprocess
import sys
import threading
from pathlib import Path

from app.terminal import progress
from planner.analysis.serving.processes import WORTH_PROCESSES, by_processes
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
