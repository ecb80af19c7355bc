"""Splits wider than the dynamic program's table: its bound holds for those too, and is of layers in a row."""

import itertools
import math
from dataclasses import replace
from random import Random

import pytest

from costmodel.pipeline.stage_costs import StageCosts, StageSplit, step_time
from planner.stages.dynamic_program import bound_stages, wider_bound
from tests.counts import tries
from tests.oracle.planner.stages.test_stages import rows_of

LAYERS, RANKS = 18, 5
"""The table ends at 2·⌈18/5⌉ + 3 = 11 layers a rank; a rank may take 14."""
WIDTH = 11
MB = 1e6


def costs(r: Random) -> StageCosts:
    """A pipeline of few microbatches whose first rank has a long tail that layers hide, and memory to spare.

    Every other one has layers of three kinds in any order, some a hundred times as long as others.
    """
    kinds = [r.randrange(3) for _ in range(LAYERS)] if r.random() < 0.5 else [0] * LAYERS
    runs = tuple(kinds.count(kind) for kind in range(max(kinds) + 1))
    per_kind = range(len(runs))
    return StageCosts(
        runs=runs,
        order=tuple((kind, len(list(same))) for kind, same in itertools.groupby(kinds)),
        layer_s=tuple(10 ** r.uniform(-2, 0) for _ in per_kind),
        recompute_s=(0.0,) * len(runs),
        static_bytes=(1.0,) * len(runs),
        saved_bytes=(1.0,) * len(runs),
        saved_bytes_recomputed=(1.0,) * len(runs),
        fixed_s=tuple(r.choice((0.0, 0.5, 2.0)) for _ in range(RANKS)),
        fixed_static_bytes=(0.0,) * RANKS,
        fixed_activation_bytes=(0.0,) * RANKS,
        in_flight=(1.0,) * RANKS,
        working_bytes=0.0,
        recompute_working_bytes=(0.0,) * RANKS,
        tail_layer_s=((0.0,) * len(runs), tuple(-r.uniform(0.0, 1.0) for _ in per_kind)),
        tail_fixed_s=((0.0,) * RANKS, tuple(r.choice((0.0, 0.0, 20.0)) for _ in range(RANKS))),
        num_microbatches=r.choice((1, 1, 2, 3)),
        bubble_weight=r.choice((1.0, 1.0, 0.3)),
        constant_s=0.0,
        capacity_bytes=1e9,
    )


def splits(one: StageCosts, *, wider: bool = False) -> list[StageSplit]:
    """Every composition of 18 layers over 5 ranks, or those with a rank of more layers than the table has."""
    cuts = itertools.combinations(range(1, LAYERS), RANKS - 1)
    sizes = (tuple(b - a for a, b in itertools.pairwise((0, *cut, LAYERS))) for cut in cuts)
    return [
        StageSplit(layers_of_stage=rows_of(one, tuple(range(RANKS)), size), recompute_of_stage=(0,) * RANKS)
        for size in sizes
        if not wider or max(size) > WIDTH
    ]


@pytest.mark.parametrize("number", range(tries(10, 60)))
def test_no_split_however_wide_beats_the_bound(number: int) -> None:
    """Every composition of 18 layers over 5 ranks takes at least the bound."""
    one = costs(Random(number))
    best_s = min(step_time(one, split) for split in splits(one))
    assert bound_stages(one, tuple(range(RANKS))).bound_s <= best_s * (1 + 1e-12)


@pytest.mark.parametrize("number", range(tries(10, 30)))
def test_the_bound_of_wider_ranks_holds_and_counts_the_layers_that_are_in_a_row(number: int) -> None:
    """It holds for all, and where nothing but the widest rank decides, it is the least of the kinds there."""
    one = costs(Random(number))
    wide = splits(one, wider=True)
    assert wider_bound(one, WIDTH) <= min(step_time(one, split) for split in wide) * (1 + 1e-12)
    alone = replace(
        one,
        bubble_weight=0.0,
        fixed_s=(0.0,) * RANKS,
        tail_layer_s=((0.0,) * len(one.runs),),
        tail_fixed_s=((0.0,) * RANKS,),
        num_microbatches=1,
    )
    narrowest = [split for split in wide if max(map(sum, split.layers_of_stage)) == WIDTH + 1]
    rows = {row for split in narrowest for row in split.layers_of_stage if sum(row) > WIDTH}
    least_s = min(sum(n * t for n, t in zip(row, one.layer_s, strict=True)) for row in rows)
    assert wider_bound(alone, WIDTH) == pytest.approx(least_s)


def tight(r: Random) -> StageCosts:
    """The same, where most ranks have room for a layer or two and one may have for many."""
    one = costs(r)
    many = r.randrange(RANKS)
    room = [r.randint(8, 16) if rank == many else r.choice((1, 1, 1, 2)) for rank in range(RANKS)]
    frees = r.random() < 0.5
    return replace(
        one,
        capacity_bytes=40 * MB,
        static_bytes=(MB,) * len(one.runs),
        saved_bytes=(MB,) * len(one.runs),
        fixed_static_bytes=tuple((39.9 - (1.3 if frees else 2.0) * layers) * MB for layers in room),
        saved_bytes_recomputed=((0.3 if frees else 1.0) * MB,) * len(one.runs),
        recompute_s=tuple(10 ** r.uniform(-3, -1) for _ in one.runs),
    )


def fits(one: StageCosts, most: int) -> bool:
    """Whether ranks that take up to so many layers hold all of them: sums that can be made, rank by rank."""
    each_bytes = one.static_bytes[0] + one.saved_bytes_recomputed[0]
    sums = {0}
    for fixed_bytes in one.fixed_static_bytes:
        held = [n for n in range(1, most + 1) if fixed_bytes + n * each_bytes <= one.capacity_bytes]
        sums = {total + n for total in sums for n in held}
    return LAYERS in sums


def test_a_table_is_widened_wherever_something_wider_fits() -> None:
    """Where no rank takes the widest choice none takes more: the bound is finite where some split fits."""
    said = set()
    for number in range(300):
        one = tight(Random(number))
        within, at_all = fits(one, WIDTH), fits(one, LAYERS)
        assert math.isfinite(bound_stages(one, tuple(range(RANKS))).bound_s) == at_all, number
        said.add((within, at_all))
    assert said == {(True, True), (False, True), (False, False)}
