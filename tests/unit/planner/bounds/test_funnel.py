"""Each step of the funnel leaves out less than the step before: no layout beats the bound of what it came from."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.measurement import Measurement
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout, Schedule, num_microbatches
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec
from costmodel.pipeline.stage_costs import StageSplit, memory_of_stages
from costmodel.training.stages import stage_costs
from planner.bounds.funnel import (
    best_placement_times,
    compute_times,
    degrees_of,
    least_bubble,
    neighbours_are_best,
    placed_times,
    smallest_bubble,
    smallest_memory,
    step_bound,
)
from planner.bounds.priced import priced_columns
from planner.bounds.ranks import plain_bounds
from planner.plan import PlanRequest, Problem, problem_of
from topology.builders import default_cluster

CAL = load_calibration()
SCHEDULES: tuple[tuple[Schedule, int], ...] = (("1f1b", 1), ("interleaved", 2), ("zbv", 2), ("dualpipev", 2))


def problem(name: str, stack: str) -> Problem:
    """Four nodes of H100."""
    job = TrainingJob(sequence_length=8192, global_batch_size=64)
    cluster = default_cluster("h100-sxm", 32).spec
    return problem_of(PlanRequest(model=model(name), cluster=cluster, job=job, stack=stack), CAL)


def layouts(experts: bool) -> LayoutTable:
    """Pipelines of every schedule, with and without sharded state, experts near and far."""
    return LayoutTable.from_rows([
        ParallelLayout(
            tp=tp, pp=pp, dp=32 // (tp * pp), ep=ep, schedule=schedule, virtual_stages=chunks, zero_stage=zero,
            sequence_parallel=tp > 1,
        )
        for tp in (1, 2) for pp in (2, 4) for ep in ((2, 8) if experts else (1,))
        for schedule, chunks in SCHEDULES for zero in (0, 2)
    ])  # fmt: skip


@pytest.mark.parametrize("stack", ["torchtitan", "ideal"])
@pytest.mark.parametrize("name", ["mixtral-8x7b", "llama-3.1-70b"])
def test_no_layout_beats_the_bound_of_its_cut_its_core_or_its_placement(name: str, stack: str) -> None:
    """Compute alone ≤ core ≤ placement ≤ layout, also under a schedule that hides expert traffic."""
    s, table = problem(name, stack), layouts(model(name).is_moe)
    M, degrees = num_microbatches(table, s.job), degrees_of(table)
    compute_s, best_placement_s = (
        step_bound(s, times(s, table), degrees, M, smallest_bubble(s, {}, table.pp))
        for times in (compute_times, best_placement_times)
    )
    placed_s = step_bound(s, placed_times(s, table), degrees, M, least_bubble(table))
    for earlier, later in (
        (compute_s, best_placement_s),
        (best_placement_s, placed_s),
        (placed_s, plain_bounds(s, priced_columns(s, table))),
    ):
        assert np.all(earlier <= later * (1 + 1e-9))
        assert np.all(earlier > 0)


def small(**changes: object) -> ModelSpec:
    """Three layers, as wide as asked."""
    fields = {
        "name": "small", "num_layers": 3, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 32_000, "max_sequence_length": 8192,
    }  # fmt: skip
    return ModelSpec(**(fields | changes))  # type: ignore[arg-type]


def asked(spec: ModelSpec, stack: str) -> Problem:
    """This model on four H100, a microbatch of 512 tokens on each."""
    job = TrainingJob(sequence_length=512, global_batch_size=4)
    return problem_of(
        PlanRequest(model=spec, cluster=default_cluster("h100-sxm", 4).spec, job=job, stack=stack), CAL
    )


def test_a_single_microbatch_may_hold_less_than_its_activations() -> None:
    """Gradients made on demand take the place of the only microbatch's activations."""
    s = asked(small(hidden_size=4096, intermediate_size=16_384, head_dim=512), "meshplan")
    layouts = [ParallelLayout(dp=4, zero_stage=zero, recompute="full") for zero in (0, 2, 3)]
    peaks = []
    for layout in layouts:
        costs = stage_costs(s.case, layout)
        split = StageSplit(layers_of_stage=((3,),), recompute_of_stage=(0,))
        peaks.append(float(memory_of_stages(costs, split).max()))
    assert np.all(smallest_memory(s, LayoutTable.from_rows(layouts)) <= min(peaks) * (1 + 1e-9))


@pytest.mark.parametrize(
    ("what", "gpu", "bounded"),
    [
        ("gemm", "cpu", True),
        ("all_reduce", "cpu", True),
        ("gemm", "h100-sxm", True),
        ("all_reduce", "h100-sxm", False),
    ],
)
def test_measurements_of_other_machines_bound_nothing_less(what: str, gpu: str, bounded: bool) -> None:
    """Only collectives that were measured on the GPU of the problem may be faster for being spread."""
    measured = Measurement(
        what=what, cluster="c", gpu=gpu, inputs={"bytes": 1e6, "size": 2, "stride": 1}, value=1e-3, unit="s",
        repeats=3, p10=1e-3, p50=1e-3, p90=1e-3,
    )  # fmt: skip
    at = problem("llama-3.1-8b", "megatron-core")
    mine = replace(at, case=replace(at.case, cal=replace(CAL, measurements=(measured,))))
    assert neighbours_are_best(mine) is bounded
