"""A process that is forked for a test is what one that is started would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.executor.launch.processes import alive, family
from tests.fork_server import RANKS, Forking, possible
from tests.patience import wait_for

pytestmark = pytest.mark.skipif(not possible(), reason="processes are not forked here")
NAME = "program_of_a_test"
PROGRAM = """
import json, os, pathlib, signal, sys, threading

if sys.argv[1:] == ["raise"]:
    raise ValueError("said")
if sys.argv[1:] == ["words"]:
    sys.exit("said")
if sys.argv[1:] == ["code"]:
    sys.exit(7)
if sys.argv[1:] == ["signal"]:
    os.kill(os.getpid(), signal.SIGTERM)
status = pathlib.Path("/proc/self/status").read_text().splitlines()
links = {int(name): os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}")}
print(json.dumps({
    "argv": sys.argv,
    "name": [__name__, __spec__.name, sys.modules["__main__"].__dict__ is globals()],
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "path": sys.path,
    "links": links,
    "session": os.getsid(0) == os.getpid(),
    "parent": os.getppid(),
    "cores": sorted(os.sched_getaffinity(0)),
    "signals": [line for line in status if line.startswith(("SigBlk", "SigIgn", "Umask"))],
    "streams": [(one.encoding, one.errors, one.line_buffering, one.write_through, one.isatty()) for one in (sys.stdin, sys.stdout, sys.stderr)],
    "said": sys.stdin.read(),
    "threads": threading.active_count(),
    "command": [word for word in pathlib.Path("/proc/self/cmdline").read_text().split(chr(0)) if word],
}))
"""


@pytest.fixture
def served(forking: Forking, tmp_path: Path) -> Iterator[Path]:
    """A folder with a program that is forked."""
    (tmp_path / f"{NAME}.py").write_text(PROGRAM)
    forking.served[NAME] = RANKS
    yield tmp_path
    del forking.served[NAME]


def ended(
    folder: Path, *words: str, safe_path: bool = True, **fields: object
) -> subprocess.CompletedProcess[str]:
    """What the program said, and how it ended."""
    return subprocess.run(
        [sys.executable, *(["-P"] if safe_path else []), "-m", NAME, *words],
        env={**os.environ, "PYTHONPATH": str(folder)}, check=False, capture_output=True, text=True, timeout=60, **fields,
    )  # fmt: skip


@pytest.mark.parametrize("safe_path", [True, False])
def test_it_is_told_what_a_started_one_is(forking: Forking, served: Path, *, safe_path: bool) -> None:
    """Words, folder, environment, paths, descriptors, session, parent, signals, streams: all is the same."""
    read, write = os.pipe()
    fields = {
        "cwd": served, "input": "a line", "pass_fds": (write,), "start_new_session": True, "safe_path": safe_path,
    }  # fmt: skip
    before = forking.forked
    forked = ended(served, "one", "two words", **fields)
    assert forking.forked == before + 1
    forking.real += 1
    started = ended(served, "one", "two words", **fields)
    forking.real -= 1
    assert forking.forked == before + 1
    os.close(read)
    os.close(write)
    one, other = json.loads(forked.stdout), json.loads(started.stdout)
    assert one == other
    assert one["parent"] == os.getpid()


@pytest.mark.parametrize("words", ["raise", "words", "code", "signal"])
def test_it_ends_as_a_started_one_does(forking: Forking, served: Path, words: str) -> None:
    """An exception, words, a code, a signal."""
    forked = ended(served, words)
    forking.real += 1
    started = ended(served, words)
    forking.real -= 1
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


def test_a_launcher_that_is_killed_leaves_no_server(forking: Forking, tmp_path: Path) -> None:
    """Its ranks are forked from a server of its own, which goes with it."""
    launcher = subprocess.Popen(
        [sys.executable, "-P", "-m", "app", "run", "-"], stdin=subprocess.PIPE, cwd=tmp_path
    )  # it waits for a plan
    try:
        assert wait_for(lambda: len(family(launcher.pid)) == 2)
        members = family(launcher.pid)
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.communicate()
    assert wait_for(lambda: not any(map(alive, members)))
