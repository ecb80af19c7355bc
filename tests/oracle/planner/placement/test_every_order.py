"""The order of few nodes loses as few seconds as the best of all permutations, whatever torn groups cost."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.placement.nodes import choose_hosts, least_lost, lost_of
from tests.counts import tries

SIZES = ({"cp": 3, "ep": 2}, {"cp": 2, "ep": 3, "dp": 6}, {"tp": 2, "cp": 6, "ep": 3}, {"cp": 2, "dp": 6})


@st.composite
def fabrics(draw: st.DrawFn) -> tuple[np.ndarray, ...]:
    """Six or seven hosts in racks that are torn, some of them in rows of racks."""
    racks = np.array(sorted(draw(st.lists(st.integers(0, 3), min_size=6, max_size=7))))
    return (racks, racks // 2) if draw(st.booleans()) else (racks,)


@settings(max_examples=tries(15, 40), deadline=None)
@given(fabrics(), st.sampled_from(SIZES), st.data())
def test_no_permutation_loses_less(
    units: tuple[np.ndarray, ...], sizes: dict[str, int], data: st.DataObject
) -> None:
    """Each axis loses its own seconds, more where it is torn at more levels; the bound is below all of them."""
    weights = {axis: data.draw(st.integers(1, 9)) for axis in sizes}

    def lost_s(axis: str, torn: tuple[bool, ...]) -> float:
        return float(weights[axis] * sum(torn))

    wanted = 6
    found = lost_of(units, sizes, choose_hosts(units, sizes, wanted, lost_s), lost_s)
    assert least_lost(units, sizes, wanted, lost_s) <= found
    if found == 0:
        return
    every = permutations(range(len(units[0])), wanted)
    alike = {tuple(tuple(int(level[host]) for level in units) for host in order): order for order in every}
    assert found == min(lost_of(units, sizes, np.array(order), lost_s) for order in alike.values())


@pytest.mark.parametrize(
    ("dear", "least"),
    [({"cp": 9.0, "ep": 1.0}, {"cp": 0.0, "ep": 1.0}), ({"cp": 1.0, "ep": 9.0}, {"cp": 1.0, "ep": 0.0})],
)
def test_the_axis_that_loses_least_is_torn(dear: dict[str, float], least: dict[str, float]) -> None:
    """Racks of three and four hold two triples, or three pairs, not both: seconds say which are whole."""
    units, sizes = (np.array([0, 0, 0, 1, 1, 1, 1]),), {"cp": 3, "ep": 2}

    def lost_s(axis: str, torn: tuple[bool, ...]) -> float:
        return dear[axis] * sum(torn)

    order = choose_hosts(units, sizes, 6, lost_s)
    assert {axis: lost_of(units, {axis: size}, order, lost_s) for axis, size in sizes.items()} == least
    assert least_lost(units, sizes, 6, lost_s) == 0.0
