"""What must hold between the score of a layout, its costs for the stage solver, and its full estimate."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.layout import RECOMPUTES, LayoutTable, ParallelLayout, Schedule
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec
from costmodel.pipeline.even_split import even_split
from costmodel.pipeline.stage_costs import (
    PHASES,
    StageSplit,
    fits_capacity,
    memory_of_stages,
    step_phases,
    step_time,
)
from costmodel.stack import SoftwareStack, stack
from costmodel.training.breakdown import deciding_ranks, step_seconds
from costmodel.training.constants import default_constants
from costmodel.training.estimate import estimate
from costmodel.training.parts import PARTS
from costmodel.training.raw_times import features_of
from costmodel.training.score import evaluate
from costmodel.training.stages import stage_costs
from costmodel.training.step_time import CostColumns, compose
from planner.bounds.priced import priced_columns
from planner.bounds.ranks import plain_bounds
from planner.plan import Problem
from tests.counts import tries
from topology.builders import default_cluster
from topology.cluster import Cluster

CAL: Calibration = load_calibration()
LAST_BITS = 1e-14  # relative: tens of roundings of a double
JOB = TrainingJob(sequence_length=4096, global_batch_size=64)
DENSE = ModelSpec(
    name="small", num_layers=7, hidden_size=2048, intermediate_size=5632, num_attention_heads=16,
    num_key_value_heads=8, head_dim=128, vocab_size=128_000, max_sequence_length=4096,
)  # fmt: skip
SPARSE = ModelSpec(
    name="small-moe", num_layers=6, hidden_size=2048, intermediate_size=8192, num_attention_heads=16,
    num_key_value_heads=8, head_dim=128, vocab_size=32_000, max_sequence_length=4096, num_experts=8,
    num_experts_per_token=2, moe_intermediate_size=1408, num_dense_layers=2,
)  # fmt: skip


PIPELINES: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "zb-2p", "v-half")


@st.composite
def layouts(draw: st.DrawFn) -> ParallelLayout:
    """Layouts of 16 GPUs that a pipeline of at most four ranks can run."""
    tp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3, 4]))
    schedule = draw(st.sampled_from(PIPELINES)) if pp > 1 else "1f1b"
    dp = draw(st.sampled_from([1, 2, 4]))
    return ParallelLayout(
        tp=tp,
        pp=pp,
        dp=dp,
        ep=draw(st.sampled_from([1, dp])),
        cp=draw(st.sampled_from([1, 2])),
        virtual_stages=2 if schedule in ("interleaved", "zbv", "v-half") and pp > 1 else 1,
        microbatch_size=draw(st.sampled_from([1, 2])),
        schedule=schedule,
        zero_stage=draw(st.sampled_from([0, 1, 2, 3])),
        recompute=draw(st.sampled_from(RECOMPUTES)),
        sequence_parallel=tp > 1,
    )


def splits(runs: Sequence[int], layout: ParallelLayout) -> Iterator[StageSplit]:
    """Every split that gives each rank at least one layer per chunk, in model order, nothing recomputed."""
    total, least = sum(runs), layout.virtual_stages
    for cuts in itertools.combinations(range(1, total), layout.pp - 1):
        edges = [0, *cuts, total]
        sizes = [b - a for a, b in itertools.pairwise(edges)]
        if min(sizes) < least:
            continue
        firsts = [min(runs[0], b) - min(runs[0], a) for a, b in itertools.pairwise(edges)]
        rows = [
            (n,) if len(runs) == 1 else (first, n - first) for n, first in zip(sizes, firsts, strict=True)
        ]
        yield StageSplit(layers_of_stage=tuple(rows), recompute_of_stage=(0,) * layout.pp)


def lower_bounds(
    spec: ModelSpec, cluster: Cluster, engine: SoftwareStack, layouts: list[ParallelLayout]
) -> list[float]:
    """What no split of each layout can beat."""
    problem = Problem(case=Case(model=spec, cluster=cluster, job=JOB, stack=engine, cal=CAL))
    return plain_bounds(problem, priced_columns(problem, LayoutTable.from_rows(layouts))).tolist()


@settings(max_examples=tries(20, 60), deadline=None)
@given(layout=layouts(), spec=st.sampled_from([DENSE, SPARSE]))
def test_score_costs_and_estimate_are_one_number(layout: ParallelLayout, spec: ModelSpec) -> None:
    """Evaluate = step_time of stage_costs = estimate, for time and for peak memory, under the even split."""
    cluster, engine = default_cluster("h100-sxm", 96), stack("ideal")
    scores = evaluate(
        Case(model=spec, cluster=cluster, job=JOB, stack=engine, cal=CAL), LayoutTable.from_rows([layout])
    )
    costs = stage_costs(Case(model=spec, cluster=cluster, job=JOB, stack=engine, cal=CAL), layout)
    split = even_split(costs.runs, layout)
    found = estimate(Case(model=spec, cluster=cluster, job=JOB, stack=engine, cal=CAL), layout)
    assert found.step_time_s == step_time(costs, split)
    assert scores.step_time_s[0] == pytest.approx(found.step_time_s, rel=1e-12)
    assert scores.peak_memory_bytes[0] == pytest.approx(found.peak_memory_bytes, rel=1e-9)
    assert memory_of_stages(costs, split).max() == pytest.approx(found.peak_memory_bytes, rel=1e-9)


@settings(max_examples=tries(20, 60), deadline=None)
@given(layout=layouts(), spec=st.sampled_from([DENSE, SPARSE]))
def test_no_split_beats_the_lower_bound(layout: ParallelLayout, spec: ModelSpec) -> None:
    """The bound is at most the exhaustive minimum over all splits; recomputing more only adds time."""
    cluster, engine = default_cluster("h100-sxm", 96), stack("torchtitan")
    bound = lower_bounds(spec, cluster, engine, [layout])[0]
    costs = stage_costs(Case(model=spec, cluster=cluster, job=JOB, stack=engine, cal=CAL), layout)
    best = min((step_time(costs, split) for split in splits(costs.runs, layout)), default=np.inf)
    assert bound <= best
    assert min(costs.recompute_s) >= 0
    if np.isfinite(best):
        assert bound >= (0.8 if spec is DENSE else 0.6) * best


@settings(max_examples=tries(15, 40), deadline=None)
@given(layout=layouts(), spec=st.sampled_from([DENSE, SPARSE]))
def test_parts_of_an_estimate_sum_and_are_not_negative(layout: ParallelLayout, spec: ModelSpec) -> None:
    """The parts of time sum to the step, the band holds it, and the parts of memory sum to the peak."""
    found = estimate(
        Case(
            model=spec,
            cluster=default_cluster("h100-sxm", 96),
            job=JOB,
            stack=stack("megatron-core"),
            cal=CAL,
        ),
        layout,
    )
    assert found.time.total_s == pytest.approx(found.step_time_s, rel=LAST_BITS)
    parts = [getattr(found.time, name) for name in found.time.__slots__ if name != "hidden_s"]
    assert min(parts) >= -1e-9 * found.step_time_s
    assert found.time.compute_s > 0
    assert found.lower_s < found.step_time_s < found.upper_s
    assert found.peak_memory_bytes == max(stage.total_bytes for stage in found.memory_by_stage)
    assert 0 < found.mfu <= found.hfu < 1


SECONDS = tuple(
    name
    for name in CostColumns.names()
    if name
    not in ("num_microbatches", "bubble_weight", "forward_share", "weight_share", "stretch", "host_share")
)


@settings(max_examples=tries(15, 40), deadline=None)
@given(
    some=st.lists(layouts(), min_size=1, max_size=4),
    spec=st.sampled_from([DENSE, SPARSE]),
    engine=st.sampled_from(["torchtitan", "megatron-core", "megatron-lm-2022"]),
    job=st.sampled_from([JOB, replace(JOB, mtp_layers=1), replace(JOB, precision="fp8")]),
)
def test_costs_are_the_sum_of_their_parts(
    some: list[ParallelLayout], spec: ModelSpec, engine: str, job: TrainingJob
) -> None:
    """Composed by part, every array of seconds sums to the one that the search reads, for many layouts."""
    case = Case(model=spec, cluster=default_cluster("h100-sxm", 96), job=job, stack=stack(engine), cal=CAL)
    features, c = features_of(case, LayoutTable.from_rows(some)), default_constants()
    whole, parts = compose(features, c), compose(features, c, by_part=True)
    for name in SECONDS:
        total, apart = getattr(whole, name), getattr(parts, name)
        assert apart.shape == (len(PARTS), *np.shape(total))
        assert np.abs(apart.sum(axis=0) - total).max() <= LAST_BITS * np.abs(apart).max(), name


@settings(max_examples=tries(15, 40), deadline=None)
@given(layout=layouts(), spec=st.sampled_from([DENSE, SPARSE]))
def test_phases_and_parts_are_one_array(layout: ParallelLayout, spec: ModelSpec) -> None:
    """Summed over parts it is what the step is the sum of; each phase holds its own parts alone."""
    case = Case(
        model=spec, cluster=default_cluster("h100-sxm", 96), job=JOB, stack=stack("torchtitan"), cal=CAL
    )
    features, costs = features_of(case, LayoutTable.from_rows([layout])), stage_costs(case, layout)
    split = even_split(costs.runs, layout)
    deciding = deciding_ranks(costs, split)
    seconds = step_seconds([features], default_constants(), costs, split, deciding)
    phases = step_phases(costs, split)
    assert seconds.sum(axis=1).tolist() == pytest.approx(phases, rel=LAST_BITS)
    assert sum(phases) == step_time(costs, split)
    shown = {
        phase: {part for part, s in zip(PARTS, row, strict=True) if s}
        for phase, row in zip(PHASES, seconds, strict=True)
    }
    assert shown["fill"] <= {"bubble_s"}
    assert shown["tail"] <= {"dp_s", "optimizer_s"}
    assert shown["once"] <= {"pp_s", "host_s"}
    assert shown["microbatches"].isdisjoint({"bubble_s", "optimizer_s", "pp_s"})


def test_a_table_scores_its_rows_alike_together_or_alone() -> None:
    """Layouts share evaluations; sharing changes no row."""
    layouts = [
        ParallelLayout(tp=tp, pp=pp, dp=dp, zero_stage=z, recompute=r, sequence_parallel=tp > 1)
        for tp, pp, dp, z, r in itertools.product((1, 2), (1, 3), (1, 2), (0, 3), RECOMPUTES)
    ]
    cluster, engine = default_cluster("a100-sxm-80gb", 96), stack("torchtitan")
    together = evaluate(
        Case(model=DENSE, cluster=cluster, job=JOB, stack=engine, cal=CAL), LayoutTable.from_rows(layouts)
    )
    alone = [
        evaluate(
            Case(model=DENSE, cluster=cluster, job=JOB, stack=engine, cal=CAL),
            LayoutTable.from_rows([layout]),
        )
        for layout in layouts
    ]
    assert together.step_time_s.tolist() == pytest.approx([float(s.step_time_s[0]) for s in alone], rel=1e-12)
    bounds = [lower_bounds(DENSE, cluster, engine, [layout])[0] for layout in layouts]
    assert lower_bounds(DENSE, cluster, engine, layouts) == pytest.approx(bounds, rel=1e-12)


def test_many_cuts_share_their_look_ups_and_none_is_changed() -> None:
    """Enough cuts for `op_times` to look up distinct matrix products only: each is what it is alone."""
    many = [
        ParallelLayout(
            tp=tp, dp=dp, cp=cp, ep=ep, microbatch_size=size, cp_kind=kind, sequence_parallel=tp > 1
        )
        for tp, dp, cp, ep, size in itertools.product((1, 2, 4), (4, 8), (1, 2), (1, 2, 4), (1, 2, 4))
        for kind in (("ring", "allgather") if cp > 1 else ("ring",))
    ]
    cluster, engine = default_cluster("h100-sxm", 64), stack("megatron-core")
    together = evaluate(
        Case(model=SPARSE, cluster=cluster, job=JOB, stack=engine, cal=CAL), LayoutTable.from_rows(many)
    )
    chosen = range(0, len(many), 11)
    alone = [
        evaluate(
            Case(model=SPARSE, cluster=cluster, job=JOB, stack=engine, cal=CAL),
            LayoutTable.from_rows([many[i]]),
        )
        for i in chosen
    ]
    expected = [float(each.step_time_s[0]) for each in alone]
    assert together.step_time_s[list(chosen)].tolist() == pytest.approx(expected, rel=1e-12)


def test_time_is_continuous_in_sequence_length() -> None:
    """Sixteen tokens more change the step by less than one per cent, and never shorten it by a tenth of one."""
    spec, cluster, engine = model("llama-3.1-8b"), default_cluster("h100-sxm", 8), stack("megatron-core")
    layout = ParallelLayout(tp=2, dp=4, zero_stage=1, sequence_parallel=True)
    jobs = [TrainingJob(sequence_length=4096 + 16 * step, global_batch_size=32) for step in range(20)]
    times = [
        estimate(Case(model=spec, cluster=cluster, job=job, stack=engine, cal=CAL), layout).step_time_s
        for job in jobs
    ]
    assert all(-0.001 < b / a - 1 < 0.01 for a, b in itertools.pairwise(times))
    assert times[-1] > times[0]


@settings(max_examples=tries(10, 25), deadline=None)
@given(layout=layouts(), factor=st.sampled_from([1.5, 4.0]))
def test_a_faster_network_never_lengthens_a_step(layout: ParallelLayout, factor: float) -> None:
    """Scaling the NICs up never makes the step longer."""
    slow = default_cluster("h100-sxm", 96, nic_bandwidth_bytes_per_s=25e9)
    fast = default_cluster("h100-sxm", 96, nic_bandwidth_bytes_per_s=25e9 * factor)
    times = [
        estimate(
            Case(model=DENSE, cluster=c, job=JOB, stack=stack("megatron-core"), cal=CAL), layout
        ).step_time_s
        for c in (slow, fast)
    ]
    assert times[1] <= times[0] * (1 + 1e-9)


def test_tight_memory_is_seen() -> None:
    """A 70B model does not fit one GPU, and the costs say so."""
    cluster, engine = default_cluster("h100-sxm", 8), stack("megatron-core")
    layout = ParallelLayout(dp=8, zero_stage=1, recompute="full")
    costs = stage_costs(Case(model=model("70b"), cluster=cluster, job=JOB, stack=engine, cal=CAL), layout)
    assert not fits_capacity(costs, even_split(costs.runs, layout))


def test_fewer_than_forty_constants_are_shared_by_all_runs() -> None:
    """Few, physical constants: at most forty."""
    assert len(default_constants().__slots__) <= 40
