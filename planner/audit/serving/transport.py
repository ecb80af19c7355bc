"""What the caches of two pools travel over, and what a link that no file names may cost.

Over RDMA a cache of a few thousand tokens takes milliseconds. NIXL falls back to TCP in silence where it has
no device, and a worker's link is then a queue of its own: links move x = links · rate/bytes caches a second.

    closed loop of c:  first token = c/min(x, now) − (outputs − 1) · time of a token    (Little)
    a rate λ below x:  first token = now + t + t · ρ/(2 (1 − ρ)),  ρ = λ/x    (one server, equal work)

Legend: ``c`` requests in flight, ``t`` seconds of a cache on its link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Literal

Transport = Literal["rdma", "tcp", ""]
_RDMA = re.compile(
    r"disaggregation[-_]ib[-_]device|UCX_NET_DEVICES\W{1,3}\w*mlx|UCX_TLS\W{1,3}[\w,]*\b(?:rc|dc|ib|all)|"
    r"\brdma\b|FI_PROVIDER\W{1,3}efa|mooncake",
    re.IGNORECASE,
)
_TCP = re.compile(r"UCX_TLS\W{1,3}[\w,]*\btcp|NIXL_BACKEND\W{1,3}tcp", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTcp:
    """Two pools whose caches travel over TCP: first tokens, requests a second, and the share a link is busy.

    `first_token_s` is infinite where the load is more than the links move.
    """

    first_token_s: float
    requests_per_s: float
    busy: float


def transport_of(texts: Iterable[str]) -> Transport:
    """What files say that caches travel over; "" where they say nothing.

    >>> transport_of(["sglang --disaggregation-ib-device mlx5_0"]), transport_of(["UCX_TLS=tcp,cuda_copy"])
    ('rdma', 'tcp')
    >>> transport_of(["sglang --disaggregation-transfer-backend nixl"])
    ''
    """
    together = "\n".join(texts)
    if _RDMA.search(together):
        return "rdma"
    return "tcp" if _TCP.search(together) else ""


def over_tcp(
    *,
    cache_s: float,
    links: int,
    concurrency: int | None,
    rate_per_s: float | None,
    requests_per_s: float,
    first_token_s: float,
    outputs_s: float,
) -> OverTcp:
    """What two pools do whose caches take `cache_s` seconds each on one of so many links.

    Args:
        cache_s: Seconds of one request's cache.
        links: Workers that send, each over its own.
        concurrency: Requests in flight of a closed loop; None of a rate.
        rate_per_s: Requests a second of an open load.
        requests_per_s: What the pools answer where caches cost nothing.
        first_token_s: Their time to first token then.
        outputs_s: Seconds from a request's first token to its last.
    """
    most = links / cache_s
    if concurrency is not None:
        served = min(most, requests_per_s)
        waited = concurrency / served - outputs_s if most < requests_per_s else first_token_s
        return OverTcp(
            first_token_s=max(waited, first_token_s + cache_s), requests_per_s=served, busy=served / most
        )
    rate = rate_per_s or requests_per_s
    busy = rate / most
    if busy >= 1:
        return OverTcp(first_token_s=inf, requests_per_s=most, busy=1.0)
    wait_s = cache_s * busy / (2 * (1 - busy))
    return OverTcp(first_token_s=first_token_s + cache_s + wait_s, requests_per_s=rate, busy=busy)
