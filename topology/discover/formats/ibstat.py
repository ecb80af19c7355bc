"""`ibstat`: the ports of one machine's InfiniBand and RoCE adapters, which of them are up, and how fast."""

import re

from topology.base.decode import lines_of
from topology.base.errors import InputError
from topology.base.units import GBIT
from topology.discover.node import NodeFacts
from topology.discover.places import MOST_NAMED, Figure

_ADAPTER = re.compile(r"^CA '(?P<name>[\w.-]{1,40})'", re.MULTILINE)
_FIELD = re.compile(r"^\s+(?P<name>State|Physical state|Rate|Link layer):\s*(?P<value>\S+)")
LARGEST_RATE = 10_000
"""Gbit/s of a port; none comes near."""


def is_ibstat(text: str) -> bool:
    """Return whether a text is this tool's output."""
    return bool(_ADAPTER.search(text)) and "Physical state:" in text


def from_ibstat(text: str) -> NodeFacts:
    """Return the facts of adapters: ports that are up count, and the fastest kind of them exchanges.

    Slower ports beside them serve storage and management, as on most machines.
    """
    ports: list[dict[str, str]] = []
    adapter = ""
    for line in lines_of(text, "the adapters"):
        if match := _ADAPTER.match(line):
            adapter = match["name"]
        elif re.match(r"\s+Port \d{1,3}:", line):
            ports.append({"adapter": adapter})
        elif ports and (field := _FIELD.match(line)):
            ports[-1].setdefault(field["name"], field["value"])
    up = [port for port in ports if port.get("State") == "Active" and _rate(port)]
    if not up:
        cause = f"none of its {len(ports)} ports is Active"
        raise InputError("no port of this ibstat is up", cause, "give the output of a machine that is joined")
    fastest = max(map(_rate, up))
    used = [port for port in up if _rate(port) == fastest]
    source = "ibstat"
    figures = (
        Figure(name="NICs per node", value=f"{len(used)}, {fastest} Gbit/s", source=f"{source}: Rate"),
        Figure(name="ports up", value=f"{len(up)} of {len(ports)}", source=f"{source}: State"),
    )
    return NodeFacts(
        source=source, gpus=0, nics=len(used), scaleup="", nic_bandwidth_bytes_per_s=fastest * GBIT,
        notes=tuple(_notes(ports, up, used, fastest)), figures=figures,
    )  # fmt: skip


def _rate(port: dict[str, str]) -> int:
    text = port.get("Rate", "")
    return int(text) if text.isdecimal() and len(text) < 6 and int(text) <= LARGEST_RATE else 0


def _notes(
    ports: list[dict[str, str]], up: list[dict[str, str]], used: list[dict[str, str]], fastest: int
) -> list[str]:
    """Ports that are down, and those that are slower than the rest."""
    notes = []
    down = [port["adapter"] for port in ports if port not in up]
    if down:
        notes.append(f"{len(down)} of {len(ports)} ports are not up: {', '.join(down[:MOST_NAMED])}")
    slow = [f"{port['adapter']} at {_rate(port)}" for port in up if port not in used]
    if slow:
        notes.append(
            f"{', '.join(slow[:MOST_NAMED])} Gbit/s beside {len(used)} at {fastest}: not counted, as for "
            "storage or management; a fallen link shows so, too"
        )
    return notes
