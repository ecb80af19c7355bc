"""Questions without a plan: the answer is always why, in seconds, and never an exception."""

from __future__ import annotations

import time
from random import Random

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.plan import Plan, PlanRequest
from planner.search.infeasible import cause_of, fix_of
from planner.search.search import search
from tests.counts import cases_of_run
from topology.builders import default_cluster
from topology.spec import ClusterSpec

CAL = load_calibration()
LONGEST_S = 40.0
"""Of the processor, to search and to explain; of a change one layout is enough, on up to 64 times the GPUs."""


def question(r: Random) -> PlanRequest:
    """A large model on few GPUs, with a length, a batch and pins that may be impossible."""
    cluster: ClusterSpec = default_cluster(
        r.choice(("h100-sxm", "a100-sxm-80gb", "gb200")), r.choice((1, 3, 8, 16, 32, 136))
    ).spec
    return PlanRequest(
        model=model(r.choice(("llama-3.1-405b", "deepseek-v3", "mixtral-8x22b", "kimi-k2"))),
        cluster=cluster,
        job=TrainingJob(
            sequence_length=r.choice((8192, 131_072, 2**20)),
            global_batch_size=r.choice((1, 7, 64, 512)),
            precision=r.choice(("bf16", "fp8")),
            total_tokens=10**12,
            deadline_s=r.choice((86_400.0, 864_000.0)),
        ),
        objective=r.choice(("step-time", "gpus")),
        pins=r.choice(({}, {"tp": 8}, {"zero_stage": 0}, {"pp": 4, "recompute": "none"})),
        top=1,
    )


DEAR = (3, *range(6, 12))
"""Seeds of the nightly run: why the first has no plan takes as long as all of the others."""


@pytest.mark.parametrize("seed", cases_of_run(range(12), DEAR))
def test_why_there_is_no_plan_is_said_and_soon(seed: int) -> None:
    """A cause and a help in words; whatever is tried on the way to them."""
    request = question(Random(seed))
    began = time.process_time()
    found = search(request, CAL)
    spent_s = time.process_time() - began
    if isinstance(found, Plan):
        return
    assert cause_of(found)
    assert fix_of(found)
    assert spent_s < LONGEST_S
