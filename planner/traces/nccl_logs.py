"""Which transports NCCL connects ranks over, as NCCL_DEBUG=INFO prints them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from topology.base.units import MS

_CHANNEL: Final = re.compile(
    r"NCCL INFO Channel \d{1,5}/\d{1,5} : \d{1,7}\[\w{1,20}\] -> \d{1,7}\[\w{1,20}\]"
    r".{0,40}? via (NET/\w{1,30}|P2P|SHM)"
)
SOCKETS: Final = re.compile(r"NCCL INFO (?:Using network Socket\b|Channel .{0,120} via NET/Socket/)")
"""That NCCL joins nodes by TCP, as it says when it chooses its network and of each channel."""

TIMEOUT: Final = re.compile(
    r"\[Rank (?P<rank>\d{1,7})\] Watchdog caught collective operation timeout: WorkNCCL\("
    r"SeqNum=(?P<number>\d{1,12}), OpType=(?P<kind>\w{1,30}),.{0,120}? ran for (?P<ms>\d{1,12}) milliseconds"
)
"""A collective that a rank of PyTorch waited for in vain (ProcessGroupNCCL)."""


def timeout_words(match: re.Match[str]) -> str:
    """What a line of `TIMEOUT` says.

    >>> line = "[Rank 12] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLGATHER, "
    >>> timeout_words(TIMEOUT.search(f"{line}Timeout(ms)=600000) ran for 600041 milliseconds"))
    'rank 12 waited 600 s for ALLGATHER 7'
    """
    seconds = int(match["ms"]) * MS
    return f"rank {match['rank']} waited {seconds:.0f} s for {match['kind']} {match['number']}"


def transports(text: str) -> Counter[str]:
    """Connections by transport: NET/IB, NET/Socket, P2P, SHM.

    >>> transports("n1:7:9 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/Socket/0")
    Counter({'NET/Socket': 1})
    """
    return Counter(_CHANNEL.findall(text))
