"""Which link hurts? The fabric as layers of devices: width is bandwidth, colour is how busy a level is.

Large clusters are drawn folded: all units equal to one that is drawn stand as one block that says how many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from app.figures.style import GREY, SERIES, SWITCH_COLOUR, busy_colour, figure
from app.quantities import format_percent
from planner.analysis.link_load import LevelLoad
from topology.base.units import GB, format_bandwidth
from topology.cluster import Cluster
from topology.discover.places import MOST_NAMED
from topology.fabric import graph as g
from topology.fabric.degraded import host_names
from topology.fabric.wiring import build_graph
from topology.pools.kinds import kinds_of
from topology.spec import ClusterSpec

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_GPUS_IN_FULL = 64
_GPU_ROW, _NVSWITCH_ROW = 0.0, -1.0
_NODE_GAP, _UNIT_WIDTH = 1.5, 7.0
_SYMBOLS = ("circle", "diamond", "hexagon", "star", "cross", "triangle-up")
"""One for each kind of node; squares are switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One drawn line: two devices, and the level it belongs to."""

    first: str
    second: str
    level: str


def network_map(
    cluster: Cluster, loads: Sequence[LevelLoad], groups: Sequence[Sequence[int]] = ()
) -> go.Figure:
    """Draw the fabric.

    Args:
        cluster: Its graph is drawn, folded when it is large.
        loads: Utilisation of every level (`planner.analysis.link_load`).
        groups: GPUs of every group of one axis; members share a colour, GPUs of none are idle.
    """
    graph = drawn_graph(cluster.spec)
    places = positions(graph, cluster.hierarchy.gpus_per_node)
    by_level = {load.name: load for load in loads}
    reading = " ".join((levels_reading(loads), *kind_words(cluster.spec, groups)))
    picture = figure(
        reading, height=380, xaxis={"visible": False, "range": _across(places)},
        yaxis={"visible": False, "range": [-1.3, max(y for _, y in places.values()) + 0.5]},
    )  # fmt: skip
    for level, wires in wires_by_level(graph).items():
        picture.add_trace(_wire_trace(wires, places, by_level.get(level)))
    for trace in _device_traces(graph, places, _group_of(groups), cluster.spec):
        picture.add_trace(trace)
    for height, word in row_names(graph, places).items():
        picture.add_annotation(
            text=word, xref="paper", x=0, xanchor="left", y=height, yshift=16, showarrow=False,
            font={"size": 12, "color": GREY},
        )  # fmt: skip
    return picture


def _across(places: Mapping[str, tuple[float, float]]) -> list[float]:
    """Ends of the picture, with room for the names of the rows and of the last block."""
    first, last = min(x for x, _ in places.values()), max(x for x, _ in places.values())
    width = max(last - first, 1.0)
    return [first - 0.16 * width, last + 0.1 * width]


def row_names(graph: Any, places: Mapping[str, tuple[float, float]]) -> dict[float, str]:
    """Name of every row of devices, by its height."""
    names = {"gpu": "GPUs", "nvswitch": "NVSwitches"}
    rows: dict[float, str] = {}
    for device, (_, height) in places.items():
        kind = g.kind(graph, device)
        if kind in names:
            rows[height] = names[kind]
        elif kind == "switch":
            rows[height] = f"{g.role(graph, device)} switches"
    return rows


def drawn_graph(spec: ClusterSpec) -> Any:
    """The graph to draw: whole when it is small, folded when it is not."""
    return build_graph(spec, folded=spec.num_gpus > MOST_GPUS_IN_FULL)


def wires_by_level(graph: Any) -> dict[str, list[Wire]]:
    """Lines to draw, by level: scale-up, node (GPU to leaf through its NIC), then the tiers of switches."""
    wires: dict[str, list[Wire]] = {}
    for gpu in g.devices_of(graph, "gpu"):
        for other, link in g.links_of(graph, gpu):
            if link.kind in g.SCALEUP_KINDS and (g.kind(graph, other) != "gpu" or gpu < other):
                wires.setdefault("scale-up", []).append(Wire(first=gpu, second=other, level="scale-up"))
    for nic in g.devices_of(graph, "nic"):
        neighbours = [other for other, _ in g.links_of(graph, nic)]
        gpus = [d for pcie in neighbours for d, _ in g.links_of(graph, pcie) if g.kind(graph, d) == "gpu"]
        leaves = [other for other in neighbours if g.kind(graph, other) == "switch"]
        wires.setdefault("node", []).extend(
            Wire(first=gpu, second=leaf, level="node") for gpu in gpus for leaf in leaves
        )
    for device in g.devices_of(graph, "switch", "unit"):
        for other, _ in g.links_of(graph, device):
            if g.kind(graph, other) == "switch" and g.tier(graph, other) > _height(graph, device):
                level = _level_below(graph, device, other)
                wires.setdefault(level, []).append(Wire(first=device, second=other, level=level))
    return {level: lines for level, lines in wires.items() if lines}


def positions(graph: Any, gpus_per_node: int) -> dict[str, tuple[float, float]]:
    """Where each drawn device stands: GPUs in a row by node, their NVSwitch below, switches above."""
    places: dict[str, tuple[float, float]] = {}
    x = 0.0
    for number, gpu in enumerate(sorted(g.devices_of(graph, "gpu"), key=lambda d: g.first_gpu(graph, [d]))):
        x += 1.0 + (_NODE_GAP if number and number % gpus_per_node == 0 else 0.0)
        places[gpu] = (x, _GPU_ROW)
    for block in folded_blocks(graph):
        x += _UNIT_WIDTH
        places |= dict.fromkeys(block, (x, _GPU_ROW))
    for switch in g.devices_of(graph, "nvswitch"):
        below = [places[other][0] for other, _ in g.links_of(graph, switch) if other in places]
        places[switch] = (sum(below) / len(below), _NVSWITCH_ROW)
    for tier in range(1, g.top_tier(graph) + 1):
        switches = [d for d in g.devices_of(graph, "switch") if g.tier(graph, d) == tier]
        for number, switch in enumerate(switches):
            places[switch] = (1.0 + (x - 1.0) * (number + 0.5) / len(switches), float(tier))
    return places


def folded_blocks(graph: Any) -> list[list[str]]:
    """Folded units that are equal, as one block each, smallest units first."""
    blocks: dict[tuple[int, int], list[str]] = {}
    for unit in g.devices_of(graph, "unit"):
        blocks.setdefault((g.tier(graph, unit), g.gpu_count(graph, [unit])), []).append(unit)
    return [blocks[key] for key in sorted(blocks)]


def _height(graph: Any, device: str) -> int:
    """Tier a device counts as when a line goes up from it: a folded unit hangs below every switch."""
    return g.tier(graph, device) if g.kind(graph, device) == "switch" else -1


def _level_below(graph: Any, device: str, switch: str) -> str:
    """Name of the boundary a line crosses: that of the lower switch, or of what a folded unit stands for."""
    if g.kind(graph, device) == "switch":
        return g.role(graph, device)
    below = [d for d in g.devices_of(graph, "switch") if g.tier(graph, d) == g.tier(graph, switch) - 1]
    return g.role(graph, below[0]) if below else "node"


def _group_of(groups: Sequence[Sequence[int]]) -> Mapping[int, int]:
    """Group of every GPU."""
    return {gpu: number for number, members in enumerate(groups) for gpu in members}


def _wire_trace(
    wires: Sequence[Wire], places: Mapping[str, tuple[float, float]], load: LevelLoad | None
) -> go.Scatter:
    """All lines of one level as one trace with gaps."""
    import plotly.graph_objects as go

    xs: list[float | None] = []
    ys: list[float | None] = []
    for (x0, y0), (x1, y1) in dict.fromkeys((places[wire.first], places[wire.second]) for wire in wires):
        xs += [x0, x1, None]
        ys += [y0, y1, None]
    width = 1.0 if load is None else line_width(load.bytes_per_s)
    colour = GREY if load is None or not load.busy else busy_colour(load.utilisation)
    name = wires[0].level if load is None else level_text(load)
    return go.Scatter(
        x=xs, y=ys, mode="lines", line={"width": width, "color": colour}, name=name.partition(" (")[0],
        hovertext=wires[0].level if load is None else level_text(load), hoverinfo="text",
    )  # fmt: skip


def line_width(bytes_per_s: float) -> float:
    """Pixels of a line: one for every doubling above 10 GB/s.

    >>> line_width(10e9), line_width(80e9)
    (1.0, 4.0)
    """
    return 1.0 + max(0.0, math.log2(bytes_per_s / (10 * GB)))


def level_text(load: LevelLoad) -> str:
    """Name a level with its bandwidth and how busy it is."""
    parts = [f"{axis} {format_percent(share)}" for axis, share in load.busy.items() if share > 0]
    detail = f" ({', '.join(parts)})" if parts else ""
    rate = f"{load.name} {format_bandwidth(load.bytes_per_s)}"
    return f"{rate}: {format_percent(load.utilisation)} busy{detail}" if load.busy else rate


def nodes_of_gpus(spec: ClusterSpec, gpus: Sequence[int]) -> list[int]:
    """Node of each of these GPUs."""
    sizes = np.repeat([node.gpus_per_node for node in spec.nodes], [node.count for node in spec.nodes])
    return [int(node) for node in np.searchsorted(np.cumsum(sizes), np.asarray(gpus, dtype=int), "right")]


def kind_of_nodes(spec: ClusterSpec) -> list[int]:
    """Number of the kind of every node, in the order of `topology.pools.kinds.kinds_of`."""
    kinds = [replace(kind, count=1) for kind in kinds_of(spec)]
    of_entry = [kinds.index(replace(node, count=1, name="", switch="", hosts=())) for node in spec.nodes]
    return [kind for kind, node in zip(of_entry, spec.nodes, strict=True) for _ in range(node.count)]


def kind_words(spec: ClusterSpec, groups: Sequence[Sequence[int]] = ()) -> tuple[str, ...]:
    """What the picture shows of kinds of node, and of nodes that no group is on: one sentence each."""
    node_specs, words = kinds_of(spec), []
    if len(node_specs) > 1:
        named = (
            f"{kind.count} × {kind.gpus_per_node} {kind.gpu} ({_SYMBOLS[number % len(_SYMBOLS)]}s)"
            for number, kind in enumerate(node_specs)
        )
        words.append(f"Nodes differ: {', '.join(named)}.")
    working = set(nodes_of_gpus(spec, list(_group_of(groups))))
    idle = [name for node, name in enumerate(host_names(spec)) if working and node not in working]
    if idle:
        more = f" and {len(idle) - MOST_NAMED:,} more" if len(idle) > MOST_NAMED else ""
        words.append(f"Idle: {', '.join(idle[:MOST_NAMED])}{more}.")
    return tuple(words)


def _device_traces(
    graph: Any, places: Mapping[str, tuple[float, float]], group_of: Mapping[int, int], spec: ClusterSpec
) -> list[go.Scatter]:
    """Markers of GPUs, a symbol for each kind of node, of switches and of folded units."""
    gpus = [device for device in places if g.kind(graph, device) == "gpu"]
    numbers = [g.first_gpu(graph, [gpu]) for gpu in gpus]
    nodes, kinds, hosts = nodes_of_gpus(spec, numbers), kind_of_nodes(spec), host_names(spec)
    marks: dict[int, list[tuple[tuple[float, float], str, str]]] = {}
    for gpu, number, node in zip(gpus, numbers, nodes, strict=True):
        group = group_of.get(number)
        colour = GREY if group is None and group_of else SERIES[(group or 0) % len(SERIES)]
        doing = f" · group {group}" if group is not None else " · idle" if group_of else ""
        mark = places[gpu], f"GPU {number} of {hosts[node]}{doing}", colour
        marks.setdefault(kinds[node], []).append(mark)
    drawn = [
        _markers(
            [at for at, _, _ in some], [word for _, word, _ in some],
            symbol=_SYMBOLS[kind % len(_SYMBOLS)], size=13, color=[colour for _, _, colour in some],
        )
        for kind, some in sorted(marks.items())
    ]  # fmt: skip
    switches = [d for d in places if g.kind(graph, d) in ("switch", "nvswitch")]
    blocks = folded_blocks(graph)
    labels = [f"{len(block):,} more ×<br>{g.gpu_count(graph, block[:1]):,} GPUs" for block in blocks]
    return [
        _markers([places[d] for d in switches], switches, symbol="square", size=10, color=SWITCH_COLOUR),
        *drawn,
        _markers([places[block[0]] for block in blocks], labels, symbol="square", size=22, color=GREY).update(
            mode="markers+text", text=labels, textposition="bottom center"
        ),
    ]


def _markers(at: Sequence[tuple[float, float]], words: Sequence[str], **marker: Any) -> go.Scatter:
    """Markers at some places, each with a word on hover."""
    import plotly.graph_objects as go

    marker["line"] = {"color": GREY, "width": 1}
    return go.Scatter(
        x=[x for x, _ in at], y=[y for _, y in at], mode="markers", marker=marker, hovertext=list(words),
        hoverinfo="text", showlegend=False, cliponaxis=False,
    )  # fmt: skip


def levels_reading(loads: Sequence[LevelLoad]) -> str:
    """Say which level is busiest, or what each gives where no load is known."""
    if not any(load.busy for load in loads):
        rates = ", ".join(level_text(load) for load in loads)
        return f"What each GPU gets at every level, in each direction: {rates}." if rates else "The fabric."
    busiest = max(loads, key=lambda load: load.utilisation)
    if busiest.utilisation == 0:
        return "No level of the fabric carries traffic in this plan."
    return f"The busiest level is {level_text(busiest)}."
