"""Nodes that number themselves: by plain files, a clock of the test's own, and two launchers."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from executor.comm.meeting import endpoint, is_here
from executor.launch.membership import SILENT_S, MembershipTable
from executor.launch.nodes import UNNUMBERED, Nodes, loopback, name_here
from executor.launch.numbers import Numbers
from executor.launch.run_lock import holder_of, run_lock
from executor.launch.schedulers import alone_hint, nodes_here, nodes_line
from executor.launch.supervise import MEETINGS
from executor.launch.turns import EARLIER_S
from executor.training.settings import METRICS_FILE
from executor.training.worker import RANKS_FOLDER
from planner.plan import Plan, to_json
from tests.executor.launch.processes import family
from tests.executor.launch.test_several_nodes import started
from tests.patience import wait_for
from topology.base.errors import InputError


class Hosts:
    """Hosts that run the same command: each numbers itself, then beats or does not."""

    def __init__(self, folder: Path, count: int = 3, first: str = "a") -> None:
        self.run, self.folder, self.count, self.first = folder, folder / "meeting", count, first
        self.folder.mkdir()
        self.now_s = 0.0

    def comes(self, name: str) -> Numbers:
        """A launcher that has just been started."""
        return Numbers(
            folder=self.folder, run=self.run, count=self.count, node=name, first=name == self.first
        )

    def number(self, name: str) -> int | None:
        """What a launcher gets at its first look."""
        return self.comes(name).look(0.0)

    def waits(self, numbers: Numbers, seconds: int, *living: MembershipTable) -> int | None:
        """What it has got after so many seconds, in which some nodes beat."""
        for _ in range(seconds + 1):
            found = numbers.look(self.now_s)
            if found is not None:
                return found
            self.now_s += 1
            for table in living:
                table.beat()
        return None

    def table(self, number: int) -> MembershipTable:
        """A node that has a number."""
        return MembershipTable(folder=self.folder, node=number)

    def age(self) -> None:
        """Let claims be of long ago."""
        for path in self.folder.glob("number-*"):
            before = path.stat().st_mtime - 2 * EARLIER_S
            os.utime(path, (before, before))


def test_nothing_numbers_the_nodes_but_the_endpoint() -> None:
    """One start has one name; NODE_RANK and launchers count where they are, and without an endpoint it is asked for."""
    nodes = nodes_here({}, "2:4", "host0:29500")
    assert nodes == Nodes(
        count=4,
        rank=UNNUMBERED,
        launch="at-host0-29500",
        least=2,
        come=4,
        announced_by="--rdzv-endpoint",
    )
    assert nodes_here({"NODE_RANK": "3"}, "4", "host0:29500").rank == 3
    assert nodes_here({}, None, "host0:29500") == nodes_here({}, "1", "host0:29500") == Nodes()
    assert nodes_here({"PET_NNODES": "2:4"}, None, "[fd00::1]:29500").launch == "at--fd00--1--29500"
    assert nodes_here({"PET_NNODES": "2:4"}, None, "host0:29500").least == 2
    with pytest.raises(InputError, match="nothing says which of 4 nodes this is") as raised:
        nodes_here({}, "4")
    assert "give --rdzv-endpoint HOST:PORT, by which nodes number themselves" in raised.value.fix


def test_what_is_told_of_a_number() -> None:
    """One that waits for the first node says which that is."""
    second = Nodes(count=4, rank=1, launch="at-h-1", come=4, announced_by="--rdzv-endpoint")
    assert nodes_line(second) == "numbered by --rdzv-endpoint: node 1 (from 0) of 4 nodes"
    assert alone_hint(second, {}, "h:1") == "; node 0 is the one whose address is that of --rdzv-endpoint h:1"


def test_an_endpoint_is_at_one_of_the_nodes() -> None:
    """By its address; a name that nobody knows is nobody's."""
    places = ("127.0.0.1:29500", "192.0.2.1:29500", "node..x:29500")
    assert [is_here(endpoint(place)) for place in places] == [True, False, False]
    assert name_here({"NODE_NAME": "a", "SLURMD_NODENAME": "b"}) == "a"
    assert (name_here({"SLURMD_NODENAME": "b"}), name_here({})) == ("b", socket.gethostname())


def test_the_endpoints_node_is_the_first_whoever_comes_before(tmp_path: Path) -> None:
    """Others have the numbers in the order in which they come."""
    hosts = Hosts(tmp_path)
    assert [hosts.number(name) for name in "cab"] == [1, 0, 2]


def test_of_launchers_that_claim_at_once_each_has_its_own_number(tmp_path: Path) -> None:
    """Thirty two of them, at one moment."""
    hosts, found = Hosts(tmp_path, count=32), dict[str, int | None]()
    gate = threading.Barrier(32)
    names = ["a", *(f"node{place}" for place in range(31))]

    def claim(name: str) -> None:
        numbers = hosts.comes(name)
        gate.wait()
        found[name] = numbers.look(0.0)

    threads = [threading.Thread(target=claim, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sorted(found.values()), found["a"]) == (list(range(32)), 0)


def test_a_node_that_is_started_again_has_its_number_back(tmp_path: Path) -> None:
    """Whenever that is, and in whatever order they come; no other launcher of its name may be under way."""
    hosts = Hosts(tmp_path)
    assert [hosts.number(name) for name in "abc"] == [0, 1, 2]
    hosts.age()
    assert [hosts.waits(hosts.comes(name), 3) for name in "cba"] == [2, 1, 0]
    numbers, table = hosts.comes("b"), hosts.table(1)
    with pytest.raises(InputError, match="another launcher of this run is under way on a node of this name"):
        hosts.waits(numbers, 3, table)
    with run_lock(tmp_path, pytest.fail, 1):
        assert f"process {os.getpid()}" in holder_of(tmp_path, 1)
        with pytest.raises(InputError, match=f"b is node 1: process {os.getpid()}"):
            hosts.number("b")
    assert holder_of(tmp_path, 1) == holder_of(tmp_path, 2) == ""


def test_those_that_wait_learn_that_a_node_of_their_name_was_refused(tmp_path: Path) -> None:
    """Once, with the process and what helps; not of an earlier start, and nothing where names differ."""
    hosts, said = Hosts(tmp_path), list[str]()
    first, second = hosts.comes("a"), hosts.comes("b")
    assert [numbers.look(0.0) for numbers in (first, second)] == [0, 1]
    first.tell_namesakes(said.append)
    assert said == []
    with pytest.raises(InputError, match="give each another as NODE_NAME"):
        hosts.waits(hosts.comes("b"), 3, hosts.table(1))
    for numbers in (first, first, second):
        numbers.tell_namesakes(said.append)
    expected = (
        f"another launcher (process {os.getpid()} on {socket.gethostname()}) was refused, as its node is called "
        "b like node 1: if it is another node, give each a name of its own as NODE_NAME and start it again"
    )
    assert said == [expected] * 2
    (word,) = hosts.folder.glob("namesake-*")
    os.utime(word, (word.stat().st_mtime - 2 * EARLIER_S,) * 2)
    late = hosts.comes("c")
    late.tell_namesakes(said.append)
    assert len(said) == 2


@pytest.mark.clock
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's /proc")
def test_two_launchers_of_one_name_say_so_within_seconds(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """The second ends; the first, which waits for its second node, says that it was refused and why."""
    plan, run = tmp_path / "wanted.json", tmp_path / "run"
    plan.write_text(to_json(estimated_plan_of(ParallelLayout(dp=2, zero_stage=1))), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    words, job = ("--nnodes", "2", "--rdzv-endpoint", place), {"NODE_NAME": "same"}
    first = started(plan, run, 0, 5, *words, job=job)
    try:
        assert wait_for(lambda: "node 0 (from 0) of 2 nodes" in (tmp_path / "said-0").read_text())
        second = started(plan, run, 1, 5, *words, job=job)
        assert second.wait(timeout=60) == 2
        ended_s = time.monotonic()
        assert wait_for(
            lambda: "was refused, as its node is called same" in (tmp_path / "said-0").read_text()
        )
        assert time.monotonic() - ended_s < 5
        assert f"process {second.pid} on" in (tmp_path / "said-0").read_text()
    finally:
        first.kill()
        first.wait()


def test_the_number_of_a_node_that_is_gone_goes_to_one_that_comes(tmp_path: Path) -> None:
    """Once it has been silent for so long that the others go on without it, and not while its lock is held."""
    hosts = Hosts(tmp_path)
    assert [hosts.number(name) for name in "abc"] == [0, 1, 2]
    tables = [hosts.table(number) for number in range(3)]
    for table in tables:
        table.beat()
    hosts.age()
    new = hosts.comes("d")
    assert hosts.waits(new, round(SILENT_S) - 2, tables[0], tables[2]) is None
    with run_lock(tmp_path, pytest.fail, 1):
        assert hosts.waits(new, 5, tables[0], tables[2]) is None
    assert hosts.waits(new, 1, tables[0], tables[2]) == 1
    before = Numbers(folder=hosts.folder, run=tmp_path, count=3, node="b", first=False)
    assert (before.holds(1), new.holds(1)) == (False, True)
    with pytest.raises(InputError, match="its number was given to d"):
        before.require(1)
    new.require(1)


def test_of_several_that_come_for_one_number_one_has_it(tmp_path: Path) -> None:
    """The other waits: the number that it saw is another node's by now."""
    hosts = Hosts(tmp_path)
    assert [hosts.number(name) for name in "abc"] == [0, 1, 2]
    tables = [hosts.table(number) for number in range(3)]
    hosts.age()
    both = [hosts.comes("d"), hosts.comes("e")]
    found = list[int | None]()
    for _ in range(round(SILENT_S) + 2):
        hosts.now_s += 1
        tables[0].beat()
        tables[2].beat()
        found = [
            numbers.look(hosts.now_s) if numbers.node != "d" or 1 not in found else 1 for numbers in both
        ]
    assert found == [1, None]


def test_a_node_more_than_the_run_has_is_refused(tmp_path: Path) -> None:
    """Once all others have been seen to live; one whose node has only just come is waited for."""
    hosts = Hosts(tmp_path)
    assert [hosts.number(name) for name in "abc"] == [0, 1, 2]
    tables = [hosts.table(number) for number in range(3)]
    more = hosts.comes("d")
    assert hosts.waits(more, 20, tables[0], tables[1]) is None  # the third has just come
    with pytest.raises(InputError, match="d is one node more than the run has") as raised:
        hosts.waits(more, 3, *tables)
    assert raised.value.cause == "--nnodes 3, and all live: 0 is a, 1 is b, 2 is c"


def test_the_first_number_is_kept_for_the_endpoints_node(tmp_path: Path) -> None:
    """Also of those that come before it; another node at the same address takes what is left."""
    hosts = Hosts(tmp_path)
    assert [hosts.number(name) for name in "bc"] == [1, 2]
    tables = [hosts.table(number) for number in (1, 2)]
    with pytest.raises(InputError, match="2 is c; 0 is for the node at --rdzv-endpoint"):
        hosts.waits(hosts.comes("d"), 3, *tables)
    (tmp_path / "beside").mkdir()
    beside = Hosts(tmp_path / "beside", count=2)
    assert beside.number("a") == 0
    second = Numbers(folder=beside.folder, run=tmp_path, count=2, node="a2", first=True)
    assert second.look(0.0) == 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's /proc")
def test_the_same_command_on_every_node_trains(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Two launchers without a number. The second is lost and comes back: it has its number again, and joins."""
    plan, run = tmp_path / "wanted.json", tmp_path / "run"
    plan.write_text(to_json(estimated_plan_of(ParallelLayout(dp=2, zero_stage=1))), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    metrics = run / METRICS_FILE
    words = (
        "--nnodes",
        "1:2",
        "--rdzv-endpoint",
        place,
        "--checkpoint-every",
        "5",
        "--interface",
        loopback(),
    )
    job = {"NODE_NAME": "hostNODE"}
    launchers = [started(plan, run, node, 1_000_000, *words, job=job) for node in (0, 1)]

    def lines() -> int:
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def said(text: str) -> list[bool]:
        return [text in (tmp_path / f"said-{node}").read_text() for node in (0, 1)]

    try:
        assert wait_for(lambda: lines() >= 3), (tmp_path / "said-0").read_text()
        numbers = [
            said(f"numbered by --rdzv-endpoint: node {number} (from 0) of 2 nodes") for number in (0, 1)
        ]
        assert [sorted(who) for who in numbers] == [[False, True], [False, True]]
        second = numbers[1].index(True)  # which of them has number 1
        for process in family(launchers[second].pid):
            os.kill(process, signal.SIGKILL)
        launchers[second].wait()
        assert wait_for(lambda: any(said("node 1 silent for 10 s: continuing on 1 of 2 nodes, 1 of 2 GPUs")))
        (tmp_path / f"said-{second}").unlink()
        launchers[second] = started(plan, run, second, 1_000_000, *words, job=job)
        joined = "node 1 joined: continuing on 2 of 2 nodes, 2 of 2 GPUs"
        assert wait_for(lambda: said(joined) == [True, True])
        assert said("node 1 (from 0) of 2 nodes")[second]
        before = lines()
        assert wait_for(lambda: lines() > before + 1)
        assert sorted(path.name for path in (run / RANKS_FOLDER).iterdir()) == ["0", "1"]
        for launcher in launchers:
            launcher.send_signal(signal.SIGTERM)
        assert [launcher.wait(timeout=60) for launcher in launchers] == [0, 0]
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    (meeting,) = (run / MEETINGS).iterdir()
    assert len(list(meeting.glob("number-*"))) == 2
