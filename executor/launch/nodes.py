"""The machines of a run: their names, and the network on which their ranks may listen."""

from __future__ import annotations

import errno
import re
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from topology.base.errors import InputError

_GET_FLAGS, _UP_AND_RUNNING = 0x8913, 0x41  # SIOCGIFFLAGS; IFF_UP with IFF_RUNNING
UNNUMBERED = -1
LOOPBACKS = ("lo", "lo0")
_WHOLE = re.compile(r"[0-9]{1,10}")
_REPEATED = re.compile(r"([1-9][0-9]{0,5})(?:\(x([1-9][0-9]{0,5})\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The machines of a run as one of them sees it; `launch` names this start of it, the same on each.

    `least` nodes are enough to go on (0: nobody said), `come` start now (0: all), as `announced_by` says.
    `rank` is `UNNUMBERED` of one whose number is still to be claimed.
    """

    count: int = 1
    rank: int = 0
    launch: str = ""
    least: int = 0
    come: int = 0
    announced_by: str = ""


class VariableError(InputError):
    """A launcher's variable that says nothing usable."""


def placed(nodes: Nodes, hosts: Sequence[str], environment: Mapping[str, str]) -> Nodes:
    """The rank that a plan gives this machine: the place of its name among the plan's hosts.

    A launcher numbers nodes as it likes, Slurm by their names' order. Where the plan has no names, or
    ``HOSTS=any`` says so, its number stands.

    Args:
        nodes: the machines as their launcher numbers them.
        hosts: names by the plan's rank of their node, none where its cluster has none.
        environment: where the launcher and the user say what this machine is called.
    """
    if nodes.count == 1 or not hosts or environment.get("HOSTS") == "any":
        return nodes
    mine = names_here(environment)
    result = [rank for rank, host in enumerate(hosts) if {host, host.partition(".")[0]} & mine]
    if len(hosts) != nodes.count or len(result) != 1:
        cause = f"the plan has ranks on {len(hosts)} hosts, {', '.join(hosts[:4])}…; this is "
        raise InputError(
            what="the plan is for other hosts than the job's",
            cause=f"{cause}{', '.join(sorted(mine))}, one of {nodes.count}",
            fix="plan anew on this job's allocation, or set HOSTS=any to take the launcher's order of nodes",
        )
    return replace(nodes, rank=result[0])


def names_here(environment: Mapping[str, str]) -> set[str]:
    """What this machine may be called: by the user, by Slurm, by itself; also without its domain."""
    full = {environment.get("NODE_NAME", ""), environment.get("SLURMD_NODENAME", ""), socket.gethostname()}
    return {name for item in full - {""} for name in (item, item.partition(".")[0])}


def name_here(environment: Mapping[str, str]) -> str:
    """What this machine is called, by the user, else by Slurm, else by itself."""
    return environment.get("NODE_NAME") or environment.get("SLURMD_NODENAME") or socket.gethostname()


def repeated_counts(name: str, text: str) -> tuple[int, ...]:
    """Read counts by node as Slurm writes them, each with how many nodes it holds for.

    >>> repeated_counts("SLURM_STEP_TASKS_PER_NODE", "2(x3),1")
    (2, 1)
    """
    matches = [_REPEATED.fullmatch(part) for part in text.split(",")]
    counts = tuple(int(match[1]) for match in matches if match is not None)
    if len(counts) < len(matches):
        raise unreadable(name, text, "counts as Slurm writes them, like 1(x2)")
    return counts


def count_of(environment: Mapping[str, str], name: str, *, default: int, least: int = 0) -> int:
    """Read one count."""
    text = environment.get(name, str(default))
    if _WHOLE.fullmatch(text) is None or int(text) < least:
        raise unreadable(name, text, f"a whole number of at least {least}")
    return int(text)


def unreadable(name: str, value: str, wanted: str) -> InputError:
    """Name a variable, or a flag, that says nothing usable."""
    what, cause = f"{name} cannot be read", f"{name} is {value[:80]!r}, expected {wanted}"
    if name.startswith("-"):
        return InputError(what=what, cause=cause, fix=f"give {name} {wanted}")
    return VariableError(what=what, cause=cause, fix="set it as its launcher does")


def interfaces() -> tuple[str, ...]:
    """Names of this machine's network interfaces."""
    return tuple(name for _, name in socket.if_nameindex())


def loopback() -> str:
    """The interface that only this machine reaches."""
    return next((name for name in interfaces() if name in LOOPBACKS), LOOPBACKS[0])


def listening_interface(nodes: Nodes, asked: str | None) -> str:
    """Where ranks may listen: on one node nowhere but loopback, on several where the user says."""
    if nodes.count == 1:
        return loopback()
    here = ", ".join(name for name in interfaces() if name not in LOOPBACKS)
    if asked is None:
        raise InputError(
            what="ranks of several nodes must be told the network on which they may listen",
            cause=f"{nodes.count} nodes, and no --interface",
            fix=f"give --interface NAME, a network that only the job's nodes reach; here are {here}",
        )
    if asked not in interfaces():
        raise InputError(
            what=f"there is no network interface {asked!r}",
            cause=f"this machine has {here}",
            fix="give --interface a name that every node of the job has",
        )
    return asked


def link_up(interface: str) -> bool:
    """Whether an interface is up and has a carrier (netdevice(7)); true where the system does not say."""
    if not sys.platform.startswith("linux"):
        return True
    import fcntl

    asked = struct.pack("16sH14x", interface.encode()[:15], 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _GET_FLAGS, asked)
        except OSError as error:
            return error.errno != errno.ENODEV
    (flags,) = struct.unpack_from("H", answer, 16)
    return flags & _UP_AND_RUNNING == _UP_AND_RUNNING


def sockets_on(interface: str) -> dict[str, str]:
    """What tells gloo and NCCL to listen on one interface and no other (NCCL: `=` for this very name)."""
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
