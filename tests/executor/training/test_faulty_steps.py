"""A real fault in steps of real ranks is the first cause, with the seconds that the run itself recorded of it.

`python benchmarks/diagnose_runs.py` does 20 of each, and those of the loop of `plan run`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.bench.local_ranks import run_ranks
from planner.diagnose.diagnosis import diagnosed
from planner.questions.flags import Flags
from planner.traces.kineto import read_kineto
from tests.executor.training.faulty_steps import INJECTED, KINDS, STEPS, FaultyKind, train

SECONDS = 0.5


def outcome(kind: FaultyKind, culprit: int, seconds: float, folder: Path) -> str:
    """What is wrong with the diagnosis of one run; empty where nothing is."""
    run_ranks(train, 2, kind.name, culprit, seconds, folder)
    paths = [folder / f"trace-rank{rank}.json" for rank in range(2)]
    findings = diagnosed(paths, Flags()).findings
    if not kind.cause:
        return f"accused of {findings[0].words}" if findings else ""
    if not findings:
        return "nothing is named"
    first, rank = findings[0], culprit if kind.on_one_rank else None
    if (first.cause, first.rank) != (kind.cause, rank):
        return f"named {first.words}, {first.seconds:.2f} s"
    if kind.share is None:
        return ""
    events = (read_kineto(path).events for path in paths)
    recorded = [sum(e.duration_s for e in of.rows() if e.name == INJECTED) / STEPS for of in events]
    lost = max(recorded) * kind.share
    return "" if abs(first.seconds - lost) <= 0.15 * lost else f"{first.seconds:.2f} s of {lost:.2f} s"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_fault_is_named_first(tmp_path: Path, kind: FaultyKind) -> None:
    assert outcome(kind, 1, SECONDS, tmp_path) == ""
