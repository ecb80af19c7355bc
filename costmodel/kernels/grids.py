"""Multilinear interpolation of log values on log axes: smooth, monotone where the nodes are, vectorised.

Between nodes a value follows a power law in each coordinate, which is exact wherever time is
proportional to work and flat wherever it is a launch floor. Outside the axes the nearest edge is used;
`outside` tells the caller where that happened. An estimate makes some fifty calls on arrays of length
one, so the axes are concatenated and located with a single search. What every kernel and collective
function returns stands here too: a `KernelTime`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topology.base.arrays import Floats, Mask

APART = 1000.0  # distance between concatenated axes, far beyond any log coordinate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Log values at the nodes of a rectangular grid with log axes, prepared for one search over all axes."""

    shape: tuple[int, ...]
    log_values: Floats
    first: Floats  # coordinates of the first and last node of each axis, shape (axes,)
    last: Floats
    knots: Floats  # logs of all axes, axis j shifted by j·APART, edges repeated so that they clamp
    positions: Floats  # index inside its axis of every knot
    shifts: Floats  # j·APART, shape (axes, 1)
    strides: NDArray[np.intp]  # shape (axes, 1)
    last_cell: NDArray[np.intp]  # shape (axes, 1)
    corners: NDArray[np.intp]  # offsets of the 2^axes corners of a cell, shape (2^axes, 1)

    @classmethod
    def from_logs(cls, axes: Sequence[Floats], log_values: NDArray[np.floating]) -> "Grid":
        """Build a grid from the coordinates of its axes (increasing, not logs) and the log of its values."""
        shape = tuple(len(axis) for axis in axes)
        strides = np.array([int(np.prod(shape[j + 1 :])) for j in range(len(shape))], dtype=np.intp)
        bits = (np.arange(2 ** len(axes))[:, None] >> np.arange(len(axes))[::-1]) & 1
        edge = APART / 3
        logs = [np.log(np.asarray(axis, dtype=np.float64)) + j * APART for j, axis in enumerate(axes)]
        return cls(
            shape=shape,
            log_values=np.ascontiguousarray(log_values, dtype=np.float64).ravel(),
            first=np.array([axis[0] for axis in axes], dtype=np.float64),
            last=np.array([axis[-1] for axis in axes], dtype=np.float64),
            knots=np.concatenate([[a[0] - edge, *a, a[-1] + edge] for a in logs]),
            positions=np.concatenate([[0, *range(size), size - 1] for size in shape]).astype(np.float64),
            shifts=np.arange(len(shape), dtype=np.float64)[:, None] * APART,
            strides=strides[:, None],
            last_cell=np.array(shape, dtype=np.intp)[:, None] - 2,
            corners=(bits * strides).sum(axis=1)[:, None],
        )


def stacked(*coordinates: Floats) -> Floats:
    """Return broadcasting coordinates as one array of shape (axes, …)."""
    out = np.empty((len(coordinates), *np.broadcast(*coordinates).shape))
    for axis, coordinate in enumerate(coordinates):
        out[axis] = coordinate
    return out


def interpolate(grid: Grid, coordinates: Floats) -> Floats:
    """Return the log value at `coordinates` (shape (axes, …), positive), clamped to the axes.

        v = Σ_corners Π_axes (f or 1 − f) · v_corner,   f = position inside the cell in log coordinates

    >>> grid = Grid.from_logs([np.array([1.0, 4.0]), np.array([1.0, 2.0])], np.log([[1.0, 2.0], [4.0, 8.0]]))
    >>> float(np.exp(interpolate(grid, stacked(np.array(2.0), np.array(1.5)))).round(6))
    3.0
    """
    axes, rest = coordinates.shape[0], coordinates.shape[1:]
    flat = np.log(coordinates.reshape(axes, -1))
    flat += grid.shifts
    fraction = np.interp(flat, grid.knots, grid.positions)
    cell = np.minimum(fraction.astype(np.intp), grid.last_cell)
    fraction -= cell
    values = grid.log_values[(cell * grid.strides).sum(axis=0) + grid.corners]
    for axis_fraction in fraction:
        half = values.shape[0] // 2
        low = values[:half]
        values = low + (values[half:] - low) * axis_fraction
    log_value: Floats = values[0].reshape(rest)
    return log_value


def outside(grid: Grid, coordinates: Floats) -> Mask:
    """Return where any coordinate lies beyond the axes, shape (…)."""
    shape = (-1,) + (1,) * (coordinates.ndim - 1)
    beyond = (coordinates > grid.last.reshape(shape)) | (coordinates < grid.first.reshape(shape))
    return np.asarray(beyond.any(axis=0))


def monotone(log_values: Floats, axes: Sequence[int]) -> Floats:
    """Return nodes near `log_values` that never fall along `axes`: the mean of both monotone envelopes.

    The running maximum from below and the running minimum from above are both monotone, so their mean
    is; nodes that already rise are unchanged.

    >>> monotone(np.array([1.0, 3.0, 2.0, 4.0]), [0]).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    upper, lower = log_values, log_values
    for axis in axes:
        upper = np.maximum.accumulate(upper, axis=axis)
        lower = np.flip(np.minimum.accumulate(np.flip(lower, axis), axis=axis), axis)
    return (upper + lower) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """Seconds (array), where they were extrapolated (bool array of the same shape), and their source."""

    seconds: Floats
    extrapolated: Mask
    source: str


def floats(value: ArrayLike) -> Floats:
    """Return `value` as an array of float64."""
    return np.asarray(value, dtype=np.float64)
