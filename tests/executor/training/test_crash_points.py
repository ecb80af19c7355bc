"""A run cut off at any write goes on: a sample of the cuts that `benchmarks/crash_points.py` tries, and its own proof."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import crash_points
from benchmarks.crash_points import DATA, fault_of_ranks, faults, recorded, recorded_run, sampled
from benchmarks.recorded_files import CutPoint, FileOperation, built, cut_points, recording
from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import run_ranks
from planner.plan import Plan
from tests.counts import tries
from tests.executor.conftest import TINY
from topology.base.atomic import write_atomically

POINTS, POINTS_OF_RANKS = tries(300, 10_000), tries(4, 200)
LAYOUT, OTHER_LAYOUT = ParallelLayout(), ParallelLayout(dp=2, zero_stage=1)
IN_MEMORY = "/dev/shm"


@pytest.fixture(autouse=True)
def folders_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cut leaves is computed, not left by a disk: runs are built where a sync costs nothing."""
    if os.access(IN_MEMORY, os.W_OK):
        monkeypatch.setattr(tempfile, "tempdir", IN_MEMORY)


def small(plan_of: Callable[..., Plan], layout: ParallelLayout = LAYOUT) -> Plan:
    """A plan for one rank."""
    return plan_of(layout, spec=replace(TINY, num_layers=1), batch=crash_points.BATCH)


def test_a_run_goes_on_wherever_it_is_cut_off(plan_of: Callable[..., Plan]) -> None:
    """Between two writes, within one, by a loss of power: no error, no step lost, values to the last bit."""
    plan, wrong = small(plan_of), dict[str, list[str]]()
    for first in range(0, POINTS, crash_points.AT_ONCE):
        count = min(crash_points.AT_ONCE, POINTS - first)
        ((operations, found),) = run_ranks(faults, 1, count, first, plan, timeout_s=1800)
        assert operations > 1000
        wrong |= found
    assert wrong == {}


def test_real_ranks_go_on_where_a_run_is_cut_off(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """A launcher and its rank, to the last bit; two ranks, within rounding: no step lost, none that differs."""
    alone, others = small(plan_of), small(plan_of, OTHER_LAYOUT)
    (run,) = run_ranks(recorded, 1, str(tmp_path), alone)
    wrong = {}
    for number, cut in enumerate(sampled(run, POINTS_OF_RANKS)):
        plan, rounding = (others, 1e-5) if number % 2 else (alone, 0.0)
        if fault := fault_of_ranks(run, cut, tmp_path / DATA, plan, rounding):
            wrong[cut] = fault
    assert wrong == {}


def test_a_loss_that_differs_is_seen(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Ranks that go on with other values of a line are at fault."""
    plan = small(plan_of)
    (run,) = run_ranks(recorded, 1, str(tmp_path), plan)
    other = replace(run, lines=frozenset(f"{line.split()[0]} 1.0" for line in run.lines))
    cut = sampled(run, 2)[1]
    assert fault_of_ranks(other, cut, tmp_path / DATA, plan, 0.0).startswith("losses of steps")


def _unsafe(rank: int, plan: Plan) -> dict[str, list[str]]:
    """Faults of a run whose files are written in place."""

    def in_place(path: Path, text: str) -> None:
        path.write_text(text)

    for module in ("executor.launch.supervise", "executor.training.settings"):
        __import__(module, fromlist=["_"]).write_atomically = in_place
    found: dict[str, list[str]] = faults(rank, 900, 5, plan, 1, ("power",))[1]
    return found


def _unsynced(rank: int, plan: Plan) -> dict[str, list[str]]:
    """Faults of a run whose checkpoints are named before their bytes are on the disk."""
    from torch.distributed.checkpoint import filesystem

    write = filesystem._write_files_from_queue

    def without(*arguments: object, **fields: object) -> object:
        listed = list(arguments)
        if "use_fsync" in fields:
            fields["use_fsync"] = False
        else:
            listed[6] = False
        return write(*listed, **fields)

    filesystem._write_files_from_queue = without
    found: dict[str, list[str]] = faults(rank, 900, 5, plan, 1, ("power",))[1]
    return found


@pytest.mark.parametrize("planted", [_unsafe, _unsynced])
def test_a_planted_fault_is_seen(planted: Callable[..., object], plan_of: Callable[..., Plan]) -> None:
    """Files that are written in place are found torn; names before their bytes lose a step."""
    (wrong,) = run_ranks(planted, 1, small(plan_of), timeout_s=600)
    assert wrong


def _whole(_rank: int, folder: str, plan: Plan) -> bool:
    """Whether a recorded run, built again, is what it left."""
    root = Path(folder)
    (root / "tokens.bin").write_bytes(bytes(4000))
    run = recorded_run(root / "whole", root / "tokens.bin", plan)
    built(run.done, CutPoint(number=len(run.done), variant="between", seed=0), root / "again")
    return contents(root / "whole") == contents(root / "again")


def contents(folder: Path) -> dict[str, bytes]:
    """Files below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_is_recorded_is_what_was_done(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Every byte of every file of a whole run, built from its operations."""
    assert run_ranks(_whole, 1, str(tmp_path), small(plan_of)) == [True]


def test_a_write_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    """A file that is replaced, at every cut of every kind."""
    with recording(tmp_path / "files") as recorder:
        (tmp_path / "files").mkdir()
        write_atomically(tmp_path / "files" / "a", "first")
        write_atomically(tmp_path / "files" / "a", "second, longer")
    seen = set()
    for cut in cut_points(recorder.done, 600, 3):
        built(recorder.done, cut, tmp_path / f"{cut.number}-{cut.variant}-{cut.seed}")
        path = tmp_path / f"{cut.number}-{cut.variant}-{cut.seed}" / "a"
        seen.add(path.read_text() if path.exists() else None)
    assert seen == {None, "first", "second, longer"}


def test_cuts_are_spread_over_all_operations() -> None:
    """Each kind from the first to the last; more cuts than operations draw again."""
    done = [FileOperation(kind="write", path="a", content=b"x")] * 9
    few, many = cut_points(done, 15, 0), cut_points(done, 90, 0)
    assert [cut.number for cut in few[::3]] == [0, 2, 4, 6, 8]
    assert {(cut.number, cut.variant) for cut in many} == {
        (number, variant) for number in range(10) for variant in ("between", "within", "power")
    }
    assert len(set(many)) == 90
