"""Columns: many rows as arrays that end in the axis of the rows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from topology.base.columns import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Lid(Columns):
    """What closes a box."""

    thickness: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes(Columns):
    """Columns of every kind: a number, an array of two axes, columns, and a tuple of them."""

    walls: int
    sides: npt.NDArray[np.int64]
    lid: Lid
    layers: tuple[Lid, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LidPair(Columns):
    """Two lids of every box."""

    both: tuple[Lid, Lid]


def boxes(*heights: int) -> Boxes:
    high = np.array(heights)
    lid = Lid(thickness=high / 10)
    return Boxes(walls=4, sides=np.stack([high, 2 * high, 3 * high]), lid=lid, layers=(lid, lid))


@pytest.mark.parametrize("rows", [np.array([2, 0]), np.array([False, True, True]), slice(1, 3)])
def test_taking_rows_takes_them_from_every_column(rows: npt.NDArray[np.int64] | slice) -> None:
    """As many sides as there are rows must not be mistaken for rows; numbers hold for every row."""
    heights = np.array([5, 6, 7])
    taken, expected = boxes(*heights).take(rows), boxes(*heights[rows])
    assert taken.sides.tolist() == expected.sides.tolist()
    assert taken.lid.thickness.tolist() == expected.lid.thickness.tolist()
    assert [one.thickness.tolist() for one in taken.layers] == [expected.lid.thickness.tolist()] * 2
    assert taken.walls == 4


def test_a_table_has_as_many_rows_as_its_arrays_end_in() -> None:
    """The first column, a number, says nothing of the rows."""
    assert [len(boxes(*range(rows))) for rows in (0, 1, 5)] == [0, 1, 5]


def test_tables_are_joined_row_after_row() -> None:
    """What was taken apart is put together again."""
    layers = (Lid(thickness=np.array([1.0])), Lid(thickness=np.array([2.0, 3.0])))
    assert Lid.concat(layers).thickness.tolist() == [1.0, 2.0, 3.0]
    assert LidPair.concat([LidPair(both=(one, one)) for one in layers]).both[1].thickness.tolist() == [
        1.0,
        2.0,
        3.0,
    ]
