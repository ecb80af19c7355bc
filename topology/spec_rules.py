"""What a cluster description must satisfy before it is built; all violations are found, not only one."""

import math
from collections import Counter
from collections.abc import Iterator

from topology.base.errors import InputError
from topology.hardware.gpu import Gpu
from topology.spec import SCALEUPS, ClusterSpec, NodeSpec, SwitchSpec

MAX_GPUS = 2**20
"""A million GPUs is beyond any cluster; a larger count is a typing mistake."""

MOST_NODE_GPUS = 1024
"""GPUs of one host; racks that are described as one have up to 576 (NVL576)."""


def require_valid(spec: ClusterSpec) -> None:
    """Raise the three-line error that lists everything wrong with a spec."""
    problems = violations(spec)
    if problems:
        cause = problems[0] if len(problems) == 1 else f"{len(problems)} problems: " + "; ".join(problems)
        fix = "correct these values; docs/clusters.md describes every key"
        raise InputError(f"cluster {spec.name!r} cannot be built", cause, fix)


def violations(spec: ClusterSpec) -> tuple[str, ...]:
    """Return everything wrong with a spec, each with its path."""
    found = [
        *(line for i, node in enumerate(spec.nodes) for line in _node(node, f"nodes[{i}]")),
        *(line for i, gpu in enumerate(spec.gpus) for line in _gpu(gpu, f"gpus[{i}]")),
        *_whole(spec),
        *_tiers(spec),
        *_switches(spec),
    ]
    return tuple(found)


def _positive(path: str, **values: float) -> Iterator[str]:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            yield f"{path}.{name} = {value:g}, must be positive and finite"


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
    )
    if node.scaleup not in SCALEUPS:
        yield f"{path}.scaleup = {node.scaleup!r}, must be one of {', '.join(SCALEUPS)}"
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


def _whole(spec: ClusterSpec) -> Iterator[str]:
    if not spec.nodes:
        yield "nodes is empty, a cluster has at least one node"
    if spec.num_gpus > MAX_GPUS:
        yield f"it has {spec.num_gpus:g} GPUs, more than the {MAX_GPUS} that can be planned for"
    if spec.usd_per_gpu_hour is not None:
        yield from _not_negative("top level", usd_per_gpu_hour=spec.usd_per_gpu_hour)
    for kind, names in (
        ("node", [node.name for node in spec.nodes if node.name]),
        ("switch", [switch.name for switch in spec.switches]),
        ("GPU type", [gpu.name for gpu in spec.gpus]),
        ("tier", [tier.name for tier in spec.tiers]),
    ):
        for name, count in Counter(names).items():
            if count > 1:
                yield f"{kind} name {name!r} is used {count} times"
    if _num_domains(spec) > 1:
        for i, node in enumerate(spec.nodes):
            if not node.nics_per_node:
                yield f"nodes[{i}].nics_per_node = 0, so its nodes are disconnected from the others"


def _num_domains(spec: ClusterSpec) -> int:
    return sum(-(-node.count // max(1, node.nodes_per_domain)) for node in spec.nodes)


def _tiers(spec: ClusterSpec) -> Iterator[str]:
    if spec.tiers and spec.switches:
        yield "tiers and switches are both given: describe the fabric one way"
    previous = max((node.nodes_per_domain for node in spec.nodes), default=1)
    for i, tier in enumerate(spec.tiers):
        path = f"tiers[{i}]"
        yield from _positive(path, nodes_per_unit=tier.nodes_per_unit, oversubscription=tier.oversubscription)
        yield from _not_negative(path, latency_s=tier.latency_s)
        if 0 < tier.oversubscription < 1:
            yield f"{path}.oversubscription = {tier.oversubscription:g}, must be at least 1 (in over out)"
        if tier.nodes_per_unit % max(1, previous):
            yield f"{path}.nodes_per_unit = {tier.nodes_per_unit}, must be a multiple of {previous}"
        previous = tier.nodes_per_unit


def _switches(spec: ClusterSpec) -> Iterator[str]:
    if not spec.switches:
        for i, node in enumerate(spec.nodes):
            if node.switch:
                yield f"nodes[{i}].switch = {node.switch!r}, but no switches are listed"
        return
    names = {switch.name for switch in spec.switches}
    for i, node in enumerate(spec.nodes):
        if node.switch not in names:
            yield f"nodes[{i}].switch = {node.switch!r}, which is no switch: its nodes are disconnected"
    for i, switch in enumerate(spec.switches):
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
        yield f"switches {', '.join(map(repr, roots))} have no parent: the topology is disconnected"
    for name in parent:
        seen = [name]
        while (above := parent.get(seen[-1], "")) and above not in seen:
            seen.append(above)
        if above == name:
            yield f"switches are cyclic: {' -> '.join([*seen, name])}"
            return
