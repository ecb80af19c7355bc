"""What a serving question may say of lengths, caches, numbers of GPUs, and the machines it is answered in."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from costmodel.serving.simulation.load import lognormal_parameters, most_p99_per_mean
from planner.analysis.serving.fleets import find_fleet
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving
from planner.serving.answer import rental_of
from planner.serving.fleet_choice import machines_for
from topology.base.errors import InputError

SMALL = ServeFlags(model="8b", input_tokens="1000", output_tokens="200", rate="0.01/s")


@pytest.mark.parametrize(
    ("p99", "possible"), [("999", False), ("1000", True), ("14900", True), ("15000", False)]
)
def test_a_percentile_is_one_that_lengths_with_this_mean_have(p99: str, possible: bool) -> None:
    flags = ServeFlags(model="8b", gpu="h100-sxm", input_tokens="1000", input_p99=p99)
    if possible:
        assert understand_serving(flags).requests[0][0].job.input_tokens_p99 == int(p99)
        return
    with pytest.raises(InputError, match="--input-p99") as raised:
        understand_serving(flags)
    assert "1000 to 149" in raised.value.cause


def test_the_widest_log_normal_has_the_largest_percentile() -> None:
    """Searched for over σ, without the formula."""
    z = 2.3263478740408408
    most = max(2.718281828459045 ** (z * s - s * s / 2) for s in (step / 1000 for step in range(1, 6000)))
    assert most_p99_per_mean() == pytest.approx(most, rel=1e-5)
    assert lognormal_parameters(1.0, 0.999 * most)[1] < z


def test_a_whole_prompt_is_never_cached() -> None:
    with pytest.raises(InputError, match="--cached 1"):
        understand_serving(ServeFlags(model="8b", gpu="h100-sxm", cached="1"))


@pytest.mark.parametrize("gpus", ["3", "12", "28"])
def test_a_fleet_of_any_size_can_be_asked_for(gpus: str) -> None:
    """As many nodes as hold it, of which it uses so many GPUs."""
    flags = ServeFlags(model="8b", gpu="h100-sxm", gpus=gpus)
    ((request, hierarchy), *_) = understand_serving(flags).requests
    assert request.num_gpus == int(gpus)
    assert (hierarchy.gpus_per_host, hierarchy.num_gpus) == (8, -(-int(gpus) // 8) * 8)


def test_a_small_load_is_served_by_a_small_machine() -> None:
    """One L40S is $1.861 an hour at AWS; the machine of eight is $30.13 and an A100's $27.45."""
    plan = find_fleet(understand_serving(replace(SMALL, gpu="l40s,a100-sxm-80gb")))
    assert plan.rental is not None
    assert (plan.rental.offer.machine, plan.rental.machines) == ("aws-g6e.xlarge", 1)
    assert plan.estimate.usd_per_hour == pytest.approx(1.861)
    assert ("a100-sxm-80gb", 27.44705) in {(one.gpu, one.usd_per_hour) for one in plan.other_fleets}


BILLS = [
    # GPU, workers and GPUs of each, dollars an hour of the cheapest machines that AWS rents for them
    ("h100-sxm", 2, 1, 2 * 6.88), ("h100-sxm", 1, 2, 55.04), ("h100-sxm", 2, 2, 55.04), ("h100-sxm", 3, 4, 110.08),
    ("l4", 1, 4, 4.6016), ("l4", 2, 2, 4.6016), ("l4", 3, 2, 2 * 4.6016), ("l4", 1, 8, 13.3504), ("l4", 1, 1, 0.8048),
]  # fmt: skip


@pytest.mark.parametrize(("gpu", "workers", "each", "dollars"), BILLS)
@pytest.mark.parametrize("more", [0, 1, 8])
def test_a_fleet_has_one_bill_however_many_gpus_are_asked_for(
    gpu: str, workers: int, each: int, dollars: float, more: int
) -> None:
    """What its workers take is rented, in the machines that hold them for least; one's own are all paid for."""
    used = workers * each
    fleet: Any = SimpleNamespace(
        decode=SimpleNamespace(
            num_gpus=each, deployment=SimpleNamespace(hierarchy=SimpleNamespace(gpus_per_host=8))
        ),
        prefill=None,
        num_gpus=used,
        machines=lambda machine_gpus: machines_for([(each, workers)], machine_gpus),
    )
    flags = ServeFlags(
        model="8b", gpu=gpu, gpus=str(used + more), input_tokens="1000", output_tokens="200", provider="aws"
    )
    rental = rental_of(understand_serving(flags).requests[0][0], fleet)
    assert rental is not None
    assert rental.usd_per_hour == pytest.approx(dollars)
    assert rental.idle_gpus == rental.machines * rental.offer.gpus - used
    own = understand_serving(replace(flags, provider="own", usd_per_gpu_hour="2")).requests[0][0]
    assert own.owned
    assert rental_of(own, fleet) is None
