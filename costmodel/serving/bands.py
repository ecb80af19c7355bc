"""The 80 % band of a serving estimate: how far measured latencies lie from predicted ones, by what is served.

The quantiles come from cross-validation: every measured run predicted with constants fitted without its
model, or with those that are shipped where that reaches further (`tools/fit_serving.py`, which writes the
data file). A deployment takes the band of the narrowest kind
of deployments with enough such runs; each property that no run of them has widens it.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass, replace
from math import exp, hypot, log
from pathlib import Path

from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.mixers import unmeasured_mixers
from topology.base.files import read_text
from topology.catalog import gpus
from topology.hardware.datasheets import generation_of

_FILE = Path(__file__).parents[1] / "data" / "serving_bands.toml"
RUNS_FILE = Path(__file__).parents[1] / "data" / "serving_runs_counted.csv"
"""Measured runs by what a deployment is; written by `tools/count_serving_runs.py`."""
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
class CountedRuns:
    """Measured runs that are alike in all of this; of two pools the layout is that of decode."""

    mode: str
    engine: str
    gpu: str
    attention_dp: bool
    model: str
    tp: int
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyEvidence:
    """What stands behind the latencies of a deployment.

    Attributes:
        tpot: Band of the time per output token.
        ttft: Band of the time to first token.
        rows: Measured runs of the same mode, engine, GPU and kind of attention.
        rows_of_model: Those of them that are of the same model.
        rows_of_tp: Those of them with as many tensor ranks, of any model.
        not_measured: Properties that no run has.
    """

    tpot: LatencyBand
    ttft: LatencyBand
    rows: int
    rows_of_model: int = 0
    rows_of_tp: int = 0
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
        (
            f"{'two pools of ' * (mode == DISAGGREGATED)}{kind.engine} on {gpu}",
            _rows(replace(kind, attention_dp=None)) > 0,
        ),
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
    none = ACROSS_HOSTS in missing or bool(unmeasured_axes(layout)) or bool(unmeasured_mixers(deployment))
    alike = () if none else _counted(kind)
    return LatencyEvidence(
        tpot=_widened(narrowest.tpot, more),
        ttft=_widened(narrowest.ttft, more),
        rows=0 if none else _rows(kind),
        rows_of_model=sum(each.runs for each in alike if is_same_architecture(each.model, deployment.model)),
        rows_of_tp=sum(each.runs for each in alike if each.tp == layout.tp),
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
    return sum(each.runs for each in _counted(kind))


def is_same_architecture(name: str, served: ModelSpec) -> bool:
    """Whether a measured model is the served one but for its training, as DeepSeek-V3 is R1's.

    >>> [is_same_architecture("deepseek-v3", model(name)) for name in ("deepseek-r1", "8b")]
    [True, False]
    """
    measured = model(name)
    return measured == replace(
        served, name=measured.name, source=measured.source, as_of=measured.as_of,
        max_sequence_length=measured.max_sequence_length,
    )  # fmt: skip


@functools.cache
def counted_runs() -> tuple[CountedRuns, ...]:
    """All that were counted, as shipped."""
    return tuple(
        CountedRuns(
            mode=row["mode"],
            engine=row["engine"],
            gpu=row["gpu"],
            attention_dp=row["attention_dp"] == "yes",
            model=row["model"],
            tp=int(row["tp"]),
            runs=int(row["runs"]),
        )
        for row in csv.DictReader(read_text(RUNS_FILE).splitlines())
    )


@functools.cache
def _counted(kind: Kind) -> tuple[CountedRuns, ...]:
    """Measured runs of a kind by model and tensor ranks."""
    return tuple(
        each
        for each in counted_runs()
        if kind.covers(Kind(mode=each.mode, engine=each.engine, gpu=each.gpu, attention_dp=each.attention_dp))
    )


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
