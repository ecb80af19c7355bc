"""What fails and how often, read from `data/failures.toml` or a user's own file, and as rates of a job.

Counts and exposure are data; a rate is events over device-days, and a job of twice the devices is interrupted
twice as often. That holds for causes that sit in devices. Jobs of users also end for reasons of their own: a
site whose measured jobs contradict its counts is explained by `explain_measured`, never fitted.

Legend: ``r`` interruptions per second, ``M`` mean seconds between interruptions of the whole job.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.campaign.record import Cause, FailureModel, MeasuredJobs, Site
from topology.base.decode import read_toml, structure
from topology.base.errors import InputError
from topology.base.names import resolve
from topology.base.units import DAY, HOUR
from topology.spec import ClusterSpec

FAILURES_FILE = Path(__file__).parents[1] / "data" / "failures.toml"
_MIXED = "byterobust"
"""A site that counts the jobs of a whole company; no spread between training runs follows from it."""
AGREE_WITHIN = 1.5
"""Two rates of one site that differ by more are not of the same causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Devices that a job runs on."""

    gpu: float
    node: float
    nic: float
    rack: float = 0.0
    switch: float = 0.0
    storage: float = 1.0


def failing_devices(cluster: ClusterSpec, site: Site) -> Devices:
    """Count the devices of a cluster; its racks and leaf switches hold as many nodes as those of the site."""
    return Devices(
        gpu=cluster.num_gpus,
        node=cluster.num_nodes,
        nic=sum(max(node.nics_per_node, 1) * node.count for node in cluster.nodes),
        rack=cluster.num_nodes / site.nodes_per_rack,
        switch=cluster.num_nodes / site.nodes_per_switch,
    )


def rate_per_s(cause: Cause, site: Site, devices: Devices) -> float:
    """Interruptions a second of a job on these devices: events / (device-seconds watched) · devices.

    >>> site = sites()["llama-3"]
    >>> 1 / sum(rate_per_s(c, site, Devices(gpu=16384, node=2048, nic=16384)) for c in site.causes) / 3600
    3.09...
    """
    watched = float(getattr(usual_devices(site.gpus, site), cause.device))
    return cause.events / (watched * site.days * DAY) * float(getattr(devices, cause.device))


def seconds_between(site: Site, devices: Devices) -> float:
    """Mean seconds between unexpected interruptions of a job: one over the sum of its causes' rates."""
    return 1 / sum(rate_per_s(cause, site, devices) for cause in site.causes)


def usual_devices(num_gpus: int, site: Site) -> Devices:
    """So many GPUs in nodes as those of the site."""
    nodes = num_gpus / site.gpus_per_node
    return Devices(
        gpu=num_gpus,
        node=nodes,
        nic=nodes * site.nics_per_node,
        rack=nodes / site.nodes_per_rack,
        switch=nodes / site.nodes_per_switch,
    )


@functools.cache
def sites() -> Mapping[str, Site]:
    """Every site that is shipped, by name."""
    table = _table()["sites"]
    return {name: structure(entry, Site, f"{FAILURES_FILE.name}: {name}") for name, entry in table.items()}


def spread_between_sites() -> float:
    """Standard deviation of the logarithm of rates per node-day between the shipped training runs.

    >>> round(spread_between_sites(), 2)
    0.65
    """
    rates = [site.per_1000_node_days for name, site in sites().items() if name != _MIXED]
    return statistics.stdev(math.log(rate) for rate in rates)


def default_site(gpu: str) -> str:
    """Whose rates are taken for a kind of GPU where none are given."""
    defaults: Mapping[str, str] = _table()["default"]
    return defaults.get(gpu, defaults["other"])


def default_model(gpu: str) -> FailureModel:
    """What is assumed of a kind of GPU where nothing is given."""
    return _model({}, gpu, FAILURES_FILE.name)


def read_failures(path: str | Path, gpu: str) -> FailureModel:
    """A user's own file over the defaults: what it does not say is as shipped.

    Its keys are those of `FailureModel`; ``site`` is a table, or the name of a shipped site; entries of
    ``times`` are taken one by one.

    Raises:
        InputError: a key is unknown, a number is none, or measured jobs contradict the counts.
    """
    stated = read_toml(path)
    model = _model(stated, gpu, str(path))
    for measured in model.site.measured if isinstance(stated.get("site"), Mapping) else ():
        _require_agreement(model.site, measured)
    return model


def spread_of(site: Site) -> float:
    """Uncertainty of a site's rate for this cluster, of its logarithm: 1/√events of one's own counts."""
    return 1 / math.sqrt(site.interruptions) if site.spread is None else site.spread


def explain_measured(site: Site) -> tuple[str, ...]:
    """What a site's measured jobs say beside its counts, a sentence for each that the counts do not explain.

    >>> explain_measured(sites()["rsc-1"])[1]
    'jobs of 1,024 GPUs were measured at 7.9 h between failures, 3.7 times as often as the 28.8 h ...'
    """
    result = []
    for jobs in site.measured:
        ours = seconds_between(site, usual_devices(jobs.gpus, site)) / HOUR
        if max(ours / jobs.hours, jobs.hours / ours) > AGREE_WITHIN:
            result.append(
                f"jobs of {jobs.gpus:,} GPUs were measured at {jobs.hours:g} h between failures, "
                f"{ours / jobs.hours:.1f} times as often as the {ours:.1f} h that its counts of "
                f"{', '.join(cause.name for cause in site.causes)} give: they end for other reasons too, "
                "which are not claimed"
            )
    return tuple(result)


def _require_agreement(site: Site, measured: MeasuredJobs) -> None:
    """Refuse a user's counts beside measured jobs that they do not explain."""
    ours = seconds_between(site, usual_devices(measured.gpus, site)) / HOUR
    if max(ours / measured.hours, measured.hours / ours) > AGREE_WITHIN:
        more = site.interruptions * (ours / measured.hours - 1)
        raise InputError(
            what=f"the failures of {site.name!r} follow no one rate",
            cause=f"its counts give {ours:.1f} h between failures on {measured.gpus:,} GPUs, measured are "
            f"{measured.hours:g} h",
            fix=f"add the causes that are missing, {more:.3g} events in all, or leave site.measured out",
        )


@functools.cache
def _table() -> Mapping[str, Any]:
    """The shipped file as it is."""
    return read_toml(FAILURES_FILE)


def _model(stated: Mapping[str, Any], gpu: str, where: str) -> FailureModel:
    """The shipped model with what a file says instead."""
    table = _table()
    named = stated.get("site", default_site(gpu))
    site = named
    if isinstance(named, str):
        text = resolve(named, list(table["sites"]), "site")
        site = {"spread": spread_between_sites(), **table["sites"][text]}
    times = stated.get("times", {})
    data = {
        **{name: table[name] for name in ("stragglers", "storage")},
        **stated,
        "site": site,
        "times": {**table["times"], **times} if isinstance(times, Mapping) else times,
    }
    return structure(data, FailureModel, where)
