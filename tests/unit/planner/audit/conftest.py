"""Audits of tests that look at what is read and priced of a job, and at nothing that is better."""

import pytest

from planner.audit import audit
from tests.counts import IS_NIGHTLY


@pytest.fixture
def searched_in_nightly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the search of a best plan, which changes nothing that is read, priced or refused of the job itself."""
    if not IS_NIGHTLY:
        monkeypatch.setattr(audit, "_best", lambda *_, **__: None)
