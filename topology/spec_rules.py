"""What a cluster description must satisfy before it is built; all violations are found, not only one."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, pairwise

from topology.base.errors import InputError, shown
from topology.hardware.gpu import Gpu
from topology.spec import SCALEUPS, STORAGE_KINDS, ClusterSpec, NodeSpec, StorageSpec, SwitchSpec

MAX_GPUS = 2**20
"""A million GPUs is beyond any cluster; a larger count is a typing mistake."""

MOST_NODE_GPUS = MOST_NODE_NICS = 1024
"""Of one host; racks that are described as one have up to 576 GPUs (NVL576) and as many NICs."""
MOST_MESH_GPUS = 64
"""GPUs with a link from each to every other; none has more than 36 links."""
MOST_DOMAIN_GPUS = 2**14
"""GPUs of a scale-up domain, which is drawn in full; the largest announced have 15,488 (Atlas 960)."""
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
MOST_TIERS = 16
"""Tiers of switches, or the depth of a tree of them; a million GPUs need four."""
MOST_SWITCHES = 10_000
"""Switches that are named one by one."""
MOST_DRAWN = 2**17
"""Devices and ports of the graph a hierarchy is derived from: ten seconds. Equal units are drawn once."""
MOST_PROBLEMS = 20
"""Problems that are listed; a description with more is another kind of file."""


def require_valid(spec: ClusterSpec) -> None:
    """Raise the three-line error that lists everything wrong with a spec."""
    problems = violations(spec)
    if problems:
        listed = "; ".join(problems[:MOST_PROBLEMS])
        cause = listed if len(problems) == 1 else f"{len(problems)} problems: {listed}"
        fix = "correct these values; docs/clusters.md describes every key"
        raise InputError(f"cluster {shown(spec.name)} cannot be built", cause, fix)


def violations(spec: ClusterSpec) -> tuple[str, ...]:
    """Return everything wrong with a spec, each with its path."""
    result = [
        *(line for i, node in enumerate(spec.nodes) for line in _node(node, f"nodes[{i}]")),
        *(line for i, gpu in enumerate(spec.gpus) for line in _gpu(gpu, f"gpus[{i}]")),
        *(line for i, place in enumerate(spec.storage) for line in storage_problems(place, f"storage[{i}]")),
        *_whole(spec),
        *_tiers(spec),
        *_switches(spec),
    ]
    return tuple(result or _drawn(spec))


def _positive(path: str, **values: float) -> Iterator[str]:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            yield f"{path}.{name} = {value:g}, must be positive and finite"
        elif value < 1:  # of every unit used here: a byte, a watt, an operation a second
            yield f"{path}.{name} = {value:g}, must be at least 1"


def _at_most(path: str, name: str, value: int, most: int) -> Iterator[str]:
    if value > most:
        yield f"{path}.{name} = {value:g}, more than the {most:,} that can be"


def _not_negative(path: str, **values: float) -> Iterator[str]:
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            yield f"{path}.{name} = {value:g}, must be finite and not negative"


def _node(node: NodeSpec, path: str) -> Iterator[str]:
    yield from _positive(
        path,
        count=node.count,
        gpus_per_node=node.gpus_per_node,
        nodes_per_domain=node.nodes_per_domain,
        host_bandwidth_bytes_per_s=node.host_bandwidth_bytes_per_s,
    )
    yield from _not_negative(
        path,
        nics_per_node=node.nics_per_node,
        scaleup_latency_s=node.scaleup_latency_s,
        nic_latency_s=node.nic_latency_s,
        usd_per_gpu_hour=node.usd_per_gpu_hour or 0.0,
        host_memory_bytes=node.host_memory_bytes,
        host_memory_bandwidth_bytes_per_s=node.host_memory_bandwidth_bytes_per_s,
    )
    if node.hosts and len(node.hosts) != node.count:
        yield f"{path}.hosts has {len(node.hosts)} names, must be count = {node.count} of them"
    wrong = next((name for name in node.hosts if HOST_NAME.fullmatch(name) is None), None)
    if wrong is not None:
        yield f"{path}.hosts has {shown(wrong)}, which is no host's name"
    yield from _at_most(path, "gpus_per_node", node.gpus_per_node, MOST_NODE_GPUS)
    yield from _at_most(path, "nics_per_node", node.nics_per_node, MOST_NODE_NICS)
    in_domain = node.gpus_per_node * node.nodes_per_domain
    yield from _at_most(path, "gpus_per_node·nodes_per_domain", in_domain, MOST_DOMAIN_GPUS)
    if node.scaleup == "nvlink-mesh":
        yield from _at_most(path, "gpus_per_node of an nvlink-mesh", node.gpus_per_node, MOST_MESH_GPUS)
    if node.scaleup not in SCALEUPS:
        yield f"{path}.scaleup = {shown(node.scaleup)}, must be one of {', '.join(SCALEUPS)}"
    elif node.scaleup != "pcie" and node.gpus_per_node * node.nodes_per_domain > 1:
        yield from _positive(path, scaleup_bandwidth_bytes_per_s=node.scaleup_bandwidth_bytes_per_s)
    if node.nics_per_node:
        yield from _positive(path, nic_bandwidth_bytes_per_s=node.nic_bandwidth_bytes_per_s)
    if node.nodes_per_domain > 1 and node.scaleup != "nvswitch":
        yield f"{path}.nodes_per_domain = {node.nodes_per_domain}, but only an nvswitch domain spans nodes"


def _gpu(gpu: Gpu, path: str) -> Iterator[str]:
    yield from _positive(
        path,
        memory_bytes=gpu.memory_bytes,
        memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        tdp_w=gpu.tdp_w,
        **{f"peak_flop_per_s.{dtype}": peak for dtype, peak in gpu.peak_flop_per_s.items()},
    )
    if not gpu.peak_flop_per_s:
        yield f"{path}.peak_flop_per_s is empty, at least one precision is needed"


MOST_PLACES = 8
"""That checkpoints may go to: every chain of them is tried."""
SURVIVALS = ("process", "disk", "node", "rack", "memory")
"""What a place of checkpoints can survive, as `costmodel.campaign.record.SURVIVED` says it."""


def storage_problems(place: StorageSpec, path: str) -> Iterator[str]:
    """What is wrong with a place that checkpoints go to."""
    if place.kind not in STORAGE_KINDS:
        yield f"{path}.kind = {shown(place.kind)}, must be one of {', '.join(STORAGE_KINDS)}"
    if place.survives and place.survives not in SURVIVALS:
        yield f"{path}.survives = {shown(place.survives)}, must be one of {', '.join(SURVIVALS)}"
    bandwidths = {
        "write_bytes_per_s": place.write_bytes_per_s,
        "read_bytes_per_s": place.read_bytes_per_s,
    }
    if place.kind in ("host", "peer"):
        yield from _not_negative(path, **bandwidths)
    else:
        yield from _positive(path, **bandwidths)
    yield from _not_negative(path, bytes=place.bytes, usd=place.usd or 0.0)


def _whole(spec: ClusterSpec) -> Iterator[str]:
    if not spec.nodes:
        yield "nodes is empty, a cluster has at least one node"
    if spec.num_gpus > MAX_GPUS:
        yield f"it has {spec.num_gpus:g} GPUs, more than the {MAX_GPUS} that can be planned for"
    yield from _at_most("top level", "storage", len(spec.storage), MOST_PLACES)
    dollars = {"usd_per_gpu_hour": spec.usd_per_gpu_hour or 0.0, "idle_usd_per_hour": spec.idle_usd_per_hour}
    yield from _not_negative("top level", **dollars, grid_g_co2_per_kwh=spec.grid_g_co2_per_kwh or 0.0)
    for kind, names in (
        ("node", [node.name for node in spec.nodes if node.name]),
        ("host", [host for node in spec.nodes for host in node.hosts]),
        ("switch", [switch.name for switch in spec.switches]),
        ("GPU type", [gpu.name for gpu in spec.gpus]),
        ("tier", [tier.name for tier in spec.tiers]),
        ("storage", [place.title for place in spec.storage]),
    ):
        for name, count in Counter(names).items():
            if count > 1:
                yield f"{kind} name {shown(name)} is used {count} times"
    if _num_domains(spec) > 1:
        for i, node in enumerate(spec.nodes):
            if not node.nics_per_node:
                yield f"nodes[{i}].nics_per_node = 0, so its nodes are disconnected from the others"


def _num_domains(spec: ClusterSpec) -> int:
    return sum(-(-node.count // max(1, node.nodes_per_domain)) for node in spec.nodes)


def _drawn(spec: ClusterSpec) -> Iterator[str]:
    """Find a cluster whose graph is too large: equal units below a switch are one device each, others all.

    A unit costs a link for each of its NICs; with tiers, units are those of one group of each tier.
    """
    in_full = [min(n.count, n.nodes_per_domain) * (n.gpus_per_node + n.nics_per_node) for n in spec.nodes]
    domains = [-(-node.count // node.nodes_per_domain) for node in spec.nodes]
    if not is_even(spec) or any(tier.units for tier in spec.tiers):
        drawn = sum(count * number for count, number in zip(in_full, domains, strict=True))
    else:
        below = [tier.nodes_per_unit for tier in spec.tiers if tier.nodes_per_unit < spec.num_nodes]
        sizes = [spec.nodes[0].nodes_per_domain, *below, spec.num_nodes]
        units = sum(-(-large // small) for small, large in pairwise(sizes)) + len(spec.nodes)
        ports = max(node.nics_per_node * node.nodes_per_domain for node in spec.nodes)
        drawn = sum(dict(zip(spec.nodes, in_full, strict=True)).values()) + units * max(1, ports)
    if drawn > MOST_DRAWN:
        yield (
            f"its graph has {drawn:,} devices and ports, more than the {MOST_DRAWN:,} that are drawn: "
            "equal nodes in tiers of switches are drawn once"
        )


def is_even(spec: ClusterSpec) -> bool:
    """Return whether every scale-up domain but the last has the same GPUs, so that equal units align."""
    sizes = {node.gpus_per_node * node.nodes_per_domain for node in spec.nodes}
    return len(sizes) == 1 and all(node.count % node.nodes_per_domain == 0 for node in spec.nodes[:-1])


def _tiers(spec: ClusterSpec) -> Iterator[str]:
    yield from _at_most("tiers", "length", len(spec.tiers), MOST_TIERS)
    if spec.tiers and spec.switches:
        yield "tiers and switches are both given: describe the fabric one way"
    previous = max((node.nodes_per_domain for node in spec.nodes), default=1)
    for i, tier in enumerate(spec.tiers):
        path = f"tiers[{i}]"
        yield from _positive(path, nodes_per_unit=tier.nodes_per_unit, oversubscription=tier.oversubscription)
        yield from _not_negative(path, latency_s=tier.latency_s)
        if 0 < tier.oversubscription < 1:
            yield f"{path}.oversubscription = {tier.oversubscription:g}, must be at least 1 (in over out)"
        if tier.units is not None:
            yield from _uneven(spec, i)
        elif (
            tier.nodes_per_unit % max(1, previous)
            and tier.nodes_per_unit < spec.num_nodes  # one that joins all of them cuts none
            and not any(below.units for below in spec.tiers[:i])
        ):
            yield f"{path}.nodes_per_unit = {tier.nodes_per_unit}, must be a multiple of {previous}"
        previous = tier.nodes_per_unit


def _uneven(spec: ClusterSpec, i: int) -> Iterator[str]:
    """Find units of differing size that do not add up, or that cut a unit of the tier below or a domain."""
    tier, path = spec.tiers[i], f"tiers[{i}].units"
    sizes = tier.units or ()
    if not sizes or min(sizes) < 1 or max(sizes) != tier.nodes_per_unit or sum(sizes) != spec.num_nodes:
        shown_sizes = ", ".join(map(str, sizes[:MOST_PROBLEMS]))
        most = f"at most nodes_per_unit = {tier.nodes_per_unit}"
        yield f"{path} = {shown_sizes}, must be {spec.num_nodes} nodes in all, {most}"
        return
    below = spec.tiers[i - 1] if i else None
    if below is not None:
        inner = below.units or (below.nodes_per_unit,) * (spec.num_nodes // max(1, below.nodes_per_unit))
    else:
        inner = tuple(
            min(node.nodes_per_domain, node.count - start)
            for node in spec.nodes
            for start in range(0, node.count, max(1, node.nodes_per_domain))
        )
    if not set(accumulate(sizes[:-1])) <= set(accumulate(inner)):
        yield f"{path} cut {below.name if below else 'a scale-up domain'}: a unit holds whole ones"


def _switches(spec: ClusterSpec) -> Iterator[str]:
    if not spec.switches:
        for i, node in enumerate(spec.nodes):
            if node.switch:
                yield f"nodes[{i}].switch = {node.switch!r}, but no switches are listed"
        return
    yield from _at_most("switches", "length", len(spec.switches), MOST_SWITCHES)
    names = {switch.name for switch in spec.switches}
    for i, node in enumerate(spec.nodes):
        if node.switch not in names:
            yield f"nodes[{i}].switch = {node.switch!r}, which is no switch: its nodes are disconnected"
    for i, switch in enumerate(spec.switches):
        if not switch.name:  # which would be its own parent's name, and the place of nodes that name none
            yield f"switches[{i}].name is empty"
        if switch.parent and switch.parent not in names:
            yield f"switches[{i}].parent = {switch.parent!r}, which is no switch"
        if switch.parent:
            path = f"switches[{i}]"
            yield from _positive(path, uplink_bandwidth_bytes_per_s=switch.uplink_bandwidth_bytes_per_s)
            yield from _not_negative(path, latency_s=switch.latency_s)
    yield from _shape_of_tree(spec.switches)


def _shape_of_tree(switches: tuple[SwitchSpec, ...]) -> Iterator[str]:
    """Find cycles, and roots beyond the first."""
    parent = {switch.name: switch.parent for switch in switches}
    roots = [name for name, above in parent.items() if not above]
    if len(roots) > 1:
        named = ", ".join(map(shown, roots[:MOST_PROBLEMS]))
        yield f"switches {named} have no parent: the topology is disconnected"
    for name in parent:
        path = [name]
        while len(path) <= MOST_TIERS and (above := parent.get(path[-1], "")):
            if above in path:
                yield f"switches are cyclic: {' -> '.join([*path[path.index(above) :], above])}"
                return
            path.append(above)
        if len(path) > MOST_TIERS:
            yield f"switch {shown(name)} is more than {MOST_TIERS} switches away from a root"
            return
