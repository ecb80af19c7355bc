"""Advice to generated files of every engine, followed in a copy: it gains what was promised, and its engine takes it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from planner.audit.changes import Change
from tests.counts import tries
from tests.unit.planner.audit.generated_files import GENERATORS, Case, with_change
from tests.unit.planner.audit.shared_audits import audit_without_advice, whole_audit

SEED = 20261129
TOLERANCE = 0.01


def cases(engine: str, number: int) -> list[Case]:
    """The first files of an engine, the same in every run."""
    source = random.Random(f"{engine} {SEED}")
    return [GENERATORS[engine](source) for _ in range(number)]


def changes_of(case: Case) -> Iterator[Change]:
    """Changes of a file that can be written."""
    audit = whole_audit({case.name: case.text}, case.flags)
    assert audit.predicted is not None, (case.text, audit.job.missing, audit.findings)
    yield from (change for change in audit.changes if change.set or change.remove)


@pytest.mark.parametrize("engine", GENERATORS)
def test_followed_advice_gains_what_was_promised(engine: str) -> None:
    """Seconds of a step and bytes of the fullest GPU, within a hundredth."""
    for case in cases(engine, tries(3, 10)):
        for change in changes_of(case):
            text = with_change(case, change)
            after = audit_without_advice({case.name: text}, case.flags)
            assert after.predicted is not None, (text, change, after.findings, after.job.missing)
            assert after.predicted.step_time_s == pytest.approx(change.step_time_s, rel=TOLERANCE), (
                change,
                text,
            )
            assert after.predicted.peak_memory_bytes == pytest.approx(
                change.peak_memory_bytes, rel=TOLERANCE
            ), (change, text)
