"""Ranks are forked from a process that has torch loaded: children of the launcher, with what a started one has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from executor.launch import rank_source as sources
from executor.launch.environment import environment_of_ranks
from executor.launch.nodes import loopback
from executor.launch.rank_source import RankSource, rank_source
from tests.executor.launch.processes import alive
from tests.patience import wait_for

pytestmark = [
    pytest.mark.usefixtures("forked_scripts"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks of Linux"),
]

RANK = """
import json, os, signal, sys, time
sys.path.insert(0, {root!r})
from executor.training import rank_server
rank_server.LOADED, rank_server.OPTIONAL = ("json", "numpy.random"), ()
{before}
if sys.argv[1] == "--serve":
    word = rank_server.next_rank(int(sys.argv[2]), int(os.environ["MESHPLAN_LAUNCHER"]))
    import numpy
    descriptors = os.listdir("/proc/self/fd")
    paths = ["/proc/self/fd/" + each for each in descriptors if int(each) > 2]
    sockets = [path for path in paths if os.path.exists(path) and os.readlink(path).startswith("socket:")]
    {after}
    seen = dict(rank=os.environ["RANK"], parent=os.getppid(), leader=os.getsid(0), pid=os.getpid(), path=word,
                descriptors=descriptors, sockets=sockets, drawn=numpy.random.random())
    with open(word + "-" + os.environ["RANK"], "w") as file:
        json.dump(seen, file)
    time.sleep(float(os.environ["REST_S"]))
    os._exit(7)
"""


@pytest.fixture
def source(tmp_path: Path) -> Iterator[RankSource]:
    """Of a run whose folder a descriptor holds."""
    with rank_source(os.open(tmp_path, os.O_RDONLY)) as source:
        yield source


def environment(**more: str) -> dict[str, str]:
    """What ranks share."""
    return {**environment_of_ranks(dict(os.environ), interface=loopback()), **more}


def started(
    source: RankSource, folder: Path, rank: int, *, before: str = "", after: str = "", rest_s: float = 60.0
) -> sources.ForkedRank | None:
    """A rank of a program of the test's."""
    script = RANK.format(root=str(Path(__file__).parents[3]), before=before, after=after)
    place = {"RANK": str(rank), "REST_S": str(rest_s)}
    command = [sys.executable, "-c", script]
    return source.rank(command, folder / "run", environment(), place, lambda: False)


def test_a_forked_rank_is_a_child_of_the_launcher(source: RankSource, tmp_path: Path) -> None:
    """With its place, a session and random numbers of its own; it holds the folder and no channel."""
    ranks = [started(source, tmp_path, number, rest_s=0.0) for number in range(2)]
    assert [rank is not None and rank.wait() for rank in ranks] == [7, 7]
    seen = [json.loads((tmp_path / f"run-{number}").read_text()) for number in range(2)]
    for number, (rank, each) in enumerate(zip(ranks, seen, strict=True)):
        assert rank is not None
        assert (each["rank"], each["parent"], each["pid"]) == (str(number), os.getpid(), rank.pid)
        assert each["leader"] == each["pid"]
        assert str(source.lock) in each["descriptors"]
        assert each["sockets"] == []
    assert seen[0]["drawn"] != seen[1]["drawn"]


def test_signals_reach_it_and_its_code_tells(source: RankSource, tmp_path: Path) -> None:
    """As of a started process; a signal to one that has ended goes nowhere."""
    ended, killed = (started(source, tmp_path, number) for number in range(2))
    assert ended is not None
    assert killed is not None
    assert (ended.poll(), killed.poll()) == (None, None)
    ended.terminate()
    killed.kill()
    assert (ended.wait(), killed.wait()) == (-signal.SIGTERM, -signal.SIGKILL)
    ended.kill()


def test_what_it_is_forked_from_goes_with_the_source(source: RankSource, tmp_path: Path) -> None:
    """A rank that lives is the launcher's to end; the process that forked it ends at once."""
    rank = started(source, tmp_path, 0)
    assert rank is not None
    assert source.process is not None
    server = source.process.pid
    source.close()
    assert (alive(server), alive(rank.pid)) == (False, True)
    rank.kill()
    rank.wait()
    with pytest.raises(ChildProcessError):
        os.waitpid(server, os.WNOHANG)


def test_after_a_kill_of_the_source_another_is_begun(source: RankSource, tmp_path: Path) -> None:
    """Ranks that it has forked stay; the next are forked from a new one."""
    first = started(source, tmp_path, 0)
    assert source.process is not None
    source.process.kill()
    source.process.wait()
    second = started(source, tmp_path, 1, rest_s=0.0)
    assert first is not None
    assert second is not None
    assert (first.poll(), second.wait()) == (None, 7)
    first.kill()
    first.wait()


THREAD = "import threading; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
CUDA = "import executor.torch_internals.forked as forked; forked.cuda_forbids_fork = lambda: True"
FAILED_IMPORT = "raise ImportError('no torch here')"
NO_FORK = """
forks = []
def fork(before=os.fork):
    forks.append(0)
    if len(forks) == {number}:
        raise BlockingIOError(11, "no process more")
    return before()
os.fork = fork
"""
OTHER_LAUNCHER = "os.environ['MESHPLAN_LAUNCHER'] = '1'"
OBSTACLES = [THREAD, CUDA, FAILED_IMPORT, NO_FORK.format(number=1), NO_FORK.format(number=2), OTHER_LAUNCHER]


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_where_it_cannot_be_forked_it_is_started(source: RankSource, tmp_path: Path, obstacle: str) -> None:
    """A thread of a library, CUDA at work, no torch: the launcher hears of it, and asks no more."""
    assert started(source, tmp_path, 0, before=obstacle) is None
    assert (source.refused, source.process) == (True, None)
    assert started(source, tmp_path, 1) is None


@pytest.mark.clock
def test_a_server_that_dies_in_a_request_is_noticed_at_once(source: RankSource, tmp_path: Path) -> None:
    """Though a rank that it forked lives: no rank holds its end of the channel."""
    first = started(source, tmp_path, 0)
    assert first is not None
    assert source.process is not None
    os.kill(source.process.pid, signal.SIGSTOP)
    threading.Timer(0.2, source.process.kill).start()
    began_s = time.monotonic()
    assert started(source, tmp_path, 1) is None
    assert time.monotonic() - began_s < 2.0
    assert first.poll() is None
    first.kill()
    first.wait()


def test_who_may_not_adopt_starts_its_ranks(
    source: RankSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is begun whose ranks would be another process's children."""
    monkeypatch.setattr(sources, "adopt", lambda **_: False)
    assert started(source, tmp_path, 0) is None
    assert (source.refused, source.process) == (True, None)


@pytest.mark.parametrize("before", [False, True])
def test_adoption_is_left_as_it_was_and_orphans_are_reaped(
    source: RankSource, tmp_path: Path, before: bool
) -> None:
    """A process that a rank leaves behind ends as this one's child, and stays no zombie; others' stay theirs."""
    was, other = sources.adopts(), subprocess.Popen(["true"])
    sources.adopt(orphans=before)
    try:
        leave = "child = os.fork(); child or os._exit(0); open(word + '-left', 'w').write(str(child))"
        rank = started(source, tmp_path, 0, after=leave, rest_s=0.0)
        assert rank is not None
        assert rank.wait() == 7
        left = Path("/proc") / (tmp_path / "run-left").read_text()
        assert wait_for(lambda: "(zombie)" in (left / "status").read_text())
        source.close()
        assert (left.exists(), sources.adopts()) == (False, before)
        assert other.wait() == 0
    finally:
        sources.adopt(orphans=was)


def test_a_launcher_that_stops_waits_for_no_import(source: RankSource, tmp_path: Path) -> None:
    """It closes the source, which was still importing, and may ask later."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert source.rank(command, tmp_path / "run", environment(), {"RANK": "0"}, lambda: True) is None
    assert (source.refused, source.process) == (False, None)


def test_other_variables_are_read_at_a_start(source: RankSource, tmp_path: Path) -> None:
    """Libraries read some when they are loaded: a source with others is begun anew."""
    script = RANK.format(root=str(Path(__file__).parents[3]), before="", after="")
    place: dict[str, str] = {"RANK": "0", "REST_S": "0"}
    servers = set()
    for kind in ("1", "2", "2"):
        shared = environment(MESHPLAN_KIND=kind)
        rank = source.rank([sys.executable, "-c", script], tmp_path / "run", shared, place, lambda: False)
        assert rank is not None
        assert rank.wait() == 7
        assert source.process is not None
        servers.add(source.process.pid)
    assert len(servers) == 2


def test_a_rank_nobody_took_is_ended(source: RankSource, tmp_path: Path) -> None:
    """One that was forked while the launcher gave up on it."""
    script = RANK.format(root=str(Path(__file__).parents[3]), before="", after="")
    source._begin([sys.executable, "-c", script], environment())
    assert source.channel is not None
    text = {"run_file": str(tmp_path / "run"), "environment": {"RANK": "0", "REST_S": "600"}}
    source.channel.sendall(f"{json.dumps(text)}\n".encode())
    path = tmp_path / "run-0"
    assert wait_for(lambda: path.exists() and path.read_text() != "")
    source.close()
    assert not alive(json.loads(path.read_text())["pid"])
