"""What is proven of a job that offloads is the best of every layout and every split, priced one by one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.updates.offload import Offload
from planner.plan import FREE, PlanRequest
from tests.counts import tries
from tests.oracle.planner.search.certificates import judge
from tests.oracle.planner.search.random_requests import case_of

CAL = load_calibration()
SEED, CASES, MOST_LAYOUTS = 61, tries(5, 16), 60
OFFLOADS = (
    Offload(optimizer=0.5), Offload(optimizer=1.0), Offload(activations=1.0), Offload(activations=0.5),
    Offload(optimizer=0.25, activations=1.0), Offload(parameters=True), Offload(parameters=True, activations=1.0),
)  # fmt: skip


def with_offload(request: PlanRequest, r: Random) -> PlanRequest:
    """The question with something in host memory, over links and memory that may be slow."""
    job = replace(request.job, offload=r.choice(OFFLOADS))
    nodes = tuple(
        replace(
            node,
            host_bandwidth_bytes_per_s=r.choice((1e9, 3.2e10, 4.5e11)),
            host_memory_bandwidth_bytes_per_s=r.choice((1e10, 6e11)),
            host_memory_bytes=2.0**50,
        )
        for node in request.cluster.nodes
    )
    return replace(request, job=job, cluster=replace(request.cluster, nodes=nodes))


@pytest.mark.parametrize("group", range(3))
def test_what_is_proven_is_the_best_of_every_layout_and_split(group: int) -> None:
    """No layout of random small spaces beats the answer or its bound."""
    wrong, tried = {}, 0
    for number in range(group * CASES, (group + 1) * CASES):
        drawn = case_of(SEED, number, CAL, most_layouts=MOST_LAYOUTS)
        if drawn is None or drawn[0].engine != FREE:
            continue
        tried += 1
        verdict = judge(with_offload(drawn[0], Random(number)), drawn[1], CAL)
        if verdict.faults:
            wrong[f"{SEED}/{number}"] = verdict.faults
    assert wrong == {}
    assert tried >= CASES // 3
