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
