"""Several services of one fleet: what a file says, machines that are shared, replicas that are shared."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from app.commands.serve import serve_several
from planner.analysis.serving.fleets import find_fleet
from planner.analysis.serving.services import SharedFleet, find_shared
from planner.questions.flags import ServeFlags
from planner.questions.serving.services import read_services
from planner.questions.serving.understand import understand_serving
from topology.base.errors import InputError

SMALL = 'model = "8b"\nrate = "5/s"\nttft = "500ms"\ntpot = "20ms"\n'
LARGE = 'model = "70b"\nrate = 2\ninput = 1000\noutput = 200\nttft = 0.8\ntpot = "40ms"\n'
H100 = ServeFlags(gpu="h100-sxm", weights="fp8", mode="aggregated", provider="aws")


def written(folder: Path, *services: str) -> Path:
    """A file of these services, by their words."""
    path = folder / "services.toml"
    path.write_text("".join(f"[[services]]\n{one}\n" for one in services), encoding="utf-8")
    return path


@cache
def shared(*services: str, flags: ServeFlags = H100) -> SharedFleet:
    """The fleet of these services."""
    with TemporaryDirectory() as folder:
        return find_shared(read_services(written(Path(folder), *services), flags))


def test_services_share_a_machine_where_each_alone_would_rent_one() -> None:
    """Both fit into one machine of eight; apart they are two machines, or one of a smaller kind."""
    fleet = shared('name = "chat"\n' + LARGE, 'name = "draft"\n' + SMALL)
    assert [one.names for one in fleet.fleets] == [("chat",), ("draft",)]
    assert fleet.offer is not None
    assert fleet.num_gpus == sum(one.plan.num_gpus for one in fleet.fleets)
    assert fleet.machines * fleet.offer.gpus == fleet.num_gpus + fleet.idle_gpus
    assert fleet.usd_per_hour == pytest.approx(fleet.machines * fleet.offer.usd_per_hour)
    assert fleet.apart_usd_per_hour is not None
    assert fleet.usd_per_hour < fleet.apart_usd_per_hour
    for one in fleet.fleets:
        assert all(check.predicted_s <= check.limit_s for check in one.plan.estimate.limits.values())


def test_no_fleet_costs_more_than_its_services_apart() -> None:
    """And the bill apart is that of each service's own answer."""
    fleet = shared(LARGE, SMALL)
    alone = 0.0
    for words in ({"model": "70b", "rate": "2/s", "input_tokens": "1000", "output_tokens": "200", "ttft": "0.8s",
                   "tpot": "40ms"}, {"model": "8b", "rate": "5/s", "ttft": "500ms", "tpot": "20ms"}):  # fmt: skip
        flags = ServeFlags(gpu="h100-sxm", weights="fp8", mode="aggregated", provider="aws", **words)
        alone += find_fleet(understand_serving(flags)).estimate.usd_per_hour or 0.0
    assert fleet.apart_usd_per_hour == pytest.approx(alone)
    assert fleet.usd_per_hour is not None
    assert fleet.usd_per_hour <= alone * (1 + 1e-9)


def test_alike_services_share_replicas_where_that_takes_fewer_gpus() -> None:
    """Two small loads of one model on one GPU; every request keeps the tightest limit of both."""
    calm = 'name = "calm"\nmodel = "8b"\nrate = "2/s"\ninput = 500\noutput = 100\n'
    fleet = shared('name = "fast"\n' + SMALL, calm, 'name = "chat"\n' + LARGE)
    (together,) = (one for one in fleet.fleets if "fast" in one.names)
    assert together.names == ("fast", "calm")
    assert together.plan.num_gpus == 1
    job = together.plan.request.job
    assert (job.ttft_s, job.tpot_s, job.request_rate_per_s) == (0.5, 0.02, 7.0)
    assert together.plan.estimate.ttft.p99_s <= 0.5
    assert together.plan.estimate.tpot.p99_s <= 0.02
    # as many of either service's lengths as their rates say: 5 of 2,000 tokens to 2 of 500
    assert job.input_tokens == pytest.approx((5 * 2000 + 2 * 500) / 7, rel=0.02)


def test_gpus_of_ones_own_are_counted_one_by_one() -> None:
    """Nothing is rented, so no machine is shared."""
    own = ServeFlags(gpu="h100-sxm", weights="fp8", mode="aggregated", usd_per_gpu_hour="2")
    fleet = shared(LARGE, SMALL, flags=own)
    assert fleet.offer is None
    assert fleet.usd_per_hour == pytest.approx(2 * fleet.num_gpus)


def test_the_answer_has_a_line_for_each_and_every_plan_whole(tmp_path: Path) -> None:
    """What is printed and what a program reads are the same."""
    import json

    answer = serve_several(written(tmp_path, LARGE, SMALL), H100, alone=False)
    document = json.loads(answer.document() if callable(answer.document) else "")
    assert [one["names"] for one in document["services"]] == [["70b 1"], ["8b 2"]]
    assert document["num_gpus"] == sum(one["num_gpus"] for one in answer.records)
    assert document["usd_per_hour"] < document["apart_usd_per_hour"]
    assert "shared" in answer.headline


@pytest.mark.parametrize(
    ("services", "flags", "says"),
    [
        ((), H100, "names no services"),
        (('model = "8b"',), H100, "has no rate"),
        (('rate = "5/s"',), H100, "has no model"),
        ((SMALL + "ttfd = 3",), H100, "did you mean ttft"),
        ((SMALL + 'gpu = "a100"',), H100, "beside the file"),
        ((SMALL + "set = 3",), H100, "layout.tp"),
        (('name = "a"\n' + SMALL, 'name = "a"\n' + LARGE), H100, "two services"),
        ((SMALL,) * 17, H100, "too many services"),
        ((SMALL,), ServeFlags(rate="3/s"), "--rate is not of several services"),
        ((SMALL,), ServeFlags(gpus="8"), "--gpus"),
    ],
)
def test_what_no_fleet_of_several_has_is_refused(
    tmp_path: Path, services: tuple[str, ...], flags: ServeFlags, says: str
) -> None:
    """In three lines."""
    with pytest.raises(InputError) as caught:
        read_services(written(tmp_path, *services), flags)
    assert says in f"{caught.value.what} {caught.value.cause} {caught.value.fix}"


def test_files_of_one_service_are_refused_beside_several(tmp_path: Path) -> None:
    """They would put two servers on one GPU."""
    with pytest.raises(InputError, match="told of one service"):
        serve_several(written(tmp_path, SMALL), H100, alone=True)


def test_spare_workers_are_counted_once() -> None:
    """One more of each pool, on the same machines."""
    flags = ServeFlags(gpu="h100-sxm", weights="fp8", mode="aggregated", provider="aws", spare="1")
    plain, spared = shared(LARGE, SMALL), shared(LARGE, SMALL, flags=flags)
    assert spared.num_gpus > plain.num_gpus
    placed = sum(pool.num_gpus for one in spared.fleets for _, pool in one.plan.pools)
    assert placed == spared.num_gpus
    assert spared.offer is None or spared.machines == -(-placed // spared.offer.gpus)
