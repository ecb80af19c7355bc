"""What nccl-tests (``all_reduce_perf`` and its kin) print: the rate of a collective over links."""

from __future__ import annotations

import re
from dataclasses import dataclass

from topology.base.units import GIGA

_HEAD = re.compile(r"^#\s*nThread \d+ nGpus \d+ minBytes", re.MULTILINE)
_RANK = re.compile(r"^#\s+Rank\s+\d+ .{0,80}?\bon\s+(\S{1,80})\s+device", re.MULTILINE)
_ROW = re.compile(
    r"^\s*(?P<bytes>\d{1,15})\s+\d+\s+\w+\s+\w+\s+-?\d+\s+[\d.]+\s+[\d.]+\s+(?P<rate>\d[\d.]{0,11})\s",
    re.MULTILINE,
)
MOST_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTest:
    """A measured collective.

    Attributes:
        hosts: How many hosts its ranks were on.
        ranks: How many ranks.
        bytes_per_s: Bus bandwidth of the largest message; of several hosts that of a host's NICs together.
    """

    hosts: int
    ranks: int
    bytes_per_s: float


def collective_test(text: str) -> CollectiveTest | None:
    """What a text of nccl-tests measured; None where it is none of theirs, or has no row.

    >>> collective_test("# nThread 1 nGpus 1 minBytes 8") is None
    True
    """
    head = text[:MOST_CHARACTERS]
    ranks, rows = _RANK.findall(head), _ROW.findall(head)
    if not (_HEAD.search(head) and ranks and rows):
        return None
    try:
        rate = float(max(rows, key=lambda row: int(row[0]))[1]) * GIGA
    except ValueError:
        return None
    return CollectiveTest(hosts=len(set(ranks)), ranks=len(ranks), bytes_per_s=rate) if rate > 0 else None
