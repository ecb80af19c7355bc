"""Engines that divide a module by transformers' own plan are not told degrees that plan does not divide by."""

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from planner.engines.accelerate import ACCELERATE
from planner.engines.contract import Contract
from planner.engines.deepspeed import DEEPSPEED
from planner.plan import PlanRequest, problem_of
from topology.builders import default_cluster


@pytest.mark.parametrize(
    ("contract", "name", "broken"),
    [
        (DEEPSPEED, "mixtral-8x7b", "experts-of-tensor-ranks"),
        (DEEPSPEED, "deepseek-v4-flash", "experts-of-tensor-ranks"),
        (ACCELERATE, "deepseek-v4-flash", "compressed-attention"),
        (ACCELERATE, "mixtral-8x7b", ""),
        (DEEPSPEED, "llama-3.1-8b", ""),
    ],
)
def test_tensor_ranks_that_the_module_does_not_have_are_refused(
    contract: Contract, name: str, broken: str
) -> None:
    """Two tensor ranks break the limit, with its numbers; one never does."""
    request = PlanRequest(
        model=model(name),
        cluster=default_cluster("h100-sxm", 8).spec,
        job=TrainingJob(sequence_length=4096, global_batch_size=64),
        stack="pytorch",
    )
    problem = problem_of(request, load_calibration())
    for tp in (1, 2):
        layout = ParallelLayout(tp=tp, dp=8 // tp, sequence_parallel=False)
        row = LayoutTable.from_rows([layout])
        found = {limit.name for limit in contract.limits if bool(limit.broken(problem, row))}
        named = found & {"experts-of-tensor-ranks", "compressed-attention"}
        assert named == ({broken} if broken and tp > 1 else set())
        for limit in contract.limits:
            if limit.name in named:
                assert "tp = 2" in limit.says(problem, layout)[0]
