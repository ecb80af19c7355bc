"""Two pools whose prompts alone wait keep up exactly if the work of the prompts fits into their time."""

import pytest

from costmodel.job import ServingJob
from costmodel.models.catalog import model
from costmodel.serving.deployment import ServingLayout
from planner.serving import backlog
from planner.serving.fleet import FleetRun, run_pools
from planner.serving.fleet_choice import Selection
from planner.serving.plan import ServingRequest
from planner.serving.replica import Option, build_option
from planner.serving.space import deployment_of
from tests.unit.planner.serving.test_backlog import CAL
from topology.builders import default_cluster

JOB = ServingJob(input_tokens=2000, output_tokens=100, input_tokens_p99=8000, output_tokens_p99=300)


def worker(gpu: str, tp: int, phase: str) -> Option:
    """A worker of one pool."""
    request = ServingRequest(model=model("70b"), job=JOB, gpu=gpu, engine="vllm", weights=("fp8",))
    deployment = deployment_of(request, default_cluster(gpu, 8).hierarchy, "fp8", ServingLayout(tp=tp))
    option = build_option(CAL, deployment, JOB, phase=phase)
    assert isinstance(option, Option), option
    return option


def offered(run: FleetRun) -> float:
    """Seconds of work that the prompts bring in a second, of a worker."""
    load, simulation, _ = run.keeps_up.args  # type: ignore[attr-defined]  # a partial
    return float(simulation.prefill_work_s / backlog._period_s(load))


@pytest.mark.parametrize("share", [0.9, 0.97, 1.05, 1.12])
@pytest.mark.parametrize(("gpu", "workers"), [("h100-sxm", 3), ("l40s", 9)])
def test_the_work_of_prompts_says_what_sending_them_again_says(
    gpu: str, workers: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At rates around what the pool computes: the second pass, which takes twice as long to know."""
    pools = (worker(gpu, 2, "prefill"), workers), (worker(gpu, 4, "decode"), 2 * workers)
    rate = 1.0
    for _ in range(3):  # steps are the fuller, and the work the less, the more is sent
        run = run_pools(Selection(counts={}, num_gpus=0, rate_per_s=0.0), *pools, rate)
        rate *= share / offered(run)
    run = run_pools(Selection(counts={}, num_gpus=0, rate_per_s=0.0), *pools, rate)
    assert offered(run) == pytest.approx(share, abs=0.025)
    assert run.simulation.decode_filled <= backlog.ROOMY
    told = run.keeps_up()
    assert told == (share <= 1)
    monkeypatch.setattr(backlog, "_waits_for_prompts_alone", lambda *_: False)
    assert run.keeps_up() == told
