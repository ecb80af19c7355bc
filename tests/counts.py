"""How many random cases a test tries: a share of them in the suite, all of them in `make nightly`."""

from __future__ import annotations

import os

IS_NIGHTLY = os.environ.get("MESHPLAN_NIGHTLY", "") not in ("", "0")


def tries(suite: int, nightly: int) -> int:
    """The number that this run tries; the first ones are the same in both."""
    return nightly if IS_NIGHTLY else suite
