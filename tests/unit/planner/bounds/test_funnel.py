"""Each step of the funnel leaves out less than the step before: no layout beats the bound of what it came from."""

import numpy as np
import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout, Schedule, num_microbatches
from costmodel.models.catalog import model
from planner.bounds.funnel import (
    columns_of,
    core_times,
    cut_times,
    least_bubble,
    placed_times,
    smallest_bubble,
    step_bound,
)
from planner.bounds.priced import price
from planner.bounds.ranks import plain_bounds
from planner.plan import PlanRequest
from planner.problem import Setting, setting_of
from topology.builders import default_cluster

CAL = load_calibration()
SCHEDULES: tuple[tuple[Schedule, int], ...] = (("1f1b", 1), ("interleaved", 2), ("zbv", 2), ("dualpipev", 2))


def setting(name: str, stack: str) -> Setting:
    """Four nodes of H100."""
    job = TrainingJob(sequence_length=8192, global_batch_size=64)
    cluster = default_cluster("h100-sxm", 32).spec
    return setting_of(PlanRequest(model=model(name), cluster=cluster, job=job, stack=stack))


def layouts(experts: bool) -> LayoutTable:
    """Pipelines of every schedule, with and without sharded state, experts near and far."""
    return LayoutTable.of([
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
    s, table = setting(name, stack), layouts(model(name).is_moe)
    M, degrees = num_microbatches(table, s.job), columns_of(table)
    cut_s, core_s = (
        step_bound(s, times(s, table, CAL), degrees, M, smallest_bubble(s, {}, table.pp))
        for times in (cut_times, core_times)
    )
    placed_s = step_bound(s, placed_times(s, table, CAL), degrees, M, least_bubble(table))
    for earlier, later in (
        (cut_s, core_s),
        (core_s, placed_s),
        (placed_s, plain_bounds(s, price(s, table, CAL))),
    ):
        assert np.all(earlier <= later * (1 + 1e-9))
        assert np.all(earlier > 0)
