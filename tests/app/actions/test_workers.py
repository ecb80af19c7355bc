"""The pool: answers as if computed here, limits that end a question and nothing else, turns between visitors."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from operator import truediv
from pathlib import Path

import pytest

from app.actions.workers import MOST_WAITING, Workers
from app.errors import DefectError
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.infeasible import Infeasible
from planner.search.search import search
from tests.executor.launch.processes import alive
from tests.patience import wait_for
from topology.base.errors import InputError
from topology.base.units import MIB

MANY_S, FEW_S = 60.0, 0.5


@pytest.fixture
def one():
    """A pool of one process that may be slow."""
    with closing(Workers(1, answer_s=MANY_S)) as pool:
        yield pool


def test_a_plan_is_the_one_that_is_found_here(one):
    """Plans and their absence come back whole."""
    asked = understand(Flags(model="8b", gpus="8", top="1")).request
    here, there = search(asked), one.call("me", search, asked)
    assert [clockless(there.to_dict())] == [clockless(here.to_dict())]
    assert isinstance(one.call("me", search, understand(Flags(model="405b", gpus="8")).request), Infeasible)


def clockless(document):
    """A document without what a clock says."""
    return {name: value for name, value in document.items() if name != "search_time_s"}


def test_what_is_raised_there_is_raised_here_and_the_process_lives_on(one):
    """A wrong input keeps its three lines, a defect is named, and neither costs a process."""
    first = one.call("me", os.getpid)
    with pytest.raises(InputError, match="price must be") as wrong:
        one.call("me", _refuse)
    assert not isinstance(wrong.value, DefectError)
    with pytest.raises(DefectError, match="ZeroDivisionError"):
        one.call("me", truediv, 1, 0)
    assert one.call("me", os.getpid) == first != os.getpid()


def _refuse():
    raise InputError(what="price must be positive", cause="it is 0", fix="leave it out")


@pytest.mark.parametrize(
    ("function", "argument", "limit_s", "said"),
    [
        (time.sleep, MANY_S, FEW_S, "too long"),
        (bytes, 512 * MIB, MANY_S, "too much"),
        (os._exit, 1, MANY_S, "too much"),
    ],
)
def test_a_question_without_end_ends_its_own_process_only(function, argument, limit_s, said):
    """Too long, too large, or fatal: three lines for who asked, an answer for the next."""
    with closing(Workers(1, answer_s=limit_s, memory_bytes=256 * MIB)) as pool:
        with pytest.raises(InputError, match=said):
            pool.call("me", function, argument)
        assert pool._free == [None]
        pool._answer_s = MANY_S
        assert pool.call("you", abs, -1) == 1


def _held(gate):
    """A question that says when it is begun and ends when it may."""
    gate.with_suffix(".begun").touch()
    while not gate.exists():
        time.sleep(0.01)


@pytest.mark.parametrize("processes", [1, 2])
def test_visitors_take_turns(processes, tmp_path):
    """Who asks for the first time is answered before the last questions of somebody who keeps asking."""
    gates = [tmp_path / f"hog-{number}" for number in range(4)]

    def begun():
        return {path.with_suffix("") for path in tmp_path.glob("*.begun")}

    with closing(Workers(processes, answer_s=MANY_S)) as pool, ThreadPoolExecutor(5) as threads:
        for gate in gates:
            threads.submit(pool.call, "hog", _held, gate)
        assert wait_for(lambda: len(begun()) == processes and len(pool._waiting) == 4 - processes)
        first = begun()
        threads.submit(pool.call, "guest", _held, tmp_path / "guest")
        assert wait_for(lambda: len(pool._waiting) == 5 - processes)
        min(first).touch()
        assert wait_for(lambda: begun() > first)
        second = begun() - first
        for gate in (*gates, tmp_path / "guest"):
            gate.touch()
    assert second == {tmp_path / "guest"}
    assert not pool._turns


def test_one_visitor_cannot_fill_the_queue():
    """Questions of pages that were left wait too; more than a few dozen of one visitor are refused, of no other."""
    pool = Workers(1)
    pool._free.clear()
    pool._waiting = dict.fromkeys(range(MOST_WAITING), "hog")
    with pytest.raises(InputError, match="too many questions"):
        pool.call("hog", abs, -1)


def test_a_process_ends_with_its_server():
    """Even in the middle of a question of a server that was killed."""
    code = (
        "import sys, threading, time, os; from app.actions.workers import Workers; pool = Workers(1)\n"
        "print(pool.call('me', os.getpid), flush=True); pool.call('me', time.sleep, 60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        worker = Path("/proc") / server.stdout.readline().strip()
        assert worker.exists()
        time.sleep(FEW_S)
        server.kill()
    assert wait_for(lambda: not alive(int(worker.name)))


class ChangedError(Exception):
    """The visitor asks something else."""


def _changed():
    raise ChangedError


@pytest.mark.clock
def test_what_nobody_wants_any_more_is_given_up_at_once(one):
    """Its process is interrupted and answers the next question with all that it has loaded."""
    first = one.call("me", os.getpid)
    began = time.monotonic()
    with pytest.raises(ChangedError):
        one.call_while(_changed, "me", time.sleep, MANY_S)
    assert one.call("me", os.getpid) == first
    assert time.monotonic() - began < MANY_S / 4


@pytest.mark.clock
def test_ten_questions_of_one_visitor_cost_the_last_alone(one):
    """Nine are left after a tenth of a second each; the place is free for the tenth."""
    first = one.call("me", os.getpid)
    assert one.call("me", _count_up, 1) == 1
    began = time.monotonic()
    for _ in range(9):
        with pytest.raises(ChangedError):
            one.call_while(_changed, "me", _count_up)
    assert one.call("me", os.getpid) == first
    assert time.monotonic() - began < MANY_S / 4


def _count_up(last=None):
    """Work in Python, as a search does; without end where none is named."""
    number = 0
    while number != last:
        number += 1
    return number


def test_a_process_that_does_not_stop_is_ended():
    """As one in a long call of the solver: its place is taken by a new one."""
    with closing(Workers(1, interrupted_s=FEW_S)) as pool:
        first = pool.call("me", os.getpid)
        assert pool.call("me", _count_up, 1) == 1  # this file is imported there: that is never interrupted
        with pytest.raises(ChangedError):
            pool.call_while(_changed, "me", _never_stop)
        assert pool.call("me", os.getpid) != first


def _never_stop():
    """Hold up what interrupts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    time.sleep(MANY_S)


def test_a_question_that_waits_can_be_given_up_too(one, tmp_path):
    """It leaves the line, and those behind it are answered."""
    gate = tmp_path / "long"
    with ThreadPoolExecutor() as threads:
        long = threads.submit(one.call, "you", _held, gate)
        assert wait_for(gate.with_suffix(".begun").exists)
        with pytest.raises(ChangedError):
            one.call_while(_changed, "me", os.getpid)
        assert one.waiting == 0
        gate.touch()
        assert one.call("me", os.getpid) != os.getpid()
        long.result()
