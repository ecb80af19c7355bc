"""An end-to-end limit alone: pools are given what the fastest of the other pool leaves of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.serving import search
from planner.serving.board import enumerate_options
from planner.serving.fleet import run_pools
from planner.serving.fleet_choice import Selection
from planner.serving.plan import ServingPlan, ServingRequest
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY, Option
from topology.builders import default_cluster
from topology.fabric.hierarchy import Hierarchy

JOB = ServingJob(input_tokens=2000, output_tokens=300, request_rate_per_s=40.0, end_to_end_s=6.0)
GPU = "h100-sxm"


def asked(job: ServingJob = JOB) -> tuple[ServingRequest, Hierarchy]:
    """70B in two pools."""
    cluster = default_cluster(GPU, 64)
    request = ServingRequest(
        model=model("llama-3.1-70b"), job=job, gpu=GPU, weights=("fp8",), modes=("disaggregated",)
    )
    return request, cluster.hierarchy


def of(options: list[Option], phase: str) -> list[Option]:
    """Options of one phase."""
    return [one for one in options if one.phase == phase]


def test_what_a_pool_is_refused_no_fleet_of_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are dropped break the limit almost empty, beside every worker of the other pool."""
    tight = replace(JOB, end_to_end_s=3.5)
    request, hierarchy = asked(tight)
    kept = enumerate_options(load_calibration(), request, hierarchy)
    monkeypatch.setattr("planner.serving.board.within_end_to_end", list)
    whole = enumerate_options(load_calibration(), request, hierarchy)
    names = {(one.phase, one.label) for one in kept.options}
    dropped = [one for one in whole.options if (one.phase, one.label) not in names]
    assert dropped
    for one in dropped:
        other = PROMPT_ONLY if one.phase == OUTPUT_ONLY else OUTPUT_ONLY
        for beside in of(whole.options, other):
            prompts, outputs = (one, beside) if one.phase == PROMPT_ONLY else (beside, one)
            empty = Selection(counts={}, rate_per_s=0.05, num_gpus=0)
            assert not run_pools(empty, (prompts, 1), (outputs, 1), 0.05).kept, one.label


def test_whole_fleets_are_rarely_tried_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker kept the limits of its share, so few fleets break the whole: 3 here, 26 and more without."""
    tried = []
    whole = search.run_fleet

    def counted(*arguments: object) -> object:
        tried.append(1)
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(search, "run_fleet", counted)
    request, hierarchy = asked()
    found = search.search_serving(load_calibration(), request, hierarchy)
    assert isinstance(found, ServingPlan)
    assert found.estimate.limits["end_to_end"].predicted_s <= 6.0
    assert len(tried) <= 6
