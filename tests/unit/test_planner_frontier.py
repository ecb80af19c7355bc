"""What is said about the plans beside the best one."""

from dataclasses import replace

from costmodel.layout import ParallelLayout
from costmodel.stage_costs import StageCosts, StageSplit
from planner.candidates import Choice
from planner.frontier import difference, pareto
from topology.units import GIB

COSTS = StageCosts(
    runs=(16,),
    layer_s=(0.01,),
    recompute_s=(0.003,),
    static_bytes=(GIB,),
    saved_bytes=(GIB,),
    saved_bytes_recomputed=(0.0,),
    fixed_s=(0.0, 0.0),
    fixed_static_bytes=(0.0, 0.0),
    fixed_activation_bytes=(0.0, 0.0),
    in_flight=(2.0, 1.0),
    working_bytes=0.0,
    recompute_working_bytes=(0.0, 0.0),
    tail_layer_s=((0.0,),),
    tail_fixed_s=((0.0, 0.0),),
    num_microbatches=8,
    bubble_weight=1.0,
    constant_s=0.0,
    capacity_bytes=80.0 * GIB,
)
BEST = Choice(
    costs=COSTS,
    layout=ParallelLayout(tp=4, pp=2, dp=4, zero_stage=1),
    split=StageSplit(layers_of_stage=((8,), (8,)), recompute_of_stage=(0, 0)),
    step_time_s=1.0,
    peak_memory_bytes=60.0 * GIB,
)


def other(*, again: tuple[int, int] = (0, 0), **changes: object) -> Choice:
    """The best plan with some fields of its layout changed, and 10 GiB less."""
    split = replace(BEST.split, recompute_of_stage=again)
    layout = replace(BEST.layout, **changes)
    return replace(BEST, layout=layout, split=split, peak_memory_bytes=50.0 * GIB)


def test_shard_degree_exchange_schedule_and_order_are_part_of_the_difference():
    """No field that changes the plan is left out of the words."""
    assert difference(BEST, other(zero_stage=3, shard_degree=2)) == (
        "zero stage 3 instead of 1, shard degree 2 instead of all; 10 GiB less memory"
    )
    assert difference(BEST, other(sequence_parallel=True, schedule="zb-h1")) == (
        "sequence parallelism on instead of off, schedule zb-h1 instead of 1f1b; 10 GiB less memory"
    )
    assert difference(BEST, other(axis_order=("dp", "pp", "cp", "tp"))) == (
        "order of axes dp-pp-tp instead of default; 10 GiB less memory"
    )


def test_recomputation_is_told_in_layers():
    """A plan that recomputes three of sixteen layers does not read as one that recomputes all."""
    found = difference(BEST, other(recompute="full", again=(3, 0)))
    assert found == "recompute 3 of 16 layers instead of none; 10 GiB less memory"


def test_fields_that_decide_nothing_are_not_differences():
    """Without a pipeline there is no schedule, without replicas no ZeRO stage, without cp no exchange."""
    single = replace(BEST, layout=ParallelLayout(tp=8, zero_stage=1, cp_kind="ring"))
    same = replace(BEST, layout=ParallelLayout(tp=8, zero_stage=0, cp_kind="allgather", schedule="gpipe"))
    assert difference(single, same) == "another split of the layers; 0 GiB more memory"


def test_only_points_that_nothing_beats_are_on_the_frontier():
    """A point stays when it is best in some cost, and equal points stay together."""
    assert pareto("abcd", [(1, 9), (5, 2), (6, 9), (5, 2)]) == ["a", "b", "d"]
