"""A collective that hangs is named by the ranks that wait in it, with the ranks that have not come."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import run_ranks
from executor.comm import hangs
from executor.comm.collectives import MESSAGE, arrive
from executor.comm.hangs import (
    Answerer,
    GroupState,
    Stand,
    answer_when_asked,
    hang_line,
    hang_words,
    stand_of,
)
from executor.comm.mesh import build_meshes
from executor.torch_internals.groups import bound_groups, groups_here
from tests.patience import wait_for

SCRIPT = "import sys; from tests.executor.comm.test_hangs import hang; hang(sys.argv[1])"
pytestmark = pytest.mark.usefixtures("forked_scripts")
TP, DP = "5", "7"


def stand(rank: int, tp: int, dp: int, last: str) -> Stand:
    """A rank of two axes that has come so far."""
    return Stand(
        rank=rank,
        last=last,
        places={
            TP: GroupState(axis="tp", ranks=(0, 1), number=tp, operation="all_gather" if tp else ""),
            DP: GroupState(axis="dp", ranks=(0, 2), number=dp, operation="all_reduce" if dp else ""),
        },
    )


def test_who_has_not_come_is_named_with_its_last_collective() -> None:
    """Or that it gives no answer; ranks of other groups are not asked."""
    mine = stand(0, 17, 3, TP)
    assert hang_words(mine, {1: stand(1, 16, 2, DP), 2: stand(2, 0, 4, DP)}) == (
        "rank 0 waited too long in all_gather 17 of tp: rank 1 has come to all_reduce 2 of dp"
    )
    assert hang_words(mine, {}) == "rank 0 waited too long in all_gather 17 of tp: rank 1 gives no answer"
    assert hang_words(mine, {1: stand(1, 17, 2, TP)}).endswith("all_gather 17 of tp: all others have come")
    assert hang_words(stand(0, 1, 1, DP), {2: stand(2, 0, 0, "")}).endswith(
        "of dp: rank 2 has come to no collective"
    )
    assert hang_words(stand(0, 0, 0, ""), {}) == "rank 0 waited too long, before any collective was recorded"


def test_a_message_between_stages_is_named_by_its_axis() -> None:
    """Gloo's messages are not recorded: all of the pipeline are named with their last collective."""
    pipeline = {
        "2": GroupState(axis="pp", ranks=(0, 1)),
        DP: GroupState(axis="dp", ranks=(1, 3), number=4, operation="all_reduce"),
    }
    mine, other = Stand(rank=0, last="", places=pipeline), Stand(rank=1, last=DP, places=pipeline)
    assert hang_words(mine, {1: other}, message=True) == (
        "rank 0 waited too long in a message of pp: rank 1 has come to all_reduce 4 of dp"
    )


def test_only_a_timeout_is_a_hang(tmp_path: Path) -> None:
    """A rank whose peer has died says that, and asks nobody."""
    assert hang_line(RuntimeError("Connection closed by peer"), tmp_path, 0) == ""
    assert not list(tmp_path.iterdir())

    class Late:
        def wait(self) -> None:
            raise RuntimeError("Timed out waiting 5ms")

    with pytest.raises(RuntimeError) as raised:
        arrive(Late())
    assert raised.value.__notes__ == [MESSAGE]


def looks_of(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, ranks: int, quiet_s: float, moves: int, steps_s: float
) -> list[float]:
    """When a rank looks whether it is asked, by seconds of a clock: it moves so often, then stands still."""
    now_s, looks = 0.0, list[float]()
    answerer = Answerer(folder, 0, ranks=ranks, quiet_s=quiet_s)
    answerer.still_since_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        answerer.still_since_s = max(answerer.still_since_s, min(now_s, moves * steps_s) // steps_s * steps_s)

    def is_asked(_folder: Path) -> bool:
        looks.append(now_s)
        if now_s < moves * steps_s + 300:
            return False
        raise FileNotFoundError

    monkeypatch.setattr(hangs.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(hangs.time, "sleep", sleep)
    monkeypatch.setattr(hangs, "_is_asked", is_asked)
    answerer.run()
    return looks


def test_nobody_looks_while_steps_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand steps of ten seconds cost no look at the folder; then one every two seconds, of 512 ranks."""
    looks = looks_of(monkeypatch, tmp_path, ranks=512, quiet_s=150, moves=10_000, steps_s=10)
    assert min(looks) >= 10_000 * 10 + 150
    assert np.diff(looks) == pytest.approx(2.0)
    assert hangs.LOOKS_PER_S * 1.1 >= 512 / 2.0
    assert hangs.ANSWER_S > 2.0
    monkeypatch.undo()
    few = looks_of(monkeypatch, tmp_path, ranks=8, quiet_s=0, moves=1, steps_s=1)
    assert np.diff(few) == pytest.approx(0.5)


def test_who_stands_still_is_asked_and_answers(tmp_path: Path) -> None:
    """Not before its time; whoever waits finds the answer by one listing of the folder."""
    (tmp_path / "asked").touch()
    answerer = answer_when_asked(tmp_path, 7, quiet_s=1.0)
    assert not list(tmp_path.glob("stand-*"))
    assert wait_for((tmp_path / "stand-7").exists)
    assert time.monotonic() - answerer.still_since_s >= 1.0


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_a_look_that_fails_is_not_the_last(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared file system fails for a moment: the rank still answers; a folder that is gone ends the looks."""
    (tmp_path / "asked").touch()
    plain, looks = hangs._is_asked, list[Path]()

    def fails_first(folder: Path) -> bool:
        looks.append(folder)
        if len(looks) == 1:
            raise OSError(number, "of the file system")
        return plain(folder)

    monkeypatch.setattr(hangs, "_is_asked", fails_first)
    monkeypatch.setattr(hangs.time, "sleep", lambda _: None)
    Answerer(tmp_path, 3).run()
    assert (tmp_path / "stand-3").exists()
    Answerer(tmp_path / "gone", 3).run()
    assert len(looks) == 3


def _hung(rank: int, folder: str) -> tuple[str, float]:
    """Four ranks, tp by dp: rank 3 does not come to the second all-gather of tp, rank 2 waits for it."""
    meshes = build_meshes(ParallelLayout(tp=2, dp=2, zero_stage=1), "cpu", experts=False)
    bound_groups(timedelta(seconds=2), groups_here())
    answer_when_asked(Path(folder), rank)
    value, begin = torch.ones(2), time.monotonic()
    dist.all_reduce(value, group=meshes.group("tp"))
    dist.all_reduce(value, group=meshes.group("dp"))
    line = ""
    try:
        if rank != 3:
            dist.all_reduce(value, group=meshes.group("tp"))
        if rank == 1:
            dist.all_reduce(value, group=meshes.group("dp"))
    except RuntimeError as error:
        line = hang_line(error, Path(folder), rank)
    waited_s = time.monotonic() - begin
    while len(list(Path(folder).glob("stand-*"))) < 4:  # as long as others ask
        time.sleep(0.1)
    assert stand_of(rank).places
    return line, waited_s


def hang(folder: str) -> None:
    """What each rank says, as JSON; in a process of its own, as torch reads its variables once."""
    sys.stdout.write(json.dumps(run_ranks(_hung, 4, folder)))


def test_ranks_that_wait_say_for_whom(tmp_path: Path) -> None:
    """Within the timeout that groups of axes have; both the one that waits for the culprit, and who waits for that."""
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "stands")],
        env={**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    lines, seconds = zip(*json.loads(found.stdout.splitlines()[-1]), strict=True)
    assert lines == (
        "",
        "rank 1 waited too long in all_reduce 2 of dp: rank 3 has come to all_reduce 1 of dp",
        "rank 2 waited too long in all_reduce 2 of tp: rank 3 has come to all_reduce 1 of dp",
        "",
    )
    assert max(seconds) < 20
