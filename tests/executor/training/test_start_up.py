"""Ranks that come late, or get ready slowly, are waited for with patience; one that never comes is named."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from costmodel.layout import ParallelLayout
from costmodel.models.parameters import parameter_count
from executor.bench.local_ranks import run_ranks
from executor.comm.hangs import hang_line
from executor.comm.meeting import AbsentRanksError, await_ranks
from executor.comm.mesh import build_meshes
from executor.launch.disk_room import check_disk_room, free_disk_bytes
from executor.launch.supervise import with_plan, write_run
from executor.torch_internals.groups import groups_here, open_groups
from executor.training import loop, trainer
from executor.training.settings import RunSettings, RunStatus
from planner.plan import Plan
from topology.base.errors import InputError

LAYOUT = ParallelLayout(dp=2, zero_stage=1)
BOUND_S, LATE_S = 2.0, 3.5


def settings_in(folder: Path, **fields: object) -> RunSettings:
    """Settings of two steps in fp32 on CPU ranks."""
    base = RunSettings(folder="", plan_file="", steps=2, device="cpu", precision="fp32")
    return with_plan(replace(base, **fields), folder)  # type: ignore[arg-type]


def _train_late(rank: int, settings: RunSettings, plan: Plan) -> RunStatus:
    """Rank 1 reads its weights for longer than a collective may take."""
    trainer.COLLECTIVE_TIMEOUT = timedelta(seconds=BOUND_S)
    begin = trainer._begin

    def slow(*arguments: object, **fields: object) -> None:
        time.sleep(LATE_S if rank == 1 else 0.0)
        begin(*arguments, **fields)  # type: ignore[arg-type]

    trainer._begin = slow
    return loop.train(trainer.prepare(settings, plan, torch.device("cpu")))


@pytest.mark.clock
def test_a_rank_that_is_slow_to_get_ready_is_waited_for(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Longer than the bound of a hang, which holds from the first step on."""
    settings, plan = settings_in(tmp_path), plan_of(LAYOUT)
    write_run(settings, plan)
    assert {status.state for status in run_ranks(_train_late, 2, settings, plan)} == {"finished"}


def _hang_later(rank: int, settings: RunSettings, plan: Plan) -> float:
    """Seconds that rank 0 waits for one that hangs in the first step."""
    trainer.COLLECTIVE_TIMEOUT = timedelta(seconds=BOUND_S)
    ready = trainer.prepare(settings, plan, torch.device("cpu"))
    begin = time.monotonic()
    if rank == 1:
        time.sleep(LATE_S)
    else:
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.zeros(1), group=ready.pipeline.meshes.group("dp"))
    return time.monotonic() - begin


@pytest.mark.clock
def test_a_rank_that_hangs_later_is_not(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """The bound is that of a pair which has talked: not five times as long."""
    settings, plan = settings_in(tmp_path), plan_of(LAYOUT)
    write_run(settings, plan)
    waited_s, _ = run_ranks(_hang_later, 2, settings, plan)
    assert BOUND_S <= waited_s < LATE_S


def test_ranks_that_never_come_are_named(tmp_path: Path) -> None:
    """Before any two ranks connect, by how long it was waited for."""
    meeting = dist.FileStore(str(tmp_path / "store"), 4)
    meeting.set("arrived-2", "1")
    meeting.add("arrived", 1)
    with pytest.raises(AbsentRanksError, match=r"rank 0 waited .* 2 of 4 have not come \(rank 1, 3\)"):
        await_ranks(meeting, 0, 4, timedelta(seconds=0.2))


def test_ranks_that_come_late_are_waited_for(tmp_path: Path) -> None:
    """Each by itself; all go on once the last has come."""
    path, gone = str(tmp_path / "store"), []

    def come(rank: int) -> None:
        time.sleep(0.3 * rank)
        await_ranks(dist.FileStore(path, 3), rank, 3, timedelta(seconds=30))
        gone.append(time.monotonic())

    begin = time.monotonic()
    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gone) == 3
    assert min(gone) - begin >= 0.6


def _opened(_rank: int) -> list[str]:
    """Groups in which ranks have talked, of a layout of all axes."""
    build_meshes(ParallelLayout(tp=2, dp=2, ep=2, expert_tp=1), "cpu", experts=True)
    groups = groups_here()
    open_groups(groups, torch.device("cpu"))
    return [str(group.group_desc) for group in groups if dist.get_world_size(group) > 1]


def test_ranks_talk_once_in_every_group() -> None:
    """Without waiting for each other in a circle."""
    names = run_ranks(_opened, 4)
    assert all(sorted(each) == ["default_pg", "mesh_dp", "mesh_tp+ep"] for each in names)


def test_a_connection_that_times_out_is_a_hang(tmp_path: Path) -> None:
    """Gloo says so in words of its own when a pair has never talked."""
    error = RuntimeError("[gloo/transport/tcp/pair.h:311] Connect timeout [127.0.0.1]:1234")
    (tmp_path / "stands").mkdir()
    assert hang_line(error, tmp_path / "stands", 0).startswith("rank 0 waited too long")


def test_checkpoints_that_no_disk_holds_are_refused(
    plan_of: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the run starts, by their size; as many as fit are named, and what is there counts."""
    plan = plan_of(LAYOUT)
    each = 12 * parameter_count(plan.request.model)
    settings = settings_in(tmp_path, steps=100, checkpoint_every=10)
    assert (free_disk_bytes(tmp_path / "new" / "run") or 0) > 4 * each

    def free(number: float) -> None:
        monkeypatch.setattr("executor.launch.disk_room.free_disk_bytes", lambda _: number * each)

    free(4.1)
    check_disk_room(settings, plan)
    free(3.5)
    with pytest.raises(InputError, match="no room for the run's checkpoints") as caught:
        check_disk_room(settings, plan)
    assert "--keep-checkpoints 2" in caught.value.fix
    check_disk_room(replace(settings, keep_checkpoints=2), plan)
    free(0.5)
    with pytest.raises(InputError, match="no room for the run's checkpoints") as caught:
        check_disk_room(replace(settings, steps=1), plan)
    assert "--keep-checkpoints" not in caught.value.fix
    for step in (10, 20, 30):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    free(1.1)
    check_disk_room(settings, plan)
