"""Where ranks meet: in a file, or of several nodes at ``--rdzv-endpoint HOST:PORT``, by torchrun's name.

HOST is the run's first node. Its rank 0 listens there and on no other address of it. When that node is lost,
ranks meet in a file of the run's folder again, as they do without.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from topology.base.errors import InputError
from topology.base.units import format_seconds

if TYPE_CHECKING:
    from torch.distributed import Store

_WORDS = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:]+)):([0-9]{1,5})")
BACKLOG = 4096
"""Ranks that may knock at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A host and a port of it."""

    host: str
    port: int


def endpoint(text: str) -> Endpoint:
    """Read HOST:PORT; an IPv6 address stands in brackets.

    >>> endpoint("node0:29500"), endpoint("[fd00::1]:29500").host
    (Endpoint(host='node0', port=29500), 'fd00::1')
    """
    match = _WORDS.fullmatch(text)
    if match is None or not 0 < int(match[3]) < 2**16:
        raise InputError(
            what="--rdzv-endpoint cannot be read",
            cause=f"it is {text[:80]!r}, expected HOST:PORT with a port from 1 to 65535",
            fix="give the run's first node and a port that is free there: --rdzv-endpoint HOST:29500",
        )
    return Endpoint(host=match[1] or match[2], port=int(match[3]))


def require_reachable(where: Endpoint, *, loopback: bool) -> None:
    """Refuse, for several nodes, what is every address of a machine, and one that no other node reaches.

    Args:
        where: as the user gives it; a name that is not known here is left to those that need it.
        loopback: whether all nodes are on this machine.
    """
    try:
        ip_address = ipaddress.ip_address(_address(where)[1][0].partition("%")[0])
    except (OSError, UnicodeError):
        return
    ip_address = getattr(ip_address, "ipv4_mapped", None) or ip_address
    if ip_address.is_unspecified or (ip_address.is_loopback and not loopback):
        why = "every address of a machine" if ip_address.is_unspecified else "this machine alone"
        raise InputError(
            what=f"nodes cannot meet at --rdzv-endpoint {where.host}:{where.port}",
            cause=f"{where.host} is {ip_address}, {why}",
            fix="give the address of the first node on the job's network: --rdzv-endpoint HOST:29500",
        )


def _address(where: Endpoint) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The first address that a name has here."""
    getaddrinfo = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    family, _, _, _, address = getaddrinfo[0]
    return family, (str(address[0]), int(address[1]))


def listening(where: Endpoint) -> socket.socket:
    """A socket that listens at that address of this machine and at no other."""
    try:
        family, address = _address(where)
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise InputError(
            what=f"the first node cannot listen at {where.host}:{where.port}",
            cause=f"{socket.gethostname()}: {reason or error}",
            fix="give --rdzv-endpoint a name or address of the first node, and a port that is free there",
        ) from error


def is_here(where: Endpoint) -> bool:
    """Whether an endpoint's address is one of this machine's."""
    try:
        family, address = _address(where)
        with socket.socket(family, socket.SOCK_STREAM) as any_port:
            any_port.bind((address[0], 0))
    except (OSError, UnicodeError):
        return False
    return True


def require_here(where: Endpoint) -> None:
    """Refuse, on the first node, an address that is not its own or a port that is taken."""
    listening(where).close()


PATIENCE = timedelta(minutes=30)
"""Of ranks for each other while they start: one reads weights or texts from a cold disk, the others wait."""
_ARRIVED = "arrived"
_LOOK_S = (0.01, 0.5)


class AbsentRanksError(RuntimeError):
    """Ranks that did not come to the meeting in time."""


def await_ranks(meeting: Store, rank: int, ranks: int, patience: timedelta = PATIENCE) -> None:
    """Wait until all ranks of a run have come to where they meet, before any two of them connect.

    gloo connects two ranks when they first talk, and then waits five times as long as it is told.

    Args:
        meeting: What they meet in.
        rank: This one.
        ranks: How many there are.
        patience: How long it waits.

    Raises:
        AbsentRanksError: Some have not come; those are named.
    """
    meeting.set(f"{_ARRIVED}-{rank}", "1")
    until_s, look_s = time.monotonic() + patience.total_seconds(), _LOOK_S[0]
    here = meeting.add(_ARRIVED, 1)
    while here < ranks:
        if time.monotonic() > until_s:
            absent = [other for other in range(ranks) if not meeting.check([f"{_ARRIVED}-{other}"])]
            names = ", ".join(map(str, absent[:MOST_NAMED])) + (" …" if len(absent) > MOST_NAMED else "")
            waited = f"rank {rank} waited {format_seconds(patience.total_seconds())} for all to start"
            raise AbsentRanksError(f"{waited}: {len(absent)} of {ranks} have not come (rank {names})")
        time.sleep(look_s)
        look_s = min(2 * look_s, _LOOK_S[1])
        here = meeting.add(_ARRIVED, 0)


MOST_NAMED = 8
"""Ranks that a message names."""


def store(where: str, rank: int, ranks: int, *, endpoint_text: str | None) -> Store:
    """What ranks meet in: a file by its path, or what rank 0 serves at an endpoint, anew each time.

    Ranks of another attempt may still knock there: keys begin with the end of the path: start, turn, attempt.
    """
    import torch.distributed as dist

    if endpoint_text is None:
        return dist.FileStore(where, ranks)
    there = endpoint(endpoint_text)
    descriptor = listening(there).detach() if rank == 0 else None
    served = dist.TCPStore(
        there.host,
        there.port,
        ranks,
        is_master=rank == 0,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )
    return dist.PrefixStore("/".join(Path(where).parts[-3:]), served)
