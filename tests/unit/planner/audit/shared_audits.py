"""Audits that several tests read, each made once; and those of edited files, whose further advice no test reads."""

from __future__ import annotations

import functools

import pytest

from costmodel.kernels.tables import load_calibration
from planner.audit import audit
from planner.audit.audit import Audit, audited
from planner.audit.read import read_texts
from planner.questions.flags import Flags
from tests.counts import IS_NIGHTLY


def whole_audit(texts: dict[str, str], flags: Flags) -> Audit:
    """All that an audit says of texts by name; what was said of the same before, where a test has heard it."""
    return _whole(tuple(texts.items()), flags)


@functools.cache
def _whole(texts: tuple[tuple[str, str], ...], flags: Flags) -> Audit:
    return audited(read_texts(dict(texts)), flags, load_calibration())


def audit_without_advice(texts: dict[str, str], flags: Flags) -> Audit:
    """What is read, priced and refused of texts; with a best plan and changes too in `make nightly`."""
    if IS_NIGHTLY:
        return whole_audit(texts, flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "_best", lambda *_, **__: None)
        patch.setattr(audit, "changes_of", lambda *_, **__: ())
        return audited(read_texts(texts), flags, load_calibration())
