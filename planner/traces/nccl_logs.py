"""Which transports NCCL connects ranks over, as NCCL_DEBUG=INFO prints them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

_CHANNEL: Final = re.compile(
    r"NCCL INFO Channel \d{1,5}/\d{1,5} : \d{1,7}\[\w{1,20}\] -> \d{1,7}\[\w{1,20}\]"
    r".{0,40}? via (NET/\w{1,30}|P2P|SHM)"
)
SOCKETS: Final = re.compile(r"NCCL INFO (?:Using network Socket\b|Channel .{0,120} via NET/Socket/)")
"""That NCCL joins nodes by TCP, as it says when it chooses its network and of each channel."""


def transports(text: str) -> Counter[str]:
    """Connections by transport: NET/IB, NET/Socket, P2P, SHM.

    >>> transports("n1:7:9 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/Socket/0")
    Counter({'NET/Socket': 1})
    """
    return Counter(_CHANNEL.findall(text))
