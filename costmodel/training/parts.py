"""Seconds by part of a step: one row of an array per part, and their sum where nobody asks for the parts."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from costmodel.estimate import PART_NAMES
from topology.base.arrays import Quantity, Vector

PARTS = tuple(PART_NAMES)
"""The axis of parts, by the fields of `costmodel.estimate.TimeBreakdown`."""


_ROW = {name: row for row, name in enumerate(PARTS)}


def summed(**seconds: Quantity) -> Vector:
    """Seconds of all these parts together, added in the order in which they are given."""
    total: Any = functools.reduce(operator.add, seconds.values())
    return np.asarray(total)


def stacked_parts(**seconds: Quantity) -> Vector:
    """The same seconds apart: a first axis of `PARTS`, zero where a part is not given.

    >>> given = {"tp_s": np.ones(3), "host_s": 2.0}
    >>> float(stacked_parts(**given).sum()), float(summed(**given).sum())
    (9.0, 9.0)
    """
    parts = np.zeros((len(PARTS), *np.broadcast(*seconds.values()).shape))
    for name, value in seconds.items():
        parts[_ROW[name]] = value
    return parts
