"""What `plan topology` and `plan gpus` answer: a cluster as levels of bandwidth, the catalog as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from app.quantities import format_usd
from app.reports.answer import Answer, Facts, Lines, Section, Table, json_text
from app.reports.plan_headline import price_text
from costmodel.layout import AXIS_ORDERS, DEFAULT_AXIS_ORDER, LayoutTable, ParallelLayout
from costmodel.parallel.axes import RANK_AXES, STAGE_AXES
from costmodel.parallel.divisions import EXPERT_RANKS
from costmodel.training.rank_strides import axis_strides
from topology.base.counts import counted
from topology.base.decode import unstructure
from topology.base.errors import InputError
from topology.base.units import (
    GB,
    format_bandwidth,
    format_bytes,
    format_flop_per_s,
    format_nic,
    format_seconds,
    three_digits,
)
from topology.cluster import Cluster
from topology.discover.places import Figure
from topology.fabric.axis_report import AxisBandwidth, axis_bandwidth, bisection_bytes_per_s, oversubscription
from topology.fabric.hierarchy import Hierarchy, Level, reduction_words
from topology.hardware.gpu import Gpu
from topology.hardware.prices import Price
from topology.pools.rates import unpriced

SCHEMA_VERSION = 1
_SPLITS = (*RANK_AXES, *STAGE_AXES)
_INNER_FIRST = (*RANK_AXES[1:], RANK_AXES[0])
_DTYPES = ("bf16", "fp8", "fp4")


def topology_answer(
    cluster: Cluster, layout: ParallelLayout, notes: Sequence[str] = (), figures: Sequence[Figure] = ()
) -> Answer:
    """Describe a cluster: its levels, its bisection, and what each axis of a layout gets."""
    h = cluster.hierarchy
    axes = axes_of(h, layout)
    bisection = format_bandwidth(bisection_bytes_per_s(h))
    values = (*notes, *cluster.notes, *h.notes, *reduction_words(h))
    sections: list[Section] = [_facts(cluster), _levels_table(h), _axes_table(axes, layout)]
    if figures:
        rows = tuple((figure.name, figure.value, figure.source) for figure in figures)
        sections.append(
            Table(title="What was read", columns=("figure", "value", "from"), rows=rows, align="lll")
        )
    if values:  # what is amiss with an allocation is read before all else
        sections.insert(0 if figures else len(sections), Lines(title="Notes", lines=tuple(values)))
    return Answer(
        headline=f"{_title(cluster)}, bisection {bisection}",
        sections=tuple(sections),
        document=lambda: json_text(_document(cluster, layout, axes, values, figures)),
        records=tuple(unstructure(axis) for axis in axes),
    )


def _title(cluster: Cluster) -> str:
    """A cluster and how many GPUs it has, which the name of one that has no own says already."""
    unnamed = f"{cluster.num_gpus}x "
    if cluster.name.startswith(unnamed):
        return f"{cluster.num_gpus:,} × {cluster.name.removeprefix(unnamed)}"
    return f"{cluster.name}: {cluster.num_gpus:,} GPUs"


def axes_of(h: Hierarchy, layout: ParallelLayout) -> tuple[AxisBandwidth, ...]:
    """Give what every axis of a layout longer than one GPU gets, fastest axis first."""
    strides = axis_strides(LayoutTable.from_rows([layout]))
    order = [*reversed(layout.axis_order), *reversed(STAGE_AXES)]
    sizes = {axis: int(getattr(layout, axis)) for axis in order}
    return tuple(
        axis_bandwidth(h, axis, sizes[axis], int(strides[axis][0])) for axis in order if sizes[axis] > 1
    )


def parse_layout(text: str | None, order: str | None, h: Hierarchy) -> ParallelLayout:
    """Read `tp=8,pp=4` and an order of axes; dp fills the GPUs.

    Without a layout, tensor parallelism fills one host and data parallelism the rest.
    """
    degrees = _degrees(text) if text else {"tp": h.gpus_per_host}
    used = math.prod(degrees.get(axis, 1) for axis in RANK_AXES if axis != "dp")
    if "dp" not in degrees and h.num_gpus % used == 0:
        degrees["dp"] = h.num_gpus // used
    degree: dict[str, Any] = {axis: degrees.get(axis, 1) for axis in _SPLITS}
    layout = ParallelLayout(**degree, axis_order=_axis_order(order))
    if layout.num_gpus != h.num_gpus:
        parts = " · ".join(f"{axis} {getattr(layout, axis)}" for axis in _INNER_FIRST)
        raise InputError(
            what="the layout does not fill the cluster",
            cause=f"{parts} = {layout.num_gpus}, and the cluster has {h.num_gpus} GPUs",
            fix=_filling(degrees, h),
        )
    if EXPERT_RANKS.rest(layout.stage_ranks, layout.ep, layout.expert_tp):
        raise InputError(
            what="the experts do not divide their block",
            cause=f"dp·cp·tp = {layout.stage_ranks}, ep·expert_tp = {layout.expert_shards}",
            fix="choose ep·expert_tp that divides dp·cp·tp",
        )
    return layout


def _filling(degrees: Mapping[str, int], h: Hierarchy) -> str:
    """Tell how a layout comes to fill the cluster; where dp was left out it could not."""
    given = [axis for axis in _INNER_FIRST if axis in degrees]
    if "dp" in degrees:
        return "leave dp out and it fills the rest, or change a degree"
    return f"choose {'·'.join(given)} that divides {h.num_gpus}; dp then fills the rest"


def _degrees(text: str) -> dict[str, int]:
    """Read degrees such as `tp=8,pp=4`."""
    degrees: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in _SPLITS or not value.isdecimal() or int(value) < 1 or name in degrees:
            raise InputError(
                what=f"--layout {text} is not a layout",
                cause=f"{part.strip()!r} is not one degree of {', '.join(_SPLITS)}",
                fix="write for example --layout tp=8,pp=4",
            )
        degrees[name] = int(value)
    return degrees


def _axis_order(text: str | None) -> tuple[str, ...]:
    """Read an order of axes, slowest first; axes left out vary slowest."""
    if text is None:
        return DEFAULT_AXIS_ORDER
    named = tuple(word for word in text.replace("-", ",").replace(" ", ",").split(",") if word)
    order = (*(axis for axis in DEFAULT_AXIS_ORDER if axis not in named), *named)
    if order not in AXIS_ORDERS:
        raise InputError(
            what=f"--order {text} is not an order of axes",
            cause=f"the axes are {', '.join(DEFAULT_AXIS_ORDER)}, each at most once",
            fix="write them from slowest to fastest, for example --order pp,dp,cp,tp",
        )
    return order


def _facts(cluster: Cluster) -> Facts:
    """Give the parts of the cluster."""
    h, spec = cluster.hierarchy, cluster.spec
    nic = f"{h.nics_per_node} per host, {format_nic(h.nic.bandwidth_bytes_per_s)}" if h.nic else "none"
    rails = f", {h.rails} rails" if h.rails > 1 else ""
    domain = f"{h.gpus_per_node} GPUs, {format_bandwidth(h.scaleup.bandwidth_bytes_per_s)} per GPU each way"
    price = f"{price_text(spec)} per GPU hour, {spec.price_source} ({spec.price_as_of})"
    return Facts(
        title="Cluster",
        pairs=(
            ("GPU", f"{cluster.gpu.name}, {format_bytes(cluster.gpu.memory_bytes)}"),
            ("hosts", f"{spec.num_nodes:,} of {h.gpus_per_host} GPUs"),
            ("scale-up", f"{h.scaleup.kind}: {domain}"),
            ("NICs", f"{nic}{rails}"),
            ("fabric", f"{spec.fabric or 'unnamed'}, oversubscription {three_digits(oversubscription(h))}:1"),
            ("bisection", format_bandwidth(bisection_bytes_per_s(h))),
            ("price", f"not known of {', '.join(unpriced(spec))}" if unpriced(spec) else price),
            ("symmetric", "yes" if h.symmetric else "no"),
            ("fingerprint", cluster.fingerprint()),
        ),
    )


def _levels_table(h: Hierarchy) -> Table:
    """Give the levels, inner to outer."""
    rows = tuple(_level_row(h, level) for level in h.levels)
    note = "" if rows else f"one node: everything stays on {h.scaleup.kind}"
    return Table(
        title="Levels, inner to outer",
        columns=("level", "GPUs", "units", "uplink per GPU", "uplink per unit", "latency"),
        rows=rows,
        note=note,
    )


def _level_row(h: Hierarchy, level: Level) -> tuple[str, ...]:
    units = -(-h.num_gpus // level.unit_gpus)
    rates = (level.uplink_bytes_per_s, level.uplink_bytes_per_s * level.unit_gpus)
    per_gpu, per_unit = (format_bandwidth(rate) for rate in rates)
    return (
        level.name,
        f"{level.unit_gpus:,}",
        f"{units:,}",
        per_gpu,
        per_unit,
        format_seconds(level.latency_s),
    )


def _axes_table(axes: Sequence[AxisBandwidth], layout: ParallelLayout) -> Table:
    """Give what each axis gets, fastest first."""
    rows = tuple(
        (
            axis.axis,
            f"{axis.size:,}",
            f"{axis.stride:,}",
            f"{axis.nodes:,}",
            three_digits(axis.ring_bytes_per_s / GB),
            three_digits(axis.all_to_all_bytes_per_s / GB),
            three_digits(axis.p2p_bytes_per_s / GB),
            axis.bound_by,
        )
        for axis in axes
    )
    return Table(
        title=f"What each axis gets, order {' '.join(layout.axis_order)} (slowest to fastest)",
        columns=(
            "axis",
            "size",
            "stride",
            "nodes",
            "ring busbw",
            "all-to-all algbw",
            "p2p",
            "rings bound by",
        ),
        rows=rows,
        align="lrrrrrrl",
        note="GB/s per GPU on the links alone, all groups at once; collectives reach a measured share of it",
    )


def _document(
    cluster: Cluster,
    layout: ParallelLayout,
    axes: Sequence[AxisBandwidth],
    notes: Sequence[str],
    figures: Sequence[Figure],
) -> Mapping[str, Any]:
    """Give everything as plain data."""
    h = cluster.hierarchy
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": unstructure(cluster.spec),
        "fingerprint": cluster.fingerprint(),
        "num_gpus": cluster.num_gpus,
        "gpus_per_node": h.gpus_per_node,
        "gpus_per_host": h.gpus_per_host,
        "rails": h.rails,
        "scaleup": unstructure(h.scaleup),
        "nic": unstructure(h.nic) if h.nic else None,
        "levels": [unstructure(level) for level in h.levels],
        "symmetric": h.symmetric,
        "bisection_bytes_per_s": bisection_bytes_per_s(h),
        "axis_order": list(layout.axis_order),
        "axes": [unstructure(axis) for axis in axes],
        "notes": list(notes),
        "read": [unstructure(figure) for figure in figures],
    }


def gpus_answer(gpus: Mapping[str, Gpu], prices: Mapping[str, Price | None]) -> Answer:
    """List the catalog of GPUs."""
    rows = tuple(_gpu_row(gpu, prices[name]) for name, gpu in gpus.items())
    records = tuple(_gpu_record(gpu, prices[name]) for name, gpu in gpus.items())
    columns = (
        "GPU",
        "architecture",
        "memory",
        "memory rate",
        *(f"{d} TFLOP/s" for d in _DTYPES),
        "TDP",
        "$/h",
        "priced",
    )
    return Answer(
        headline=f"{counted(len(gpus), 'GPU')}; peaks are dense",
        sections=(
            Table(title="", columns=columns, rows=rows, align="llrrrrrrrl", note="sources and dates: --json"),
        ),
        document=lambda: json_text({"schema_version": SCHEMA_VERSION, "gpus": records}),
        records=tuple(_flat(record) for record in records),
    )


def machines_answer(clusters: Sequence[Mapping[str, Any]]) -> Answer:
    """List the machines and instance types a cluster can be made of."""
    rows = tuple(
        (
            str(m["name"]),
            str(m["gpu"]),
            str(m["gpus_per_node"]),
            f"{m['nics_per_node']} x {three_digits(m['nic_gbit_per_s'])} Gbit/s"
            if m["nics_per_node"]
            else "none",
            format_usd(m["usd_per_gpu_hour"]) if m["usd_per_gpu_hour"] is not None else "",
            str(m["price_as_of"]) or UNPRICED,
        )
        for m in clusters
    )
    return Answer(
        headline=f"{len(rows)} machines for --cluster",
        sections=(
            Table(
                title="",
                columns=("machine", "GPU", "GPUs", "NICs", "$/GPU h", "priced"),
                rows=rows,
                align="llrrrl",
            ),
        ),
        document=lambda: json_text({"schema_version": SCHEMA_VERSION, "machines": list(clusters)}),
        records=tuple({k: v for k, v in m.items() if not isinstance(v, list | tuple)} for m in clusters),
    )


UNPRICED = "none published"
"""Where the catalog has no price: nobody lists one that is dated, so none is guessed."""


def _gpu_row(gpu: Gpu, price: Price | None) -> tuple[str, ...]:
    peaks = (gpu.peak_flop_per_s.get(dtype) for dtype in _DTYPES)
    return (
        gpu.name,
        gpu.architecture,
        format_bytes(gpu.memory_bytes),
        format_bandwidth(gpu.memory_bandwidth_bytes_per_s),
        *(format_flop_per_s(peak).split(" ", maxsplit=1)[0] if peak else "" for peak in peaks),
        f"{gpu.tdp_w:.0f} W",
        format_usd(price.usd_per_gpu_hour) if price else "",
        price.as_of if price else UNPRICED,
    )


def _gpu_record(gpu: Gpu, price: Price | None) -> dict[str, Any]:
    record: dict[str, Any] = unstructure(gpu)
    return record | {"price": unstructure(price) if price else None}


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Give one record with a column for each dtype and price field."""
    flat = {name: value for name, value in record.items() if not isinstance(value, dict | list | tuple)}
    flat |= {f"{dtype}_flop_per_s": peak for dtype, peak in record["peak_flop_per_s"].items()}
    price = record["price"] or {}
    return (
        {name: value for name, value in flat.items() if name != "price"}
        | {f"price_{name}": value for name, value in price.items() if name != "usd_per_gpu_hour"}
        | {"usd_per_gpu_hour": price.get("usd_per_gpu_hour", "")}
    )
