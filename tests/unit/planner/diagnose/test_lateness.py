"""Which rank keeps the others waiting, where it does so after the last collective of a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.diagnose.diagnosis import diagnosed
from planner.questions.flags import Flags
from tests.unit.planner.traces.micro import host, kernel, write

REDUCES_US, WORKS_US, PAUSES_US = 10.0, 28.0, 60.0
RANKS = (0, 1, 2)


def write_rank(folder: Path, rank: int, *, late: int, steps: int) -> Path:
    """Steps of a collective near their start, then work; the late rank pauses at the end of each."""
    message = {"Collective name": "allreduce", "In msg nelems": 1, "Process Group Ranks": str([*RANKS])}
    events, start, slowest = [], 100.0, 100.0
    for step in range(steps):
        arrives, done = start + REDUCES_US, slowest + REDUCES_US + 2.0
        end = done + WORKS_US + (PAUSES_US if rank == late else 0.0)
        events += [
            host(f"ProfilerStep#{step}", start, end),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", arrives, done, 2 * step, stream=20, **message),
            kernel("nvjet_gemm", done, done + WORKS_US, 2 * step + 1),
        ]
        start, slowest = end, done + WORKS_US + PAUSES_US * (late >= 0)
    return write(folder / f"rank{rank}.json", *events, rank=rank, world=len(RANKS))


@pytest.mark.parametrize("steps", [1, 2])
def test_a_pause_after_the_last_collective_is_its_ranks(tmp_path: Path, steps: int) -> None:
    """The others wait in the next step, of which the last is not recorded."""
    paths = [write_rank(tmp_path, rank, late=1, steps=steps) for rank in RANKS]
    finding = diagnosed(paths, Flags()).findings[0]
    assert (finding.cause, finding.rank) == ("slow rank", 1)
    assert finding.seconds == pytest.approx(PAUSES_US * 1e-6)


def test_nobody_is_late_where_all_work_alike(tmp_path: Path) -> None:
    paths = [write_rank(tmp_path, rank, late=-1, steps=2) for rank in RANKS]
    assert [each.cause for each in diagnosed(paths, Flags()).findings if each.cause == "slow rank"] == []


def write_after(folder: Path, rank: int, *, ahead_us: float, works_us: float) -> Path:
    """A step that a rank begins ahead of the others; it works, meets them all at once, and works on."""
    message = {"Collective name": "allreduce", "In msg nelems": 1, "Process Group Ranks": str([*RANKS])}
    meets, done = 300.0, 302.0
    return write(
        folder / f"rank{rank}.json",
        host("ProfilerStep#0", meets - 100.0 - ahead_us, done + works_us),
        kernel("nvjet_gemm", meets - 100.0, meets, 0),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", meets, done, 1, stream=20, **message),
        kernel("nvjet_gemm", done, done + works_us, 2),
        rank=rank,
        world=len(RANKS),
    )


@pytest.mark.parametrize(("ahead_us", "more_us"), [(PAUSES_US, 0.0), (PAUSES_US, 20.0), (0.0, 20.0)])
def test_the_end_of_a_step_counts_from_its_last_collective(
    tmp_path: Path, ahead_us: float, more_us: float
) -> None:
    """A rank that begins early, and is there when all meet, keeps nobody waiting."""
    paths = [
        write_after(
            tmp_path, rank, ahead_us=ahead_us * (rank == 1), works_us=WORKS_US + more_us * (rank == 1)
        )
        for rank in RANKS
    ]
    late = {each.rank: each.typical_s * 1e6 for each in diagnosed(paths, Flags()).job.lateness}
    assert late.get(1, 0.0) == pytest.approx(more_us, abs=1e-3)
