"""Splits wider than the dynamic program's table: its bound holds for those too."""

import itertools
from random import Random

import pytest

from costmodel.pipeline.stage_costs import StageCosts, StageSplit, step_time
from planner.stages.dynamic_program import bound_stages

LAYERS, RANKS = 18, 5
"""The table ends at 2·⌈18/5⌉ + 3 = 11 layers a rank; a rank may take 14."""


def costs(r: Random) -> StageCosts:
    """A pipeline of few microbatches whose first rank has a long tail that layers hide, and memory to spare."""
    return StageCosts(
        runs=(LAYERS,),
        layer_s=(r.uniform(0.01, 0.2),),
        recompute_s=(0.0,),
        static_bytes=(1.0,),
        saved_bytes=(1.0,),
        saved_bytes_recomputed=(1.0,),
        fixed_s=tuple(r.choice((0.0, 0.5, 2.0)) for _ in range(RANKS)),
        fixed_static_bytes=(0.0,) * RANKS,
        fixed_activation_bytes=(0.0,) * RANKS,
        in_flight=(1.0,) * RANKS,
        working_bytes=0.0,
        recompute_working_bytes=(0.0,) * RANKS,
        tail_layer_s=((0.0,), (-r.uniform(0.0, 1.0),)),
        tail_fixed_s=((0.0,) * RANKS, tuple(r.choice((0.0, 0.0, 20.0)) for _ in range(RANKS))),
        num_microbatches=r.choice((1, 1, 2, 3)),
        bubble_weight=r.choice((1.0, 1.0, 0.3)),
        constant_s=0.0,
        capacity_bytes=1e9,
    )


@pytest.mark.parametrize("number", range(60))
def test_no_split_however_wide_beats_the_bound(number: int) -> None:
    """Every composition of 18 layers over 5 ranks takes at least the bound."""
    one = costs(Random(number))
    cuts = itertools.combinations(range(1, LAYERS), RANKS - 1)
    sizes = (tuple(b - a for a, b in itertools.pairwise((0, *cut, LAYERS))) for cut in cuts)
    splits = (
        StageSplit(layers_of_stage=tuple((n,) for n in size), recompute_of_stage=(0,) * RANKS)
        for size in sizes
    )
    best_s = min(step_time(one, split) for split in splits)
    assert bound_stages(one, tuple(range(RANKS))).bound_s <= best_s * (1 + 1e-12)
