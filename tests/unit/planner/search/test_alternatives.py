"""What is said about the plans beside the best one."""

from dataclasses import replace

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.pipeline.stage_costs import StageCosts, StageSplit
from costmodel.training.bands import tie_ratio
from planner.bounds.objective import goal_of
from planner.plan import Plan, PlanRequest, problem_of
from planner.search.alternatives import difference
from planner.search.candidates import Choice
from planner.search.search import search
from planner.search.state import Search
from topology.base.units import GIB
from topology.builders import default_cluster

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


def other(*, recomputed: tuple[int, int] = (0, 0), **changes: object) -> Choice:
    """The best plan with some fields of its layout changed, and 10 GiB less."""
    split = replace(BEST.split, recompute_of_stage=recomputed)
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
    found = difference(BEST, other(recompute="full", recomputed=(3, 0)))
    assert found == "recompute 3 of 16 layers instead of none; 10 GiB less memory"


def test_fields_that_decide_nothing_are_not_differences():
    """Without a pipeline there is no schedule, without replicas no ZeRO stage, without cp no exchange."""
    single = replace(BEST, layout=ParallelLayout(tp=8, zero_stage=1, cp_kind="ring"))
    same = replace(BEST, layout=ParallelLayout(tp=8, zero_stage=0, cp_kind="allgather", schedule="gpipe"))
    assert difference(single, same) == "another split of the layers; 0 GiB more memory"


def search_with(*offered: Choice) -> Search:
    """A search that was offered these choices, in this order."""
    request = PlanRequest(
        model=model("llama-3.2-1b"),
        cluster=default_cluster("h100-sxm", 8).spec,
        job=TrainingJob(sequence_length=4096, global_batch_size=64),
    )
    search = Search(
        problem=problem_of(request, load_calibration()),
        goal=goal_of(request),
        pins={},
        progress=lambda _: None,
    )
    for found in offered:
        search.offer(found)
    return search


SIMPLE = replace(BEST, layout=ParallelLayout(tp=8), step_time_s=5.0)
SPLIT = replace(BEST, layout=ParallelLayout(tp=4, pp=2), step_time_s=5.0)
LEAN = replace(SPLIT, peak_memory_bytes=SPLIT.peak_memory_bytes / 2)


@pytest.mark.parametrize(
    ("offered", "kept"),
    [((SPLIT, SIMPLE), SIMPLE), ((SIMPLE, SPLIT), SIMPLE), ((SPLIT, LEAN), LEAN), ((LEAN, SPLIT), LEAN)],
)
def test_of_plans_that_take_equally_long_the_safer_is_kept(offered: tuple[Choice, ...], kept: Choice):
    """Fewer axes first, then less memory, whatever was found first."""
    assert search_with(*offered).best == kept


def test_a_faster_plan_is_kept_however_complicated():
    """Safety decides between equals only."""
    faster = replace(SPLIT, step_time_s=4.999)
    assert search_with(SIMPLE, faster).best == faster


def test_the_emptiest_plan_is_proven_so() -> None:
    """The plan of most headroom ties with the fastest; less memory than proven holds none that does."""
    request = PlanRequest(
        model=model("llama-3.1-8b"),
        cluster=default_cluster("h100-sxm", 8).spec,
        job=TrainingJob(sequence_length=8192, global_batch_size=64),
    )
    fastest, emptiest = search(request), search(replace(request, objective="memory"))
    assert isinstance(fastest, Plan)
    assert isinstance(emptiest, Plan)
    capacity, bound_bytes = (
        problem_of(request, load_calibration()).cluster.gpu.memory_bytes,
        emptiest.optimality.bound_bytes,
    )
    assert bound_bytes is not None
    assert bound_bytes <= emptiest.estimate.peak_memory_bytes < fastest.estimate.peak_memory_bytes
    longest_s = fastest.estimate.step_time_s * tie_ratio()
    assert emptiest.estimate.step_time_s <= longest_s
    assert emptiest.optimality.gap == pytest.approx(1 - bound_bytes / emptiest.estimate.peak_memory_bytes)
    assert emptiest.optimality.gap <= 0.02
    tighter = search(replace(request, memory_headroom=1 - bound_bytes / capacity))
    assert not isinstance(tighter, Plan) or tighter.estimate.step_time_s > longest_s


def test_alternatives_are_the_best_of_their_degrees_and_skip_none() -> None:
    """Each is what a search pinned to its degrees finds, and no other degrees would have been faster.

    To half a percent: of every combination of degrees, only the variant of the least bound is split.
    """
    request = PlanRequest(
        model=model("llama-3.1-8b"),
        cluster=default_cluster("h100-sxm", 8).spec,
        job=TrainingJob(sequence_length=8192, global_batch_size=64),
    )
    each = (1, 2, 4, 8)
    degrees = [(tp, pp, cp) for tp in each for pp in each for cp in each if tp * pp * cp <= 8]
    pinned = [search(replace(request, pins={"tp": tp, "pp": pp, "cp": cp})) for tp, pp, cp in degrees]
    fastest = sorted(found.estimate.step_time_s for found in pinned if isinstance(found, Plan))
    plan = search(request)
    assert isinstance(plan, Plan)
    shown = [plan.estimate.step_time_s, *(other.step_time_s for other in plan.alternatives)]
    assert shown == pytest.approx(fastest[: len(shown)], rel=5e-3)
    assert len(shown) == request.top
