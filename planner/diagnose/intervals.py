"""Sets of time as rows of start and end: sorted, disjoint, and combined without loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.float64]
EMPTY: Intervals = np.zeros((0, 2))


def united(start: NDArray[np.float64], end: NDArray[np.float64]) -> Intervals:
    """The time in which at least one is under way.

    >>> united(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0])).tolist()
    [[0.0, 3.0], [5.0, 6.0]]
    """
    some = end > start
    if not some.any():
        return EMPTY
    start, end = start[some], end[some]
    order = np.argsort(start, kind="stable")
    start, latest = start[order], np.maximum.accumulate(end[order])
    new = np.flatnonzero(np.r_[True, start[1:] > latest[:-1]])
    rows: Intervals = np.column_stack((start[new], latest[np.r_[new[1:] - 1, len(latest) - 1]]))
    return rows


def union(*sets: Intervals) -> Intervals:
    """The time that is in any of them."""
    rows = np.concatenate((EMPTY, *sets))
    return united(rows[:, 0], rows[:, 1])


def inverted(some: Intervals, start: float, end: float) -> Intervals:
    """The time from start to end that is not in it."""
    some = clipped(some, start, end)
    edges: Intervals = np.r_[start, some.ravel(), end].reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def clipped(some: Intervals, start: float, end: float) -> Intervals:
    """What of it lies from start to end."""
    cut = np.clip(some, start, end)
    return cut[cut[:, 1] > cut[:, 0]]


def common(first: Intervals, second: Intervals) -> Intervals:
    """The time that is in both."""
    if not len(first) or not len(second):
        return EMPTY
    start, end = min(first[0, 0], second[0, 0]), max(first[-1, 1], second[-1, 1])
    return inverted(union(inverted(first, start, end), inverted(second, start, end)), start, end)


def without(first: Intervals, second: Intervals) -> Intervals:
    """The time of the first that is not in the second.

    >>> without(np.array([[0.0, 4.0]]), np.array([[1.0, 2.0]])).tolist()
    [[0.0, 1.0], [2.0, 4.0]]
    """
    if not len(first):
        return EMPTY
    return common(first, inverted(second, float(first[0, 0]), float(first[-1, 1])))


def seconds(some: Intervals) -> float:
    """How long it is."""
    return float((some[:, 1] - some[:, 0]).sum())


def inside(times: NDArray[np.float64], some: Intervals) -> NDArray[np.bool_]:
    """Which moments lie in it."""
    if not len(some):
        return np.zeros(len(times), bool)
    place = np.searchsorted(some[:, 0], times, "right") - 1
    held: NDArray[np.bool_] = (place >= 0) & (times <= some[np.maximum(place, 0), 1])
    return held
