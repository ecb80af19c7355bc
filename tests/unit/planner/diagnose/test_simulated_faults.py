"""One fault in a simulated step is the first cause, with its rank and its seconds; without one there is none.

`python benchmarks/diagnose_faults.py` does 20 of each, and 200 healthy ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.diagnose.diagnosis import diagnosed
from planner.questions.flags import Flags
from tests.unit.planner.diagnose.simulated import FAULTS, cause_of, simulate, write_ranks

SEEDS = (101, 102)
"""Others than the benchmark's."""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_is_named_first(tmp_path: Path, fault: str, seed: int) -> None:
    """Within 2 % of what it costs a step."""
    job = simulate(seed, fault)
    first = diagnosed(write_ranks(job, tmp_path), Flags()).findings[0]
    assert (first.cause, first.rank) == (cause_of(fault), job.rank)
    assert first.seconds * 1e6 == pytest.approx(job.truth_us, rel=0.02)


@pytest.mark.parametrize("seed", range(101, 107))
def test_a_healthy_job_is_not_accused(tmp_path: Path, seed: int) -> None:
    job = simulate(seed)
    diagnosis = diagnosed(write_ranks(job, tmp_path), Flags())
    assert diagnosis.findings == ()
    degrees = {"dp": job.dp, "pp": job.pp}
    assert dict(diagnosis.job.layout.degrees) == {
        axis: degree for axis, degree in degrees.items() if degree > 1
    }
