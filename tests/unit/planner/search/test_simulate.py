"""Plans are timed twice: by the closed form that is searched, and by playing the schedule."""

from dataclasses import replace

import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout, Schedule
from costmodel.models.catalog import model
from costmodel.pipeline.even_split import even_split
from costmodel.pipeline.schedules import RECORDS
from costmodel.pipeline.simulate import simulated_step_s
from costmodel.pipeline.stage_costs import StageCosts, StageSplit, step_time
from costmodel.stack import stack
from costmodel.training.stages import stage_costs
from topology.builders import default_cluster

CAL = load_calibration()
JOB = TrainingJob(sequence_length=8192, global_batch_size=512)


@pytest.mark.parametrize(
    "layout",
    [
        ParallelLayout(tp=8, dp=4),
        ParallelLayout(tp=8, pp=4),
        ParallelLayout(tp=4, pp=8, microbatch_size=2),
        ParallelLayout(tp=8, pp=4, virtual_stages=5, schedule="interleaved"),
        ParallelLayout(tp=8, pp=4, virtual_stages=3, schedule="interleaved"),
    ],
)
def test_the_closed_form_agrees_with_the_event_simulation(layout: ParallelLayout) -> None:
    """For plain, pipelined and interleaved layouts both times are within one per cent."""
    spec = model("llama-3.1-70b")
    costs = stage_costs(
        Case(
            model=spec,
            cluster=default_cluster("h100-sxm", 32),
            job=JOB,
            stack=stack("megatron-core"),
            cal=CAL,
        ),
        layout,
    )
    split = even_split((80,), layout)
    assert simulated_step_s(costs, layout, split) == pytest.approx(step_time(costs, split), rel=0.01)


def split_backward(
    schedule: Schedule, global_batch_size: int
) -> tuple[ParallelLayout, StageCosts, StageSplit]:
    """70B on eight ranks under a schedule that splits the backward, its costs and its even split."""
    job = TrainingJob(sequence_length=8192, global_batch_size=global_batch_size)
    layout = ParallelLayout(tp=4, pp=8, virtual_stages=RECORDS[schedule].chunks or 2, schedule=schedule)
    cluster = default_cluster("h100-sxm", 32)
    costs = stage_costs(
        Case(model=model("llama-3.1-70b"), cluster=cluster, job=job, stack=stack("ideal"), cal=CAL), layout
    )
    return layout, costs, even_split((80,), layout)


FEW_MICROBATCHES = [
    ("zb-h1", 8), ("zb-h1", 12), ("zbv", 8), ("zbv", 12), ("zbv", 64), ("dualpipev", 16), ("zb-2p", 16),
    ("zb-2p", 64), ("v-half", 8), ("v-half", 12), ("v-half", 64),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "global_batch_size"), FEW_MICROBATCHES)
def test_split_backwards_agree_exactly_on_equal_ranks(schedule: Schedule, global_batch_size: int) -> None:
    """The passes of a real layer, no ends, down to one microbatch per rank: the same number."""
    layout, costs, split = split_backward(schedule, global_batch_size)
    equal = replace(costs, fixed_s=(0.0,) * layout.pp)
    assert simulated_step_s(equal, layout, split) == pytest.approx(step_time(equal, split), rel=1e-9)


@pytest.mark.parametrize(("schedule", "global_batch_size"), FEW_MICROBATCHES)
def test_split_backwards_are_never_promised_too_fast(schedule: Schedule, global_batch_size: int) -> None:
    """With the head on one rank the others wait for it and their bubbles shrink: the closed form is above."""
    layout, costs, split = split_backward(schedule, global_batch_size)
    simulated_s, closed_s = simulated_step_s(costs, layout, split), step_time(costs, split)
    assert simulated_s <= closed_s <= 1.08 * simulated_s
