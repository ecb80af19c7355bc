"""Plans are timed twice: by the closed form that is searched, and by playing the schedule."""

import pytest

from costmodel.calibration import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.model_catalog import model
from costmodel.splits import even_split
from costmodel.stack import stack
from costmodel.stage_costs import step_time
from costmodel.training import stage_costs
from costmodel.workload import TrainingJob
from planner.retime import simulated_step_s
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
    of = model("llama-3.1-70b")
    costs = stage_costs(of, default_cluster("h100-sxm", 32), JOB, stack("megatron-core"), layout, CAL)
    split = even_split((80,), layout)
    assert simulated_step_s(costs, layout, split) == pytest.approx(step_time(costs, split), rel=0.01)
