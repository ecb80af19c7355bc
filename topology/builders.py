"""Clusters from specs, from machines of the catalog, and the default one of a GPU."""

import functools
from collections.abc import Sequence
from dataclasses import replace

from topology.base.counts import counted
from topology.base.errors import InputError
from topology.base.units import format_bandwidth, format_nic
from topology.cluster import Cluster
from topology.fabric.degraded import left_out_words
from topology.fabric.wiring import in_tree_order
from topology.hardware.datasheets import (
    Generation,
    Machine,
    die_notes,
    fabric_of,
    generation_of,
    link_latency_s,
    reference_machine,
    sheet_named,
    sheet_of,
)
from topology.hardware.described import derived_notes
from topology.hardware.gpu import Gpu
from topology.hardware.prices import price_of_machine
from topology.spec import ClusterSpec, NodeSpec, TierSpec
from topology.spec_rules import MAX_GPUS, require_valid

CLUSTERS_KEPT = 4
"""Clusters that `build` remembers, with the hierarchies derived from them."""


@functools.lru_cache(maxsize=CLUSTERS_KEPT)
def build(spec: ClusterSpec) -> Cluster:
    """Return the cluster a spec describes; raises `InputError` with everything that is wrong with it.

    The last few are kept: one command asks for its cluster several times, and deriving a hierarchy from a
    graph is the slow part.
    """
    require_valid(spec)
    if spec.switches:
        spec = replace(spec, nodes=in_tree_order(spec))
    kinds = gpus_of(spec)
    derived = [note for gpu in kinds.values() for note in derived_notes(gpu)]
    derived += [_host_words(node) for node in spec.nodes if kinds[node.gpu].derived_from]
    notes = (*die_notes(kinds), *derived, *(f"left out: {words}" for words in left_out_words(spec)))
    if len(kinds) == 1:
        return Cluster(spec=spec, gpu=kinds[spec.nodes[0].gpu], notes=notes)
    gpu = common_gpu([(kinds[node.gpu], node.count * node.gpus_per_node) for node in spec.nodes])
    differ = f"nodes differ ({', '.join(kinds)}): all are planned for as the slowest and smallest, {gpu.name}"
    return Cluster(spec=spec, gpu=gpu, notes=(differ, *notes))


def _host_words(node: NodeSpec) -> str:
    """How nodes of a described card are built: as its file says, or the nearest card's machine."""
    links = f"{node.gpus_per_node} GPUs over {node.scaleup}"
    host = f"{format_bandwidth(node.host_bandwidth_bytes_per_s)} to the host"
    nics = f"{counted(node.nics_per_node, 'NIC')} of {format_nic(node.nic_bandwidth_bytes_per_s)}"
    return f"nodes of {node.gpu} have {links}, {host}, {nics}: keys of [[nodes]] change that"


def makers_of(spec: ClusterSpec) -> tuple[str, ...]:
    """Return who made the GPUs of a cluster, each maker once."""
    return tuple(dict.fromkeys(generation.maker for generation in generations_of(spec)))


def generations_of(spec: ClusterSpec) -> tuple[Generation, ...]:
    """What the architectures of a cluster's GPUs can do, one for each kind of GPU."""
    return tuple(generation_of(gpu) for gpu in gpus_of(spec).values())


def gpus_of(spec: ClusterSpec) -> dict[str, Gpu]:
    """Return the GPUs of a cluster by the name that its nodes have for them."""
    described = {gpu.name: gpu for gpu in spec.gpus}
    return {node.gpu: described.get(node.gpu) or gpu_named(node.gpu) for node in spec.nodes}


def gpu_named(name: str) -> Gpu:
    """Return a GPU of the catalog by a lenient name."""
    return sheet_named(name).gpu()


def common_gpu(numbers: Sequence[tuple[Gpu, int]]) -> Gpu:
    """Return the GPU that every kind can stand in for: the lowest of each rate, the mean power.

    Args:
        numbers: kinds, and how many there are of each.
    """
    kinds, power_w = [gpu for gpu, _ in numbers], sum(gpu.tdp_w * number for gpu, number in numbers)
    slowest = min(kinds, key=lambda gpu: (gpu.peak("bf16"), gpu.memory_bytes, gpu.name))
    dtypes = [d for d in slowest.peak_flop_per_s if all(d in gpu.peak_flop_per_s for gpu in kinds)]
    return replace(
        slowest,
        peak_flop_per_s={dtype: min(gpu.peak_flop_per_s[dtype] for gpu in kinds) for dtype in dtypes},
        memory_bytes=min(gpu.memory_bytes for gpu in kinds),
        memory_bandwidth_bytes_per_s=min(gpu.memory_bandwidth_bytes_per_s for gpu in kinds),
        tdp_w=power_w / sum(number for _, number in numbers),
    )


def default_cluster(
    gpu_name: str,
    num_gpus: int,
    *,
    gpus_per_node: int | None = None,
    nic_bandwidth_bytes_per_s: float | None = None,
    oversubscription: float = 1.0,
) -> Cluster:
    """Return `num_gpus` of a GPU in its reference machine, rail-optimised.

    Args:
        gpu_name: a GPU of the catalog, leniently.
        num_gpus: how many; part of one node, or whole nodes.
        gpus_per_node: GPUs of one host, when it differs from the reference machine.
        nic_bandwidth_bytes_per_s: one NIC per GPU of this rate, instead of the machine's NICs.
        oversubscription: bandwidth into over bandwidth out of a leaf.
    """
    sheet = sheet_named(gpu_name)
    machine = reference_machine(sheet)
    per_node = gpus_per_node or machine.gpus_per_node
    machine = replace(machine, gpus_per_node=per_node, nics_per_node=_nics(machine, per_node))
    if nic_bandwidth_bytes_per_s is not None:
        machine = replace(machine, nics_per_node=per_node)
    spec = machine_spec(machine, num_gpus, oversubscription=oversubscription)
    if nic_bandwidth_bytes_per_s is not None:
        nodes = tuple(replace(n, nic_bandwidth_bytes_per_s=nic_bandwidth_bytes_per_s) for n in spec.nodes)
        spec = replace(spec, nodes=nodes)
    return build(replace(spec, name=f"{num_gpus}x {sheet.name}"))


def machine_spec(machine: Machine, num_gpus: int, *, oversubscription: float = 1.0) -> ClusterSpec:
    """Return the spec of `num_gpus` in machines of a kind, joined by the fabric the machine is sold with."""
    hosts, per_host = _hosts(machine, num_gpus)
    per_domain = _hosts_per_domain(hosts, machine.nodes_per_domain)
    tiers = tuple(
        TierSpec(
            name=tier.name,
            nodes_per_unit=tier.domains_per_unit * per_domain,
            oversubscription=oversubscription if index == 0 else 1.0,
            latency_s=link_latency_s("switch"),
        )
        for index, tier in enumerate(fabric_of(machine).tiers)
    )
    price = price_of_machine(machine)
    return ClusterSpec(
        name=machine.name,
        nodes=(machine_node(machine, hosts, gpus_per_node=per_host, nodes_per_domain=per_domain),),
        tiers=tiers,
        rail_optimized=machine.rail_optimized,
        fabric=machine.fabric,
        usd_per_gpu_hour=price.usd_per_gpu_hour if price else None,
        price_source=f"{price.machine} on demand, {price.source}" if price else "",
        price_as_of=price.as_of if price else "",
    )


def machine_node(
    machine: Machine, count: int, *, gpus_per_node: int | None = None, nodes_per_domain: int | None = None
) -> NodeSpec:
    """Return `count` machines of a kind as one node entry of a spec."""
    sheet = sheet_of(machine)
    per_node = gpus_per_node or machine.gpus_per_node
    share = min(1.0, per_node / machine.gpus_per_node)  # of a host whose other GPUs are somebody else's
    return NodeSpec(
        gpu=machine.gpu,
        count=count,
        gpus_per_node=per_node,
        scaleup=machine.scaleup,
        scaleup_bandwidth_bytes_per_s=sheet.scaleup_bandwidth_bytes_per_s,
        scaleup_latency_s=link_latency_s("pcie" if machine.scaleup == "pcie" else "nvlink"),
        nodes_per_domain=nodes_per_domain or machine.nodes_per_domain,
        host_bandwidth_bytes_per_s=sheet.host_bandwidth_bytes_per_s,
        nics_per_node=_nics(machine, per_node),
        nic_bandwidth_bytes_per_s=machine.nic_bandwidth_bytes_per_s,
        nic_latency_s=link_latency_s("nic"),
        host_memory_bytes=share * machine.host_memory_bytes,
        host_memory_bandwidth_bytes_per_s=share * machine.host_memory_bandwidth_bytes_per_s,
    )


def _nics(machine: Machine, gpus_per_node: int) -> int:
    """Return the NICs that go with a part of a machine's GPUs, or with more of them."""
    return -(-machine.nics_per_node * gpus_per_node // machine.gpus_per_node)


def _hosts(machine: Machine, num_gpus: int) -> tuple[int, int]:
    """Return how many hosts hold `num_gpus`, and how many GPUs of each are used."""
    per_node = machine.gpus_per_node
    if not 0 < num_gpus <= MAX_GPUS:
        cause = f"{num_gpus} is not between 1 and {MAX_GPUS}"
        raise InputError("the number of GPUs is not usable", cause, f"ask for a multiple of {per_node} GPUs")
    if num_gpus % per_node == 0:
        return num_gpus // per_node, per_node
    if num_gpus < per_node:
        return 1, num_gpus
    above = -(-num_gpus // per_node) * per_node
    cause = f"{num_gpus} % {per_node} = {num_gpus % per_node}; only a single node can be used in part"
    fix = f"ask for {above - per_node} or {above} GPUs"
    raise InputError(f"{num_gpus} GPUs do not fill nodes of {per_node}", cause, fix)


def _hosts_per_domain(hosts: int, most: int) -> int:
    """Return how many hosts of each scale-up domain are used: equally many, when that wastes less than half.

    >>> _hosts_per_domain(32, 18), _hosts_per_domain(36, 18), _hosts_per_domain(19, 18)
    (16, 18, 18)
    """
    if hosts <= most:
        return hosts
    return next((size for size in range(most, most // 2, -1) if hosts % size == 0), most)
