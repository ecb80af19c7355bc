"""The machines of a run: what Slurm says of them, and the network on which their ranks may listen."""

from __future__ import annotations

import errno
import re
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from topology.base.errors import InputError

NODE_COUNTS = ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
LAUNCHERS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"
_GET_FLAGS, _UP_AND_RUNNING = 0x8913, 0x41  # SIOCGIFFLAGS; IFF_UP with IFF_RUNNING
LOOPBACKS = ("lo", "lo0")
_WHOLE = re.compile(r"[0-9]{1,10}")
_REPEATED = re.compile(r"([1-9][0-9]{0,5})(?:\(x([1-9][0-9]{0,5})\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The machines of a run as one of them sees it; `launch` names this start of it, the same on each."""

    count: int = 1
    rank: int = 0
    launch: str = ""


def nodes_of_slurm(environment: Mapping[str, str]) -> Nodes:
    """Read Slurm's variables; one local node without them.

    >>> nodes_of_slurm({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "1"})
    Nodes(count=2, rank=1, launch='7.0.0')
    """
    launchers = environment.get(LAUNCHERS_PER_NODE, "1")
    if any(count > 1 for count in repeated_counts(LAUNCHERS_PER_NODE, launchers)):
        raise InputError(
            what="Slurm starts plan run more than once on a node",
            cause=f"{LAUNCHERS_PER_NODE} is {launchers!r}; one launcher starts all ranks of its node",
            fix="start it with srun --ntasks-per-node=1",
        )
    name = next((known for known in NODE_COUNTS if known in environment), NODE_COUNTS[-1])
    count = whole_number(environment, name, default=1, least=1)
    if count == 1:
        return Nodes()
    rank = whole_number(environment, "SLURM_NODEID", default=0)
    if rank >= count:
        raise _unreadable("SLURM_NODEID", str(rank), f"a number below {name} = {count}")
    parts = [
        whole_number(environment, f"SLURM_{word}", default=0)
        for word in ("JOB_ID", "STEP_ID", "RESTART_COUNT")
    ]
    return Nodes(count=count, rank=rank, launch=".".join(map(str, parts)))


def placed(nodes: Nodes, hosts: Sequence[str], environment: Mapping[str, str]) -> Nodes:
    """The rank that a plan gives this machine: the place of its name among the plan's hosts.

    Slurm numbers nodes by their names' order. Where the plan has no names, or ``HOSTS=any`` says so, its
    number stands.

    Args:
        nodes: the machines as Slurm numbers them.
        hosts: names by the plan's rank of their node, none where its cluster has none.
        environment: where Slurm and the user say what this machine is called.
    """
    if nodes.count == 1 or not hosts or environment.get("HOSTS") == "any":
        return nodes
    mine = names_here(environment)
    found = [rank for rank, host in enumerate(hosts) if {host, host.partition(".")[0]} & mine]
    if len(hosts) != nodes.count or len(found) != 1:
        cause = f"the plan has ranks on {len(hosts)} hosts, {', '.join(hosts[:4])}…; this is "
        raise InputError(
            what="the plan is for other hosts than the job's",
            cause=f"{cause}{', '.join(sorted(mine))}, one of {nodes.count}",
            fix="plan anew on this job's allocation, or set HOSTS=any to take Slurm's order of nodes",
        )
    return replace(nodes, rank=found[0])


def names_here(environment: Mapping[str, str]) -> set[str]:
    """What this machine may be called: by the user, by Slurm, by itself; also without its domain."""
    full = {environment.get("NODE_NAME", ""), environment.get("SLURMD_NODENAME", ""), socket.gethostname()}
    return {name for one in full - {""} for name in (one, one.partition(".")[0])}


def repeated_counts(name: str, text: str) -> tuple[int, ...]:
    """Read Slurm's counts by node, each with how many nodes it holds for.

    >>> repeated_counts("SLURM_STEP_TASKS_PER_NODE", "2(x3),1")
    (2, 1)
    """
    found = [_REPEATED.fullmatch(part) for part in text.split(",")]
    counts = tuple(int(match[1]) for match in found if match is not None)
    if len(counts) < len(found):
        raise _unreadable(name, text, "counts as Slurm writes them, like 1(x2)")
    return counts


def whole_number(environment: Mapping[str, str], name: str, *, default: int, least: int = 0) -> int:
    """Read one count."""
    text = environment.get(name, str(default))
    if _WHOLE.fullmatch(text) is None or int(text) < least:
        raise _unreadable(name, text, f"a whole number of at least {least}")
    return int(text)


def _unreadable(name: str, value: str, wanted: str) -> InputError:
    """Name a variable that says nothing usable."""
    return InputError(
        what=f"{name} cannot be read",
        cause=f"{name} is {value[:80]!r}, expected {wanted}",
        fix=f"start from a Slurm job, or unset {name} to run on this machine alone",
    )


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
