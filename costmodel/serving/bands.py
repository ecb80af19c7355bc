"""The 80 % band of a serving estimate: how far measured latencies lie from predicted ones, by what is served.

The quantiles come from cross-validation: every measured run predicted with constants fitted without its
model, or with those that are shipped where that reaches further (`tools/fit_serving.py`, which writes the
data file). A deployment takes the band of the narrowest kind
of deployments with enough such runs; each property that no run of them has widens it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from math import exp, hypot, log
from pathlib import Path

from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.mixers import unmeasured_mixers
from topology.catalog import gpus
from topology.hardware.datasheets import generation_of

_FILE = Path(__file__).parents[1] / "data" / "serving_bands.toml"
FEWEST_ROWS = 20  # runs of which quantiles 0.1 and 0.9 are taken
NOT_MEASURED = log(1.3)
"""What a property that no run has adds to the ends of a band, in logarithms and in quadrature: between two
plans of one question that differ by their pipeline stages alone there are 20 to 50 %. Not fitted."""
NOT_MEASURED_MAKER = log(2.0)
"""What a GPU adds of a maker of whose GPUs no run has any: kernels are then those of other software as well.
MiniMax-M2.7 took 1.98 and 1.85 times the predicted time a token on MI300X (sglang issue 31044, at 1 and at 64
in flight). Not fitted."""
NOT_MEASURED_HOSTS = log(2.5)
"""What tensor parallelism over hosts adds: its many small all-reduces take the latency of a fabric, and those
of 16 GPUs in two hosts are published at 28 to 193 us of 16 kB (shared/data/kernels/nccl_published.csv). Not
fitted."""
AGGREGATED, DISAGGREGATED = "aggregated", "disaggregated"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBand:
    """Factors on a predicted latency between which four of five measurements lie.

    Attributes:
        lower: 10th percentile of measured over predicted.
        upper: 90th percentile.
    """

    lower: float
    upper: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Deployments that are alike; None is any of them."""

    mode: str
    engine: str | None = None
    gpu: str | None = None
    attention_dp: bool | None = None

    def covers(self, other: Kind) -> bool:
        """Whether the other kind is part of this one."""
        return self.mode == other.mode and all(
            mine in (None, theirs)
            for mine, theirs in (
                (self.engine, other.engine),
                (self.gpu, other.gpu),
                (self.attention_dp, other.attention_dp),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BandOfKind:
    """The bands of a kind: quantiles of its held-out runs."""

    mode: str
    engine: str = ""
    gpu: str = ""
    attention_dp: str = ""
    rows: int
    tpot: tuple[float, float]
    ttft: tuple[float, float]

    @property
    def kind(self) -> Kind:
        """The kind."""
        shared = {"": None, "no": False, "yes": True}[self.attention_dp]
        return Kind(mode=self.mode, engine=self.engine or None, gpu=self.gpu or None, attention_dp=shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyEvidence:
    """What stands behind the latencies of a deployment.

    Attributes:
        tpot: Band of the time per output token.
        ttft: Band of the time to first token.
        rows: Measured runs of the same mode, engine, GPU and kind of attention.
        not_measured: Properties that no run has.
    """

    tpot: LatencyBand
    ttft: LatencyBand
    rows: int
    not_measured: tuple[str, ...] = ()


@functools.cache
def bands_of_kinds() -> tuple[BandOfKind, ...]:
    """The bands, as shipped."""
    from topology.base.decode import read_toml, structure

    entries = read_toml(_FILE)["bands"]
    return tuple(structure(entry, BandOfKind, f"{_FILE.name}: band {at}") for at, entry in enumerate(entries))


def evidence_of(deployment: Deployment, mode: str) -> LatencyEvidence:
    """What stands behind the latencies of a deployment.

    >>> from topology.builders import default_cluster
    >>> from costmodel.models.catalog import model
    >>> from costmodel.serving.deployment import ServingLayout
    >>> from costmodel.serving.engine import serving_stack
    >>> deployed = Deployment(
    ...     model=model("70b"),
    ...     hierarchy=default_cluster("h100-sxm", 8).hierarchy,
    ...     layout=ServingLayout(tp=2, pp=4),
    ...     stack=serving_stack("vllm"),
    ... )
    >>> evidence_of(deployed, AGGREGATED).not_measured
    ('pipeline stages',)
    """
    gpu, layout = deployment.hierarchy.gpu.name, deployment.layout
    kind = Kind(mode=mode, engine=deployment.stack.name, gpu=gpu, attention_dp=layout.attention_dp > 1)
    checks = (
        *((name, False) for name in unmeasured_axes(layout)),
        *((name, False) for name in unmeasured_mixers(deployment)),
        ("speculation", not deployment.draft_tokens),
        ("adapters of requests", not deployment.adapters),
        (f"{mode} {kind.engine}", _rows(Kind(mode=mode, engine=kind.engine)) > 0),
        (
            f"attention data parallelism of {kind.engine}",
            _rows(replace(kind, gpu=None)) > 0 or not kind.attention_dp,
        ),
        (f"{kind.engine} on {gpu}", _rows(replace(kind, attention_dp=None)) > 0),
    )
    missing = [name for name, known in checks if not known]
    maker = generation_of(deployment.hierarchy.gpu).maker
    more = NOT_MEASURED * len(missing) ** 0.5
    if maker not in _measured_makers():
        missing.append(f"kernels of {maker}")
        more = hypot(more, NOT_MEASURED_MAKER)
    if layout.tp > deployment.hierarchy.gpus_per_node:
        missing.append(ACROSS_HOSTS)
        more = hypot(more, NOT_MEASURED_HOSTS)
    narrowest = _narrowest(kind)
    return LatencyEvidence(
        tpot=_widened(narrowest.tpot, more),
        ttft=_widened(narrowest.ttft, more),
        rows=0
        if ACROSS_HOSTS in missing or unmeasured_axes(layout) or unmeasured_mixers(deployment)
        else _rows(kind),
        not_measured=tuple(missing),
    )


ACROSS_HOSTS = "tensor parallelism over hosts"
UNMEASURED_AXES = ("pipeline stages", "decode context parallelism")
"""Axes that no measured run has, in words."""


def unmeasured_axes(layout: ServingLayout) -> tuple[str, ...]:
    """Axes of a layout that no measured run has, in words.

    >>> from costmodel.serving.deployment import ServingLayout
    >>> unmeasured_axes(ServingLayout(tp=8, dcp=8)), unmeasured_axes(ServingLayout(tp=8))
    (('decode context parallelism',), ())
    """
    degrees = zip(UNMEASURED_AXES, (layout.pp, layout.dcp), strict=True)
    return tuple(name for name, degree in degrees if degree > 1)


def _rows(kind: Kind) -> int:
    """Measured runs of a kind."""
    leaves = (band for band in bands_of_kinds() if band.engine and band.gpu and band.attention_dp)
    return sum(leaf.rows for leaf in leaves if kind.covers(leaf.kind))


def _narrowest(kind: Kind) -> BandOfKind:
    """The narrowest kind around this one with enough runs; those of one mode are always enough."""
    around = [band for band in bands_of_kinds() if band.kind.covers(kind) and band.rows >= FEWEST_ROWS]
    return min(around, key=lambda band: band.rows)


@functools.cache
def _measured_makers() -> frozenset[str]:
    """Makers of whose GPUs there are runs."""
    names = {band.gpu for band in bands_of_kinds() if band.gpu and band.rows}
    return frozenset(generation_of(gpus()[name]).maker for name in names if name in gpus())


def _widened(interval: tuple[float, float], more: float) -> LatencyBand:
    """A band, wider by what is not measured, in logarithms."""
    lower, upper = interval
    return LatencyBand(lower=exp(-hypot(log(lower), more)), upper=exp(hypot(log(upper), more)))
