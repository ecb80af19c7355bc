"""How much of its cases a test tries: a share in the suite, all of them in `make nightly`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")
IS_NIGHTLY = os.environ.get("MESHPLAN_NIGHTLY", "") not in ("", "0")


def tries(suite: int, nightly: int) -> int:
    """The number of random cases that this run tries; the first ones are the same in both."""
    return nightly if IS_NIGHTLY else suite


def cases_of_run(cases: Iterable[Case], nightly: Iterable[Case]) -> list[Case]:
    """The cases that this run tries: those of the nightly run are like others, and dear.

    Raises:
        ValueError: A case of the nightly run is none of all.
    """
    every, late = list(cases), list(nightly)
    if unknown := [case for case in late if case not in every]:
        raise ValueError(f"no such cases: {unknown}")
    return [case for case in every if IS_NIGHTLY or case not in late]
