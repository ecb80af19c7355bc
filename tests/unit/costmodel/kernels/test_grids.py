"""Interpolation on log grids: exact at nodes, power laws between them, clamped and flagged outside."""

import numpy as np
import pytest

from costmodel.kernels.grids import Grid, interpolate, monotone, outside, stacked

X = np.array([1.0, 10.0, 1000.0])
Y = np.array([2.0, 8.0])
TIMES = np.array([[1.0, 2.0], [3.0, 5.0], [7.0, 100.0]])
GRID = Grid.from_logs([X, Y], np.log(TIMES))


def seconds_at(x, y):
    return np.exp(interpolate(GRID, stacked(np.asarray(x, dtype=float), np.asarray(y, dtype=float))))


def test_a_node_is_reproduced_exactly():
    """At its own nodes the grid gives back the values it was built from."""
    np.testing.assert_allclose(seconds_at(X[:, None], Y[None, :]), TIMES, rtol=1e-12)


def test_a_power_law_is_interpolated_exactly():
    """A value that is a power of each coordinate is exact between nodes too."""
    grid = Grid.from_logs([X, Y], np.log(3 * X[:, None] ** 1.5 * Y[None, :] ** -0.5))
    at = stacked(np.array([2.0, 500.0]), np.array([3.0, 7.0]))
    np.testing.assert_allclose(np.exp(interpolate(grid, at)), 3 * at[0] ** 1.5 * at[1] ** -0.5, rtol=1e-12)


def test_outside_the_axes_the_edge_is_used_and_flagged():
    """Beyond the first or last node the edge value is returned, and `outside` says so."""
    at = stacked(np.array([0.5, 5.0, 9999.0]), np.array([2.0, 4.0, 9.0]))
    assert np.exp(interpolate(GRID, at))[[0, 2]].tolist() == pytest.approx([1.0, 100.0])
    assert outside(GRID, at).tolist() == [True, False, True]


def test_coordinates_broadcast():
    """A column of one coordinate and a row of the other give a table."""
    assert seconds_at(np.ones((3, 1)), np.ones((1, 2)) * 2).shape == (3, 2)


def test_monotone_leaves_rising_nodes_alone_and_mends_falling_ones():
    """Rising tables are unchanged; a dip is shared between both sides of it."""
    rising = np.array([[1.0, 2.0], [1.5, 2.0]])
    np.testing.assert_array_equal(monotone(rising, [0, 1]), rising)
    mended = monotone(np.array([1.0, 4.0, 2.0, 3.0]), [0])
    assert (np.diff(mended) >= 0).all()
    assert mended.tolist() == [1.0, 3.0, 3.0, 3.5]
