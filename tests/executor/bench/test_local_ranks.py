"""Ranks that fail say why: the one that died, not those that lost it, and never later than they may."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from executor.bench.local_ranks import RankError, run_ranks


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
