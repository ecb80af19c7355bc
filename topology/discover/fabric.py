"""What a fabric says about itself: `ibnetdiscover`, and NVIDIA topograph's cluster models."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from topology.base.errors import InputError
from topology.hardware.datasheets import port_rates

_SWITCH = re.compile(r'^Switch\s+\d+\s+"(S-[0-9a-f]+)"')
_PORT = re.compile(r'^\[\d+\]\s+"([SH]-[0-9a-f]+)"\[\d+\].*?#\s+"([^"]*)"\s+lid\s+\d+\s+(\S+)')
_RANGE = re.compile(r"^(.*)\[(\d+)-(\d+)\](.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFacts:
    """A tier of switches: hosts below one group of them, and bandwidth in over out where known."""

    name: str
    hosts_per_unit: int
    oversubscription: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFacts:
    """What is known of a fabric; None where its description does not say."""

    source: str
    hosts: int
    tiers: tuple[TierFacts, ...]
    rails: int | None = None
    nics_per_host: int | None = None
    nic_bandwidth_bytes_per_s: float | None = None
    hosts_per_domain: int = 1
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Ports:
    """What hangs on one switch: hosts by name, unnamed adapters, and other switches, with their rates."""

    hosts: list[str] = field(default_factory=list)
    unnamed: int = 0
    down: float = 0.0
    up: float = 0.0
    switches: set[str] = field(default_factory=set)


def from_ibnetdiscover(text: str) -> FabricFacts:
    """Return the facts of an `ibnetdiscover` dump: hosts that share leaves are one unit."""
    switches, rates, unknown = _read_ports(text)
    leaves = {name: ports for name, ports in switches.items() if ports.hosts or ports.unnamed}
    if not leaves:
        fix = "give the tool's whole output"
        raise InputError("this is no ibnetdiscover output", "no switch with hosts was found in it", fix)
    units = _units(leaves)
    nics = Counter(host for ports in leaves.values() for host in ports.hosts)
    hosts = [host for host, count in nics.items() if count == _mode(nics.values())]
    notes = list(unknown)
    unnamed = sum(ports.unnamed for ports in leaves.values())
    if unnamed:
        notes.append(f"{unnamed} adapters carry no host name and are not counted as hosts")
    if len(hosts) < len(nics):
        notes.append(f"{len(nics) - len(hosts)} hosts have another number of ports and are left out")
    sizes = sorted((len(unit & set(hosts)) for unit in units), reverse=True)
    ratio = max(ports.down / ports.up for ports in leaves.values() if ports.up) if len(leaves) > 1 else 1.0
    spines = len(switches) - len(leaves)
    notes.append(f"{len(leaves)} leaves in {len(units)} units, {spines} switches above them")
    return FabricFacts(
        source="ibnetdiscover",
        hosts=len(hosts),
        tiers=(TierFacts(name="leaf", hosts_per_unit=sizes[0], oversubscription=max(1.0, ratio)),),
        rails=_mode(sum(host in ports.hosts for ports in leaves.values()) for host in hosts),
        nics_per_host=_mode(nics.values()),
        nic_bandwidth_bytes_per_s=max(rates) if rates else None,
        notes=tuple(notes),
    )


def _read_ports(text: str) -> tuple[dict[str, _Ports], list[float], list[str]]:
    """Return what each switch carries, the rates of host ports, and what was not understood."""
    known = {name: rate.bandwidth_bytes_per_s for name, rate in port_rates().items()}
    switches: dict[str, _Ports] = {}
    current: _Ports | None = None
    rates: list[float] = []
    odd: Counter[str] = Counter()
    for line in text.splitlines():
        header = _SWITCH.match(line)
        if header:
            current = switches.setdefault(header.group(1), _Ports())
        elif line.startswith("Ca"):
            current = None
        elif current is not None and (port := _PORT.match(line)):
            peer, description, rate_name = port.groups()
            rate = known.get(rate_name, 0.0)
            if not rate:
                odd[f"port rate {rate_name}"] += 1
            if _add_port(current, peer, description, rate):
                rates.append(rate)
    return switches, rates, [f"not understood: {name} ({count} times)" for name, count in odd.items()]


def _add_port(ports: _Ports, peer: str, description: str, rate: float) -> bool:
    """Record one cable of a switch; returns whether a named host is at its end."""
    if peer.startswith("S-"):
        ports.switches.add(peer)
        ports.up += rate
        return False
    if "Aggregation Node" in description:
        return False
    ports.down += rate
    words = description.split()
    if len(words) != 2:
        ports.unnamed += 1
        return False
    ports.hosts.append(words[0])
    return True


def _units(leaves: Mapping[str, _Ports]) -> list[set[str]]:
    """Return sets of hosts that share leaves, directly or through each other."""
    import networkx as nx

    graph = nx.Graph()
    for name, ports in leaves.items():
        graph.add_node(name)
        graph.add_edges_from((name, f"host {host}") for host in ports.hosts)
    parts = (
        {node.removeprefix("host ") for node in part if node.startswith("host ")}
        for part in nx.connected_components(graph)
    )
    return [part for part in parts if part]


def from_topograph(text: str) -> FabricFacts:
    """Return the facts of a topograph model: a tree of switches with blocks of nodes below its leaves."""
    children, blocks = _read_model(text)
    if not blocks:
        fix = "give a model with `switches:` and `blocks:`"
        raise InputError("this is no topograph model", "no blocks of nodes were found in it", fix)
    below = _hosts_below(children, {switch: len(nodes) for switch, nodes, _ in blocks})
    domains = Counter(domain or switch for switch, nodes, domain in blocks for _ in nodes)
    leaves = {switch for switch, _, _ in blocks}
    levels = [("leaf", max(below[leaf] for leaf in leaves))]
    parents = {parent for parent, switches in children.items() if leaves & set(switches)}
    while parents:
        levels.append((("spine", "core")[min(len(levels) - 1, 1)], max(below[parent] for parent in parents)))
        parents = {above for above, switches in children.items() if parents & set(switches)}
    total = sum(len(nodes) for _, nodes, _ in blocks)
    tiers = tuple(TierFacts(name=name, hosts_per_unit=size) for name, size in levels if size < total)
    return FabricFacts(
        source="topograph",
        hosts=total,
        tiers=tiers or (TierFacts(name="leaf", hosts_per_unit=total),),
        hosts_per_domain=max(domains.values()) if any(domain for _, _, domain in blocks) else 1,
        notes=(
            "the model gives no bandwidths: NICs are the reference machine's, fabrics not oversubscribed",
        ),
    )


def _hosts_below(children: Mapping[str, list[str]], direct: Mapping[str, int]) -> dict[str, int]:
    """Return the hosts below each switch of a tree."""
    below: dict[str, int] = defaultdict(int, direct)
    for _ in children:
        for parent, switches in children.items():
            below[parent] = direct.get(parent, 0) + sum(below[switch] for switch in switches)
    return below


def _read_model(text: str) -> tuple[dict[str, list[str]], list[tuple[str, list[str], str]]]:
    """Read the part of YAML such models use: nested maps by indentation, lists of words, inline lists."""
    children: dict[str, list[str]] = {}
    blocks: list[tuple[str, list[str], str]] = []
    section = switch = key = ""
    for raw in text.splitlines():
        line = raw.split("#")[0].rstrip()
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        word = line.strip()
        if indent == 0 and word.endswith(":"):
            section, key = word[:-1], ""
        elif section == "switches":
            if indent == 2 and word.endswith(":"):
                switch, key = word[:-1], ""
                children[switch] = []
            elif word.startswith("- "):
                if key == "switches":
                    children[switch].append(_unquoted(word[2:]))
            else:
                key = word.partition(":")[0]
        elif section == "blocks":
            key = _read_block_line(word, key, blocks)
    return {parent: below for parent, below in children.items() if below}, blocks


def _read_block_line(word: str, key: str, blocks: list[tuple[str, list[str], str]]) -> str:
    """Take one line of a block of nodes; returns the key that list items after it belong to."""
    item = word.startswith("- ")
    name, colon, value = (word[2:] if item else word).partition(": ")
    if item and name == "switch" and colon:
        blocks.append((_unquoted(value), [], ""))
        return "switch"
    if not blocks:
        return key
    if item and key == "nodes":
        blocks[-1][1].extend(_expand(_unquoted(word[2:])))
        return key
    if name.rstrip(":") == "nodes":
        blocks[-1][1].extend(
            host for part in value.strip("[]").split('",') if value for host in _expand(_unquoted(part))
        )
        return "nodes"
    if name.endswith("/domain"):
        blocks[-1] = (blocks[-1][0], blocks[-1][1], _unquoted(value))
    return name.rstrip(":")


def _expand(name: str) -> list[str]:
    """Return the hosts of a bracket range.

    >>> _expand("node[08-10]")
    ['node08', 'node09', 'node10']
    """
    match = _RANGE.match(name)
    if not match:
        return [name]
    before, first, last, after = match.groups()
    return [f"{before}{number:0{len(first)}d}{after}" for number in range(int(first), int(last) + 1)]


def _unquoted(text: str) -> str:
    return text.strip().strip("\"'").strip()


def _mode(values: Iterable[int]) -> int:
    """Return the most common value, the larger of equals."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value))
