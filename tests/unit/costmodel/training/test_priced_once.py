"""A layout that was priced to split its layers is not priced for its estimate, and stands for no other."""

from dataclasses import replace

import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.training import priced
from costmodel.training.constants import default_constants
from costmodel.training.estimate import estimate
from costmodel.training.stages import stage_costs
from topology.builders import default_cluster

CASE = Case(
    model=model("llama-3.2-1b"),
    cluster=default_cluster("h100-sxm", 8),
    job=TrainingJob(sequence_length=4096, global_batch_size=64),
    stack=stack("megatron-core"),
    cal=load_calibration(),
)
SPLIT = ParallelLayout(tp=2, pp=2, dp=2, sequence_parallel=True)


def test_an_estimate_after_the_costs_of_its_stages_is_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, and what is priced is priced once."""
    alone, calls = estimate(CASE, SPLIT), []
    plain = priced.price_layouts
    monkeypatch.setattr(priced, "price_layouts", lambda *a, **k: calls.append(a) or plain(*a, **k))
    stage_costs(CASE, SPLIT)
    assert estimate(CASE, SPLIT) == alone
    assert len(calls) == 1
    assert estimate(CASE, SPLIT) == alone
    assert len(calls) == 2  # nothing is kept for a second estimate


@pytest.mark.parametrize("other", ["layout", "case", "constants"])
def test_another_layout_case_or_constants_are_priced_anew(other: str) -> None:
    case = replace(CASE, job=replace(CASE.job, global_batch_size=128)) if other == "case" else CASE
    layout = replace(SPLIT, tp=1, dp=4, sequence_parallel=False) if other == "layout" else SPLIT
    usual = default_constants()
    slower = replace(usual, step_fixed_s=usual.step_fixed_s + 1.0) if other == "constants" else usual
    alone = estimate(case, layout, constants=slower)
    stage_costs(CASE, SPLIT)
    assert estimate(case, layout, constants=slower) == alone
    assert alone.step_time_s != estimate(CASE, SPLIT).step_time_s
