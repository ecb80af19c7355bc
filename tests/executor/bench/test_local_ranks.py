"""Ranks that fail say why: the one that died, not those that lost it, and never later than they may."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from executor.bench.local_ranks import RankError, run_ranks
from tests.executor.launch.processes import addresses, alive
from tests.patience import wait_for


def _second_aborts(rank: int) -> None:
    if rank == 1:
        os.write(2, b"terminate called after throwing\n")
        os.abort()
    dist.barrier()


def _second_aborts_once(rank: int, mark: Path) -> int:
    if rank == 1 and not mark.exists():
        mark.touch()
        os.abort()
    dist.barrier()
    return rank


def _first_waits_in_vain(rank: int) -> None:
    if rank == 0:
        dist.barrier()
    time.sleep(60)


def _second_raises(rank: int) -> None:
    if rank == 1:
        raise ValueError("a wrong value")
    dist.barrier()


def _second_cannot_part(rank: int, last_deed: Callable[[], None]) -> int:
    dist.barrier()
    if rank == 1:
        dist.barrier = last_deed
    time.sleep(1.0 - rank)  # what the second has to say comes first
    return rank


def _lose_a_peer() -> None:
    raise RuntimeError("Connection reset by peer")


def _addresses_of_its_own(_rank: int) -> frozenset[str]:
    dist.barrier()
    return addresses((os.getpid(),))


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's /proc")
def test_ranks_of_a_check_listen_on_loopback_only() -> None:
    """Whatever address the machine's name has."""
    assert run_ranks(_addresses_of_its_own, 2) == [{"127.0.0.1"}, {"127.0.0.1"}]


PARENT = """
import os, time
from executor.bench.local_ranks import run_ranks

def sleep(rank):
    os.write(1, b"%d\\n" % os.getpid())  # in one piece, as the other rank writes too
    time.sleep(60)

run_ranks(sleep, 2)
"""


def test_ranks_of_a_check_die_with_it() -> None:
    """Kill −9 of whoever started them leaves nothing."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        said = [parent.stdout.readline() for _ in range(2)]
        parent.kill()
    assert wait_for(lambda: not any(alive(int(rank)) for rank in said), 10)


def test_a_rank_that_dies_is_named_with_its_last_words() -> None:
    """The signal, what C++ wrote, and where Python was; not the peer's complaint of a closed connection."""
    with pytest.raises(RankError, match="rank 1 died of SIGABRT: terminate called") as raised:
        run_ranks(_second_aborts, 2)
    assert "in _second_aborts" in str(raised.value)


def test_a_fault_that_does_not_come_again_is_survived(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks are started once more after a fault of native code, and it is told."""
    assert run_ranks(_second_aborts_once, 2, tmp_path / "mark") == [0, 1]
    assert "rank 1 died of SIGABRT" in capsys.readouterr().err


@pytest.mark.parametrize("last_deed", [_lose_a_peer, os.abort])
def test_a_rank_that_gave_its_result_may_part_as_it_likes(
    last_deed: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a connection closed at the end nor a fault then is a failure of what was asked, nor tried again."""
    assert run_ranks(_second_cannot_part, 2, last_deed) == [0, 1]
    assert capsys.readouterr().err == ""


def test_an_exception_of_a_rank_arrives_with_its_traceback() -> None:
    """The first rank that raises stops all of them."""
    with pytest.raises(RankError, match="rank 1: ValueError: a wrong value"):
        run_ranks(_second_raises, 2)


def test_a_collective_that_nobody_joins_ends_in_time() -> None:
    """A rank that waits for ever is told where, within the time of the call."""
    start = time.monotonic()
    with pytest.raises(RankError, match=r"in _first_waits_in_vain|no result from ranks"):
        run_ranks(_first_waits_in_vain, 2, timeout_s=4.0)
    assert time.monotonic() - start < 30
