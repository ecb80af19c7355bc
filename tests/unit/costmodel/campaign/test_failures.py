"""What fails is data, read through one bounded door."""

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from costmodel.campaign.failures import (
    Devices,
    default_model,
    default_site,
    failing_devices,
    rate_per_s,
    read_failures,
    sites,
    spread_of,
)
from costmodel.campaign.record import Duration, Times
from topology.base.errors import InputError
from topology.builders import default_cluster
from topology.catalog import gpus

OWN = """
restart = "requeue"
asynchronous = false
[site]
name = "ours"
gpu = "h100-sxm"
gpus = 512
days = 30
causes = [{ name = "node", events = 16, loses = "node" }]
"""


def read(tmp_path: Path, text: str) -> object:
    """A file with this text, read."""
    file = tmp_path / "failures.toml"
    file.write_text(text, encoding="utf-8")
    return read_failures(file, "h100-sxm")


def test_every_shipped_number_has_a_source_and_a_date() -> None:
    """Of sites, times, stragglers and storage."""
    model = default_model("h100-sxm")
    stated = [*sites().values(), model.stragglers, model.stragglers.spell, model.storage]
    stated += [getattr(model.times, part.name) for part in fields(Times)]
    assert [one for one in stated if not (one.source and len(one.as_of) == 10)] == []


def test_every_site_is_of_a_gpu_of_the_catalog() -> None:
    """A kind that nobody can ask for would be dead data."""
    assert {site.gpu for site in sites().values()} <= set(gpus())


def test_a_kind_of_gpu_has_a_site_of_its_own_where_one_is_published() -> None:
    """Others are told whose rates they get."""
    assert (default_site("a100-sxm-80gb"), default_site("h100-sxm"), default_site("b200-sxm")) == (
        "rsc-1",
        "llama-3",
        "llama-3",
    )


def test_a_rate_grows_with_its_own_devices() -> None:
    """GPUs, nodes and NICs each count the causes that sit in them."""
    site = sites()["llama-3"]
    here, twice = Devices(gpu=16, node=2, nic=16), Devices(gpu=32, node=2, nic=16)
    by_device = {cause.device: cause for cause in site.causes}
    grown = {d: rate_per_s(c, site, twice) / rate_per_s(c, site, here) for d, c in by_device.items()}
    assert grown == {"gpu": 2.0, "node": 1.0, "nic": 1.0}
    assert replace(failing_devices(default_cluster("h100-sxm", 16).spec, site), rack=0.0, switch=0.0) == here


def test_a_file_says_what_is_its_own_and_leaves_the_rest_as_shipped(tmp_path: Path) -> None:
    """One's own counts are as uncertain as they are few."""
    own, shipped = read(tmp_path, OWN), default_model("h100-sxm")
    assert own.site.per_1000_node_days == pytest.approx(1000 * 16 / (64 * 30))
    assert (own.restart, own.asynchronous) == ("requeue", False)
    assert replace(own, site=shipped.site, restart="swap", asynchronous=True) == shipped
    assert spread_of(own.site) == 1 / math.sqrt(16)


def test_a_file_may_name_a_shipped_site_and_change_one_time(tmp_path: Path) -> None:
    """Entries of times are taken one by one."""
    own = read(tmp_path, 'site = "rsc-1"\n[times.swap]\nseconds = 42\n')
    assert own.site.name == sites()["rsc-1"].name
    assert own.times == replace(default_model("h100-sxm").times, swap=Duration(seconds=42.0))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (OWN.replace("events = 16", "events = 0"), "events = 0, must be above 0: 1 is the fewest"),
        (OWN.replace("events = 16", "events = -3"), "events = -3"),
        (OWN.replace("days = 30", "days = 0"), "days = 0"),
        (OWN.replace("days = 30", "days = 1e-320"), "days = 9.99989e-321"),
        (
            OWN.replace('causes = [{ name = "node", events = 16, loses = "node" }]', "causes = []"),
            "no causes",
        ),
        (OWN + "[times.swap]\nseconds = -1\n", "seconds = -1"),
        (OWN + "[times.swap]\nseconds = 10\nlow_s = 20\n", "low_s = 20"),
        (OWN + "[stragglers]\nprevalence = 2\nslowdown = 2\nspell = { seconds = 1 }\n", "prevalence = 2"),
        (OWN + '[storage]\nname = "x"\nwrite_bytes_per_s = 0\nread_bytes_per_s = 1\n', "writes 0"),
        (OWN + "[times.swop]\nseconds = 1\n", "did you mean"),
        (OWN.replace('restart = "requeue"', 'restart = "magic"'), "magic"),
        ('site = "rsc-9"\n', "rsc"),
        ("times = 3\n", "times"),
    ],
)
def test_what_no_site_counts_is_refused_in_three_lines(tmp_path: Path, text: str, cause: str) -> None:
    """Zero, negative, upside down, misspelt: the numbers and a change that fixes it."""
    with pytest.raises(InputError) as refused:
        read(tmp_path, text)
    assert cause in str(refused.value)
    assert len(str(refused.value).splitlines()) >= 3


def test_measured_jobs_that_contradict_the_counts_are_refused(tmp_path: Path) -> None:
    """As of RSC-1: 7.9 h at 1,024 GPUs are not 1/N of its counts; what is missing is said."""
    text = OWN + "measured = [{ gpus = 512, hours = 10.0 }]\n"
    with pytest.raises(InputError, match="follow no one rate") as refused:
        read(tmp_path, text)
    assert "45.0 h" in refused.value.cause
    assert "56 events" in refused.value.fix
    agrees = OWN + "measured = [{ gpus = 256, hours = 90.0 }]\n"
    assert read(tmp_path, agrees).site.measured[0].hours == 90
