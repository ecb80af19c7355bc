"""Placements of hosts against every permutation, and against what no placement can beat."""

import itertools
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.counts import tries
from topology.fabric.packing import Counts, least_spanning, packed, spanning


@st.composite
def trees(draw: st.DrawFn, most: int) -> tuple[tuple[Counts, ...], list[int]]:
    """Leaves of any sizes below spines of any, and runs of which one divides the other."""
    wanted = draw(st.integers(2, most))
    spines = sorted(draw(st.lists(st.integers(0, 3), min_size=wanted, max_size=wanted)))
    leaves = [4 * spine + draw(st.integers(0, 3)) for spine in spines]
    chain: list[int] = []
    for size in range(2, wanted + 1):
        if wanted % size == 0 and size % (chain[-1] if chain else 1) == 0 and draw(st.booleans()):
            chain.append(size)
    units = [np.unique(names, return_inverse=True)[1] for names in (sorted(leaves), spines)]
    return tuple(units), chain


@settings(max_examples=tries(20, 60), deadline=None)
@given(trees(7))
def test_no_permutation_has_fewer_runs_that_span_units(tree: tuple[tuple[Counts, ...], list[int]]) -> None:
    """At every level and of every size at once, though each is minimised over all permutations alone."""
    units, sizes = tree
    order = packed(units, sizes, len(units[0]))
    assert sorted(order) == list(range(len(order)))
    every = np.array(list(itertools.permutations(range(len(order)))))
    for level in units:
        for size in sizes:
            runs = level[every].reshape(len(every), -1, size)
            best = (runs != runs[:, :, :1]).any(2).sum(1).min()
            assert spanning(order, level, size) == best == least_spanning(level, size, len(order))


@settings(max_examples=tries(70, 200), deadline=None)
@given(trees(400))
def test_the_bound_is_reached_on_any_tree(tree: tuple[tuple[Counts, ...], list[int]]) -> None:
    """Each unit holds as many whole runs as it has room for."""
    units, sizes = tree
    order = packed(units, sizes, len(units[0]))
    for level, size in itertools.product(units, sizes):
        assert spanning(order, level, size) == least_spanning(level, size, len(order))


@pytest.mark.parametrize(
    ("racks", "size", "torn"), [((4, 3, 3), 2, 1), ((4, 4, 2), 2, 0), ((5, 3, 2), 5, 1), ((3, 3, 4), 2, 1)]
)
def test_ten_pods_in_three_racks(racks: Sequence[int], size: int, torn: int) -> None:
    """Against every way to give each run its pods of each rack: pods of a rack are alike."""
    units = np.repeat(np.arange(3), racks)

    def least(left: tuple[int, ...]) -> int:
        if not sum(left):
            return 0
        takes = [t for t in itertools.product(*(range(n + 1) for n in left)) if sum(t) == size]
        return min(
            (max(take) < size) + least(tuple(n - k for n, k in zip(left, take, strict=True)))
            for take in takes
        )

    assert spanning(packed([units], [size], 10), units, size) == least(tuple(racks)) == torn


def test_sixteen_thousand_gpus_with_nodes_missing() -> None:
    """2,048 nodes of which one in twenty is gone: racks of 16, pods of 128; seconds, and nothing to gain."""
    rng = np.random.default_rng(7)
    kept = np.sort(rng.permutation(2048)[:1920])
    units = tuple(np.unique(kept // size, return_inverse=True)[1] for size in (16, 128))
    started = time.process_time()
    order = packed(units, [4, 16, 64], 1920)
    assert time.process_time() - started < 5.0
    for level, size in itertools.product(units, (4, 16, 64)):
        assert spanning(order, level, size) == least_spanning(level, size, 1920)
