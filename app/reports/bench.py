"""Measurements as an answer: medians and spread, rates, links by level, what a plan estimates beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.reports.answer import Answer, Table, json_text
from costmodel.kernels.measurement import Measurement
from topology.base.decode import unstructure
from topology.base.units import format_bandwidth, format_bytes, format_flop_per_s, format_seconds
from topology.spec import ClusterSpec

if TYPE_CHECKING:
    from executor.bench.node_links import NodeLinks

_SPREAD_NOTE = "spread = (p90 − p10) / median"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Measurements, the cluster they belong to, and what to tell the user about files."""

    cluster: ClusterSpec
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredShape:
    """One measured shape of a plan beside what the cost model assumes for it."""

    measurement: Measurement
    predicted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBench:
    """What was measured, the cluster with it, and what to tell the user about files."""

    cluster: ClusterSpec
    links: NodeLinks
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...]


def bench_answer(bench_result: BenchResult) -> Answer:
    """Lay out what was measured."""
    rows = tuple(
        (*_identity(m), format_seconds(m.p50), _spread(m), _rate(m)) for m in bench_result.measurements
    )
    return Answer(
        headline=f"{len(rows)} measurements of {bench_result.cluster.name}",
        sections=(
            Table(
                title="Measurements",
                columns=("what", "dtype", "inputs", "median", "spread", "rate"),
                rows=rows,
                align="lllrrr",
                note=_SPREAD_NOTE,
            ),
        ),
        document=lambda: json_text([unstructure(m) for m in bench_result.measurements]),
        records=tuple(_record(m) for m in bench_result.measurements),
    )


def check_answer(comparisons: Sequence[MeasuredShape]) -> Answer:
    """Lay out measured beside predicted."""
    rows = tuple(
        (
            *_identity(c.measurement),
            format_seconds(c.predicted_s),
            format_seconds(c.measurement.p50),
            f"{c.predicted_s / c.measurement.p50:.2f}",
            _spread(c.measurement),
        )
        for c in comparisons
    )
    documents = [{**unstructure(c.measurement), "predicted": c.predicted_s} for c in comparisons]
    return Answer(
        headline=f"{len(rows)} shapes of the plan, predicted and measured here",
        sections=(
            Table(
                title="Shapes of the plan",
                columns=("what", "dtype", "inputs", "predicted", "measured", "ratio", "spread"),
                rows=rows,
                align="lllrrrr",
                note=f"{_SPREAD_NOTE}; predictions are for the plan's GPU, measurements of this machine",
            ),
        ),
        document=lambda: json_text(documents),
        records=tuple({**_record(c.measurement), "predicted_s": c.predicted_s} for c in comparisons),
    )


def nodes_answer(node_bench: NodeBench) -> Answer:
    """Lay out pairs and collectives by level; slow pairs come first."""
    from executor.bench.node_pairs import SLOW_SHARE, medians, slow_hosts

    links, usual = node_bench.links, medians(node_bench.links.pairs)
    names = links.hosts
    slow = [
        (*(names[host] for host in pair.hosts), pair.level, format_bandwidth(pair.bytes_per_s),
         format_bandwidth(usual[pair.level][2]))
        for pair in links.slow
    ]  # fmt: skip
    at_fault = [names[host] for host in slow_hosts(links.slow, links.pairs)]
    among = f": most of {', '.join(at_fault)}" if at_fault else ""
    text = f"{len(links.pairs):,} pairs of {len(names):,} hosts of {node_bench.cluster.name}"
    text += f", {len(slow)} slow{among}" if slow else ""
    records = [{**unstructure(pair), "hosts": [names[host] for host in pair.hosts]} for pair in links.pairs]
    by_level = [
        (level, f"{count:,}", format_seconds(latency_s), format_bandwidth(rate))
        for level, (count, latency_s, rate) in usual.items()
    ]
    collectives = [
        (entry.level, entry.entry.what, f"{entry.entry.inputs['size']:g}",
         format_bytes(entry.entry.inputs["bytes"]), format_seconds(entry.entry.timing.p50_s))
        for entry in links.entries
    ]  # fmt: skip
    document = {
        "hosts": [names[host] for host in sorted(names)],
        "pairs": records,
        "slow_pairs": [[names[host] for host in pair.hosts] for pair in links.slow],
        "slow_hosts": at_fault,
        "measurements": [unstructure(measurement) for measurement in node_bench.measurements],
    }
    return Answer(
        headline=text,
        sections=(
            *([Table(
                title="Slow pairs",
                columns=("host", "and", "level", "alone", "median of the level"),
                rows=tuple(slow),
                align="lllrr",
                note=f"less than {SLOW_SHARE:.0%} of the median of their level, among others and alone",
            )] if slow else []),
            Table(
                title="Pairs",
                columns=("level", "pairs", "latency", "bandwidth one way"),
                rows=tuple(by_level),
                align="lrrr",
                note="all ranks of a host with those of the other, every host in a pair at once",
            ),
            Table(
                title="Collectives",
                columns=("level", "what", "ranks", "message", "median"),
                rows=tuple(collectives),
                align="llrrr",
            ),
        ),
        document=lambda: json_text(document),
        records=tuple({**record, "hosts": " ".join(record["hosts"])} for record in records),
    )  # fmt: skip


def _identity(m: Measurement) -> tuple[str, str, str]:
    """What was measured."""
    return (m.what, m.dtype, " ".join(f"{key}={value:g}" for key, value in m.inputs.items()))


def _spread(m: Measurement) -> str:
    """How steady it was."""
    return f"{(m.p90 - m.p10) / m.p50:.0%}"


def _rate(m: Measurement) -> str:
    """FLOP/s of matrix products, bytes/s of everything that moves bytes."""
    if m.what == "gemm":
        return format_flop_per_s(2 * m.inputs["m"] * m.inputs["n"] * m.inputs["k"] / m.p50)
    return format_bandwidth(m.inputs["bytes"] / m.p50) if "bytes" in m.inputs else ""


def _record(m: Measurement) -> dict[str, Any]:
    """One measurement as a row of a spreadsheet."""
    plain: dict[str, Any] = {
        "what": m.what, "gpu": m.gpu, "dtype": m.dtype, "p10_s": m.p10, "p50_s": m.p50, "p90_s": m.p90,
        "repeats": m.repeats,
    }  # fmt: skip
    return {**plain, **m.inputs}
