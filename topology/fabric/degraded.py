"""What is left of an allocation: hosts that are out, GPUs that are broken, hosts whose NICs are slow.

Engines start equally many ranks on every node. So a host with a broken GPU is left out as long as others of
its size are whole; where none is, all of them are used with as many GPUs as the best still has. A host whose
NICs are slow is a kind of node of its own: the search leaves it idle or uses it, whichever is faster.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from topology.base.errors import InputError, shown
from topology.base.names import suggest
from topology.base.units import parse_quantity
from topology.fabric.wiring import in_tree_order
from topology.spec import ClusterSpec, NodeSpec, SwitchSpec, TierSpec
from topology.spec_rules import require_valid

_FAULT = re.compile(r"(?P<host>[^\s:=]+):(?:gpu(?P<gpu>\d{1,4})|nic=(?P<rate>.+))")
IN_PART = " without "
"""Between a host that is used and a GPU of it that is not; a colon where all of the host idles for it."""
_NAMED = 16
"""Hosts that a sentence names."""
_COMPARED = 4096
"""Names that a misspelt one is compared with."""


@dataclass(slots=True)
class _Host:
    """One host of a cluster: its entry, its scale-up domain of that entry, its place and its faults."""

    node: NodeSpec
    domain: tuple[int, int]
    place: int
    name: str
    broken: frozenset[int] = frozenset()


def host_names(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the name of every host in order: node0, node1, … where the cluster does not name them."""
    return spec.hosts or tuple(f"node{place}" for place in range(spec.num_nodes))


def degraded(spec: ClusterSpec, without: Sequence[str] = (), faults: Sequence[str] = ()) -> ClusterSpec:
    """Return what is left of a cluster, which says in `left_out` what is not.

    Args:
        spec: the cluster.
        without: names of hosts that are out.
        faults: `HOST:gpu3` (that GPU is broken) or `HOST:nic=100 Gbit/s` (its NICs run at that rate).
    """
    if not (without or faults):
        return spec
    require_valid(spec)
    if spec.switches:
        spec = replace(spec, nodes=in_tree_order(spec))
    hosts = _hosts(spec)
    by_name = {host.name: host for host in hosts}
    out = {_known(by_name, name).name for name in without}
    for fault in faults:
        _ail(by_name, fault)
    most = _most_gpus(host for host in hosts if host.name not in out)
    whole = [host for host in hosts if host.name not in out and _gpus(host) > 0]
    left = [host for host in whole if _gpus(host) == most[host.node.gpus_per_node]]
    if not left:
        cause = f"{len(out)} of {len(hosts)} hosts are left out"
        raise InputError(f"nothing of cluster {shown(spec.name)} is left", cause, "leave fewer hosts out")
    words = [host.name for host in hosts if host.name in out]
    for host in hosts:
        if host.broken and host.name not in out:
            used = any(host is item for item in left)
            words += [f"{host.name}{IN_PART if used else ':'}gpu{gpu}" for gpu in sorted(host.broken)]
    return replace(
        spec,
        nodes=_entries(left, named=bool(spec.hosts), most=most),
        tiers=_tiers(spec, left),
        switches=_switches(spec.switches, {host.node.switch for host in left}),
        left_out=(*spec.left_out, *words),
    )


def left_out_words(spec: ClusterSpec) -> tuple[str, ...]:
    """Return one sentence on what was left out of a cluster before it was planned on, none if nothing was."""
    if not spec.left_out:
        return ()
    drained = sorted({name.partition(":")[0] for name in spec.left_out if ":" in name})
    used = list(_broken(spec))
    words = _few(spec.left_out)
    if drained:
        words += f"; all of {_few(drained)} stays idle, since every node has equally many ranks"
    if used:
        words += f"; {_few(used)} is used in part: CUDA_VISIBLE_DEVICES names the GPUs that work"
    return (words,)


def working_gpus(spec: ClusterSpec) -> tuple[tuple[int, ...], ...] | None:
    """Return the GPUs of each node that are used, by their numbers there; None where nobody knows which.

    Hosts without names are known in order if all of them are used in part.

    >>> from topology.builders import default_cluster
    >>> working_gpus(degraded(default_cluster("h100-sxm", 4).spec, [], ["node0:gpu1"]))
    ((0, 2, 3),)
    """
    broken = _broken(spec)
    sizes = [node.gpus_per_node for node in spec.nodes for _ in range(node.count)]
    if spec.hosts:
        outs = [broken.get(name, frozenset()) for name in spec.hosts]
    elif not broken:
        outs = [frozenset[int]()] * len(sizes)
    elif len(broken) == len(sizes):
        outs = list(broken.values())
    else:
        return None
    every = zip(sizes, outs, strict=True)
    return tuple(tuple(gpu for gpu in range(size + len(out)) if gpu not in out)[:size] for size, out in every)


def _broken(spec: ClusterSpec) -> dict[str, frozenset[int]]:
    """Return the GPUs that hosts in use lack, in the order of the hosts."""
    broken: dict[str, frozenset[int]] = {}
    for words in spec.left_out:
        host, used, gpu = words.partition(f"{IN_PART}gpu")
        if used:
            broken[host] = broken.get(host, frozenset()) | {int(gpu)}
    return broken


def _few(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _hosts(spec: ClusterSpec) -> list[_Host]:
    names, hosts = iter(host_names(spec)), list[_Host]()
    for number, node in enumerate(spec.nodes):
        bare = replace(node, count=1, hosts=(), name=node.name if node.count == 1 else "")
        for place in range(node.count):
            domain = (number, place // node.nodes_per_domain)
            hosts.append(_Host(node=bare, domain=domain, place=len(hosts), name=next(names)))
    return hosts


def _known(by_name: dict[str, _Host], name: str) -> _Host:
    """Return the host of a name; one that is unknown is answered with those most like it."""
    if name in by_name:
        return by_name[name]
    like = islice((known for known in by_name if abs(len(known) - len(name)) <= 1), _COMPARED)
    close = suggest(name, like, count=3) or tuple(islice(by_name, 3))
    cause = f"the cluster has {len(by_name):,} hosts, {next(iter(by_name))} to {next(reversed(by_name))}"
    raise InputError(f"no host is called {shown(name)}", cause, f"did you mean {' or '.join(close)}?")


def _ail(by_name: dict[str, _Host], fault: str) -> None:
    """Note the faults of a host."""
    match = _FAULT.fullmatch(fault.strip())
    if match is None:
        cause = "a host, a colon, and a GPU or the rate of its NICs are expected"
        fix = "write node4:gpu3, or node4:nic=100Gbit/s"
        raise InputError(f"{shown(fault)} is no fault of a host", cause, fix)
    host = _known(by_name, match["host"])
    if match["rate"]:
        rate = parse_quantity(match["rate"])
        if not 1 <= rate <= host.node.nic_bandwidth_bytes_per_s:
            cause = f"a NIC of {host.name} has {host.node.nic_bandwidth_bytes_per_s:g} bytes/s"
            raise InputError(f"{shown(fault)} is no slower NIC", cause, "give a lower rate with its unit")
        host.node = replace(host.node, nic_bandwidth_bytes_per_s=rate)
        return
    gpu = int(match["gpu"])
    if gpu >= host.node.gpus_per_node:
        cause = f"{host.name} has GPUs 0 to {host.node.gpus_per_node - 1}"
        raise InputError(f"{host.name} has no GPU {gpu}", cause, "GPUs of a host are counted from 0")
    host.broken |= {gpu}


def _gpus(host: _Host) -> int:
    return host.node.gpus_per_node - len(host.broken)


def _most_gpus(hosts: Iterable[_Host]) -> dict[int, int]:
    """Return how many GPUs the best hosts of each size still have; none of a size without a working GPU."""
    most: dict[int, int] = {}
    for host in hosts:
        size = host.node.gpus_per_node
        most[size] = max(most.get(size, 0), _gpus(host))
    return most


def _entries(hosts: Sequence[_Host], *, named: bool, most: dict[int, int]) -> tuple[NodeSpec, ...]:
    """Return entries of equal nodes: scale-up domains kept, one that is smaller at the end of its entry."""
    domains: dict[tuple[int, int], list[_Host]] = {}
    for host in hosts:
        domains.setdefault(host.domain, []).append(host)
    entries: list[tuple[NodeSpec, int, list[str]]] = []
    for members in domains.values():
        node = min((host.node for host in members), key=lambda node: node.nic_bandwidth_bytes_per_s)
        names = [host.name for host in members]
        size = len(members) if node.nodes_per_domain > 1 else 1
        last = entries[-1] if entries else None
        if last and last[0] == node and len(last[2]) % last[1] == 0 and size <= last[1]:
            last[2].extend(names)
        else:
            entries.append((node, size, names))
    return tuple(
        replace(
            node,
            count=len(names),
            nodes_per_domain=size,
            gpus_per_node=most[node.gpus_per_node],
            nics_per_node=-(-node.nics_per_node * most[node.gpus_per_node] // node.gpus_per_node),
            hosts=tuple(names) if named else (),
        )
        for node, size, names in entries
    )


def _tiers(spec: ClusterSpec, hosts: Sequence[_Host]) -> tuple[TierSpec, ...]:
    """Return the tiers with the hosts that are left in each unit."""
    tier_specs: list[TierSpec] = []
    alike = len(set(Counter(host.domain for host in hosts).values())) == 1
    for tier in spec.tiers:
        if tier.nodes_per_unit >= spec.num_nodes:
            tier_specs.append(tier)
            continue
        owner = [number for number, size in enumerate(tier.units or ()) for _ in range(size)]
        counts = tuple(
            Counter(owner[h.place] if owner else h.place // tier.nodes_per_unit for h in hosts).values()
        )
        even = alike and len(set(counts[:-1])) <= 1 and counts[-1] <= counts[0]
        even = even and not any(below.units for below in tier_specs)
        tier_specs.append(replace(tier, nodes_per_unit=max(counts), units=None if even else counts))
    return tuple(tier_specs)


def _switches(switches: Sequence[SwitchSpec], used: set[str]) -> tuple[SwitchSpec, ...]:
    """Return the switches that some host is still below."""
    parent = {switch.name: switch.parent for switch in switches}
    kept = set(used)
    for name in used:
        above = parent.get(name, "")
        while above and above not in kept:
            kept.add(above)
            above = parent[above]
    return tuple(switch for switch in switches if switch.name in kept)
