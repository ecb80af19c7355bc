"""Seconds of a collective inside one node (scale-up domain), read off nccl-tests tables.

Legend: n = members inside the node, B = message bytes (as in `costmodel.kernels.collectives`), busbw =
traffic/time with traffic = 2(n−1)/n·B for an all-reduce and (n−1)/n·B otherwise. Tables hold 2, 4 and 8 GPUs
on switched NVLink, and PCIe hosts; other scale-ups are carried over by their bandwidth.
"""

from dataclasses import replace

import numpy as np

from costmodel.kernels.grids import Grid, interpolate, outside, stacked
from costmodel.kernels.tables import Calibration
from topology.base.arrays import Floats, Mask
from topology.fabric.hierarchy import Counts, Hierarchy, ring_bandwidth
from topology.hardware.datasheets import generation_of

SAME_BANDWIDTH = 0.1  # data sheets round; a node this close to the measured one is the same
TABLE_AXES = ("nccl_gpus", "nccl_bytes")


def node_seconds(
    cal: Calibration, h: Hierarchy, op: str, message_bytes: Floats, members: Counts, stride: Counts
) -> tuple[Floats, Mask]:
    """Return seconds of a collective of `members` GPUs of one node, and where they were extrapolated.

        t = t0 + (T(n, B) − t0)·(table's bandwidth)/(this node's)

    What passes a host's memory, as GPUs without peer access send it, was measured over lanes of 32 GB/s, and
    is not carried over to faster ones: memory and its copies may bind there.
    Beyond the table's largest message time grows along its last interval; beyond its largest group traffic
    grows as (n−1)/n and each further ring step adds α_in, paid in full only by large messages.
    """
    name, native = collective_table_of(cal, h)
    table_op, scale = _as_measured(op, h)
    grid = cal.grid(name, f"nccl_{table_op}", TABLE_AXES)
    if grid is None:
        raise LookupError(f"{name}.npz has no collectives")
    n = np.maximum(np.where(op == "p2p", 2, members), 2).astype(np.float64)
    b = np.maximum(message_bytes * scale, 1.0)
    seconds, beyond = _table_seconds(grid, n, b)
    seconds = seconds + _larger_group(cal, grid, op, n, seconds)
    if not native:
        floor = np.minimum(np.exp(grid.log_values.min()), seconds)
        measured = cal.fits()["scaleup_bytes_per_s"][name]
        rate = _ring_inside(h, np.maximum(members, 2), stride)
        if h.scaleup.kind == "pcie" and not h.gpu.peer_to_peer:
            rate = np.minimum(rate, measured)
        seconds = floor + (seconds - floor) * measured / rate
    seconds = np.where(members > 1, seconds, 0.0)
    return seconds, np.asarray(beyond | (not native))


def _ring_inside(h: Hierarchy, members: Counts, stride: Counts) -> Floats:
    """Return the bus bandwidth of a ring of members that share a node, whatever their group does outside it.

    Members of a group that straddles nodes need not sit evenly inside one: they are spaced as widely as fits.
    """
    node = h.gpus_per_node
    levels = tuple(level for level in h.levels if level.unit_gpus < node)
    alone = replace(h, num_gpus=node, levels=levels)
    return ring_bandwidth(alone, members, np.minimum(stride, np.maximum(1, node // members)))


def node_source(cal: Calibration, h: Hierarchy) -> str:
    """Return where in-node collective times of this hierarchy come from, for provenance."""
    name, native = collective_table_of(cal, h)
    return f"nccl-tests table of {name}" + ("" if native else ", carried over by bandwidth")


def collective_table_of(cal: Calibration, h: Hierarchy) -> tuple[str, bool]:
    """Return the GPU whose collective tables stand for this node, and whether they were measured on it."""
    peers = "" if h.gpu.peer_to_peer else "through hosts"
    key = ("nccl_table", h.gpu.name, h.scaleup.kind, str(h.scaleup.bandwidth_bytes_per_s), peers)
    if key not in cal.tables:
        cal.tables[key] = _find_table(cal, h)
    table: tuple[str, bool] = cal.tables[key]
    return table


def _find_table(cal: Calibration, h: Hierarchy) -> tuple[str, bool]:
    fits = cal.fits()
    gpu, measured = h.gpu.name, fits["scaleup_bytes_per_s"]
    if h.scaleup.kind == "pcie":
        hosts = fits["pcie_tables"]
        if not h.gpu.peer_to_peer:
            return hosts["without_peer_to_peer"], False
        name = hosts["by_name"].get(gpu, hosts["default"])
        return name, name == gpu
    on_pcie = fits["pcie_tables"]["by_name"]
    stand_ins = fits["stand_ins"]
    nearest = gpu, stand_ins["by_name"].get(gpu), generation_of(h.gpu).kernels_of
    name = next((n for n in nearest if n in measured and n not in on_pcie), stand_ins["other"])
    alike = np.isclose(h.scaleup.bandwidth_bytes_per_s, measured[name], rtol=SAME_BANDWIDTH)
    return name, bool(alike and h.scaleup.kind == "nvswitch" and name == gpu)


def _as_measured(op: str, h: Hierarchy) -> tuple[str, float]:
    """Return the table an op is read from, and what its message is multiplied by there.

    A p2p of B is half of a two-GPU all-to-all of 2B; a broadcast streams like an all-gather. NVSwitch
    reductions (SHARP) exist only on switched NVLink: elsewhere an all-reduce is a reduce-scatter of 2B.
    """
    if op == "p2p":
        return "all_to_all", 2.0
    if op == "broadcast":
        return "all_gather", 1.0
    if op == "all_reduce" and h.scaleup.kind in ("nvlink-mesh", "nvlink-pairs"):
        return "reduce_scatter", 2.0
    return op, 1.0


def _table_seconds(grid: Grid, n: Floats, b: Floats) -> tuple[Floats, Mask]:
    """Return table seconds, continued linearly in bytes along the last interval."""
    at = stacked(n, b)
    beyond = outside(grid, at)
    inside = np.asarray(np.exp(interpolate(grid, at)))
    largest = grid.last[1]
    larger = b > largest
    if not np.any(larger):
        return inside, beyond
    members = np.broadcast_to(n, np.shape(inside))[larger]
    half_largest = stacked(members, np.full(members.shape, largest / 2))
    slope = (inside[larger] - np.exp(interpolate(grid, half_largest))) / (largest / 2)
    inside[larger] += (np.broadcast_to(b, np.shape(inside))[larger] - largest) * slope
    return inside, beyond


def _larger_group(cal: Calibration, grid: Grid, op: str, n: Floats, seconds: Floats) -> Floats:
    """Return the seconds that members beyond the largest measured group add."""
    most = grid.last[0]
    if not np.any(n > most):
        return np.zeros(())
    net = cal.network()
    phases = 2.0 if op == "all_reduce" else 1.0
    wider = np.maximum(n, most)
    traffic = ((wider - 1) / wider) / ((most - 1) / most) - 1
    steps = phases * (wider - most) * net["step_inside_s"]
    saturation = seconds / (seconds + net["half_s"] + np.exp(grid.log_values.min()))
    return np.asarray(seconds * traffic + steps * saturation)
