"""An InfiniBand fabric as `ibnetdiscover` prints it: switches, what hangs on their ports, which rate."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topology.base.decode import lines_of
from topology.base.errors import InputError, shortened
from topology.discover.fabric import FabricFacts, TierFacts
from topology.discover.places import MOST_NAMED, Figure, Place, sizes
from topology.hardware.datasheets import port_rates

if TYPE_CHECKING:
    import networkx as nx

MOST_NOTES = 20
"""Things not understood that are listed."""

_SWITCH = re.compile(r'^Switch\s+\d+\s+"(S-[0-9a-f]+)"')
_PORT = re.compile(r'^\[\d+\]\s+"([SH]-[0-9a-f]+)"\[\d+\].*?#\s+"([^"]*)"\s+lid\s+\d+\s+(\S+)')
_NO_HOST = re.compile(r"localhost|node|.*cufm.*|ubuntu|mellanox.*|mt\d+", re.IGNORECASE)
"""First words of a description that nobody gave: of managers, switches and adapters as they were made."""


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
    units = _units(switches, leaves)
    notes = list(unknown)
    unnamed = sum(ports.unnamed for ports in leaves.values())
    if unnamed:
        notes.append(f"{unnamed} adapters carry no host name and are not counted as hosts")
    rails = Counter(host for ports in leaves.values() for host in set(ports.hosts))
    fewer = [host for host, count in nics.items() if count < usual]
    if fewer:
        named = ", ".join(shortened(host) for host in sorted(fewer)[:MOST_NAMED])
        notes.append(
            f"{len(fewer)} hosts have fewer than {usual} ports, and are planned for with {usual}: {named}"
        )
    ratios = [ports.down / ports.up for ports in leaves.values() if ports.up]
    spines = len(switches) - len(leaves)
    notes.append(f"{len(leaves)} leaves in {len(units)} units, {spines} switches above them")
    source = "ibnetdiscover"
    return FabricFacts(
        source=source,
        hosts=len(nics),
        tiers=(
            TierFacts(
                name="leaf",
                hosts_per_unit=max(len(unit) for unit in units),
                oversubscription=max(1.0, *ratios) if ratios and len(leaves) > 1 else 1.0,
            ),
        ),
        rails=_mode(rails.values()),
        nics_per_host=usual,
        nic_bandwidth_bytes_per_s=max(rates) if rates else None,
        notes=tuple(notes),
        places=tuple(
            Place(name=host, path=("fabric", f"unit-{number}"))
            for number, unit in enumerate(units)
            for host in sorted(unit, key=natural)
        ),
        figures=(
            Figure(name="nodes", value=f"{len(nics):,}", source=source),
            Figure(
                name="racks",
                value=f"{len(units)}: {sizes(len(unit) for unit in units)} hosts of one set of leaves",
                source=source,
            ),
            Figure(name="tiers", value=f"leaf ({len(leaves)}) - spine ({spines})", source=source),
            Figure(name="rails", value=f"{_mode(rails.values())} leaves of a host", source=source),
            Figure(name="NICs per node", value=f"{usual}", source=source),
        ),
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
    words = description.replace("'", " ").split()
    if len(words) != 2 or _NO_HOST.fullmatch(words[0]):
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
    units = sorted(_hosts_together(graph), key=lambda unit: natural(min(unit, key=natural)))
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


def natural(name: str) -> list[tuple[int, str]]:
    """Return what to sort names by so that node10 comes after node9."""
    return [
        (int(part), "") if part.isdecimal() and len(part) < 19 else (-1, part)
        for part in re.split(r"([0-9]+)", name)
    ]


def _mode(values: Iterable[int]) -> int:
    """Return the most common value, the larger of equals."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value))
