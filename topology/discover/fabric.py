"""What a fabric says about itself: `ibnetdiscover`, and NVIDIA topograph's cluster models."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topology.base.decode import lines_of
from topology.base.errors import InputError, shortened, shown
from topology.hardware.datasheets import port_rates
from topology.spec_rules import MAX_GPUS, MOST_TIERS

if TYPE_CHECKING:
    import networkx as nx

MOST_NOTES = 20
"""Things not understood that are listed."""

_SWITCH = re.compile(r'^Switch\s+\d+\s+"(S-[0-9a-f]+)"')
_PORT = re.compile(r'^\[\d+\]\s+"([SH]-[0-9a-f]+)"\[\d+\].*?#\s+"([^"]*)"\s+lid\s+\d+\s+(\S+)')
_NAMES = re.compile(r"[^,\[\]]*\[[^\[\]]*\][^,\[\]]*|[^,\[\]]+")
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


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
    nics = Counter(host for ports in leaves.values() for host in ports.hosts)
    if not nics:
        cause = f"none of its {sum(ports.unnamed for ports in leaves.values())} adapters carries a host name"
        raise InputError(
            "this ibnetdiscover output names no hosts", cause, "set node descriptions, dump again"
        )
    usual = _mode(nics.values())
    hosts = {host for host, count in nics.items() if count == usual}
    units = _units(switches, leaves)
    notes = list(unknown)
    unnamed = sum(ports.unnamed for ports in leaves.values())
    if unnamed:
        notes.append(f"{unnamed} adapters carry no host name and are not counted as hosts")
    if len(hosts) < len(nics):
        notes.append(f"{len(nics) - len(hosts)} hosts have another number of ports and are left out")
    ratios = [ports.down / ports.up for ports in leaves.values() if ports.up]
    spines = len(switches) - len(leaves)
    notes.append(f"{len(leaves)} leaves in {len(units)} units, {spines} switches above them")
    rails = Counter(host for ports in leaves.values() for host in set(ports.hosts) & hosts)
    return FabricFacts(
        source="ibnetdiscover",
        hosts=len(hosts),
        tiers=(
            TierFacts(
                name="leaf",
                hosts_per_unit=max(len(unit & hosts) for unit in units),
                oversubscription=max(1.0, *ratios) if ratios and len(leaves) > 1 else 1.0,
            ),
        ),
        rails=_mode(rails.values()),
        nics_per_host=usual,
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
    for line in lines_of(text, "the dump"):
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
    known_odd = odd.most_common(MOST_NOTES)
    return (
        switches,
        rates,
        [f"not understood: {shortened(name)} ({count} times)" for name, count in known_odd],
    )


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


def _units(switches: Mapping[str, _Ports], leaves: Mapping[str, _Ports]) -> list[set[str]]:
    """Return sets of hosts that share leaves, directly or through each other.

    Leaves need no switch above them when hosts reach all of them (a rail-only fabric); hosts that nothing
    joins are not one cluster.
    """
    import networkx as nx

    graph = nx.Graph()
    for name, ports in leaves.items():
        graph.add_node(name)
        graph.add_edges_from((name, f"host {host}") for host in ports.hosts)
    units = _hosts_together(graph)
    for name, ports in switches.items():
        graph.add_edges_from((name, other) for other in ports.switches)
    islands = _hosts_together(graph)
    if len(islands) > 1:
        some = ", ".join(shortened(min(island)) for island in islands[:MOST_NOTES])
        fix = "give the dump of one fabric, with the switches that join it"
        raise InputError("the fabric is disconnected", f"nothing joins the hosts around {some}", fix)
    return units


def _hosts_together(graph: "nx.Graph") -> list[set[str]]:
    """Return the hosts of each connected part of a graph of switches and hosts."""
    import networkx as nx

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
    direct = Counter[str]()
    for switch, hosts, _ in blocks:
        direct[switch] += hosts
    total = direct.total()
    if not 0 < total <= MAX_GPUS:
        cause = f"its blocks have {total:,} nodes, not between 1 and {MAX_GPUS:,}"
        raise InputError("this topograph model is not possible", cause, "correct the ranges of nodes")
    levels = _levels(children, direct)
    domains = Counter[str]()
    for switch, hosts, domain in blocks:
        domains[domain or switch] += hosts
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


def _levels(children: Mapping[str, list[str]], direct: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the tiers of a tree of switches from its leaves up: name, and most hosts below one switch."""
    above = {switch: parent for parent, switches in children.items() for switch in switches}
    if len(above) < sum(map(len, children.values())):
        twice, _ = Counter(switch for switches in children.values() for switch in switches).most_common(1)[0]
        raise _no_tree(f"switch {shown(twice)} is below two switches, or twice below one")
    below = Counter(direct)
    tiers = [set(direct)]
    for leaf, hosts in direct.items():
        at = leaf
        for tier in range(1, MOST_TIERS + 1):
            if at not in above:
                break
            at = above[at]
            below[at] += hosts
            tiers.extend([set()] if len(tiers) == tier else [])
            tiers[tier].add(at)
        else:
            raise _no_tree(f"switch {shown(leaf)} is below itself, or more than {MOST_TIERS} switches")
    names = ("leaf", "spine", "core", *(f"core-{number}" for number in range(2, MOST_TIERS)))
    return [(name, max(below[at] for at in tier)) for name, tier in zip(names, tiers, strict=False)]


def _no_tree(cause: str) -> InputError:
    """Say that the switches of a model are no tree."""
    return InputError("this topograph model is no tree of switches", cause, "correct its lists of switches")


def _read_model(text: str) -> tuple[dict[str, list[str]], list[tuple[str, int, str]]]:
    """Switches below each switch, and blocks: their switch, how many nodes, and their domain.

    Read the part of YAML such models use: nested maps by indentation, lists of words, inline lists.
    """
    children: dict[str, list[str]] = {}
    blocks: list[tuple[str, int, str]] = []
    section = switch = key = ""
    for raw in lines_of(text, "the model"):
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
                if key == "switches" and not switch:
                    raise _no_tree(f"{shown(word)} is listed before any switch is named")
                if key == "switches":
                    children[switch].append(_unquoted(word[2:]))
            else:
                key = word.partition(":")[0]
        elif section == "blocks":
            key = _read_block_line(word, key, blocks)
    return {parent: below for parent, below in children.items() if below}, blocks


def _read_block_line(word: str, key: str, blocks: list[tuple[str, int, str]]) -> str:
    """Take one line of a block of nodes; returns the key that list items after it belong to."""
    item = word.startswith("- ")
    name, colon, value = (word[2:] if item else word).partition(": ")
    if item and name == "switch" and colon:
        blocks.append((_unquoted(value), 0, ""))
        return "switch"
    if not blocks:
        return key
    switch, nodes, domain = blocks[-1]
    if item and key == "nodes":
        blocks[-1] = (switch, nodes + _hosts_in(word[2:]), domain)
        return key
    if name.rstrip(":") == "nodes":
        listed = value.strip().removeprefix("[").removesuffix("]") if value.startswith("[") else value
        blocks[-1] = (switch, nodes + _hosts_in(listed), domain)
        return "nodes"
    if name.endswith("/domain"):
        blocks[-1] = (switch, nodes, _unquoted(value))
    return name.rstrip(":")


def _hosts_in(text: str) -> int:
    """Count the hosts of names with bracket ranges; they are never written out.

    >>> _hosts_in("node[08-10]"), _hosts_in('"a", "b[1-3,7]"'), _hosts_in("n[0-99999999]")
    (3, 5, 100000000)
    """
    return sum(_spans(name) for name in _NAMES.findall(text) if _unquoted(name))


def _spans(name: str) -> int:
    """Count the hosts of one name: those of the ranges in its brackets, or one."""
    inside = name.partition("[")[2].partition("]")[0]
    total = 0
    for part in inside.split(",") if inside else ():
        span = _SPAN.fullmatch(part.strip())
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (1, 0)
        if last < first:
            raise _no_tree(f"{shown(_unquoted(name))} is no range of nodes")
        total += last - first + 1
    return total or 1


def _unquoted(text: str) -> str:
    return text.strip().strip("\"'").strip()


def _mode(values: Iterable[int]) -> int:
    """Return the most common value, the larger of equals."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value))
