"""How long requests of a server waited, prefilled and decoded: the histograms of its `/metrics`.

Names are those of vLLM (`vllm:request_queue_time_seconds` and its likes, which lmdeploy shares), in
Prometheus' text format (version 0.0.4).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from topology.base.errors import InputError

PHASES: Final = ("queue", "prefill", "decode")
_BUCKET: Final = re.compile(
    r"\w{1,40}:(?:request_(queue|prefill|decode)_time|(e2e)_request_latency)_seconds_bucket\{"
    r"([^{}]{0,4000})\}\s{1,8}(\S{1,40})(?:\s{1,8}-?\d{1,20})?"
)
_BOUND: Final = re.compile(r'(?:^|,)le="([^"]{1,30})"')


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """Requests of a server until now."""

    requests: int
    p99_s: Mapping[str, float]
    """By phase: 99 of 100 requests took no longer in it."""
    whole_p99_s: float
    """The same of whole requests; the sum of phases where it is not recorded."""


def is_server_metrics(text: str) -> bool:
    """Whether a text has the histograms of a server's phases."""
    return "request_queue_time_seconds_bucket" in text


def request_times(text: str, source: str) -> RequestTimes:
    """What the histograms say. Raises InputError where they count no request."""
    buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for line in text.splitlines():
        match = _BUCKET.fullmatch(line.rstrip())
        limit = _BOUND.search(match[3]) if match else None
        if match and limit:
            bound, count = _number(limit[1]), _number(match[4])
            if bound is not None and count is not None and math.isfinite(count):
                buckets[match[1] or match[2]][bound] += count  # of all models and engines
    known = dict[str, float]()
    for phase in PHASES:
        value = quantile(buckets[phase], 0.99) if phase in buckets else None
        if value is not None:
            known[phase] = value
    if not known:
        cause = "no bucket of its histograms counts a request"
        raise InputError(f"{source} says nothing of requests", cause, "fetch /metrics while the server works")
    whole = quantile(buckets["e2e"], 0.99) if "e2e" in buckets else None
    return RequestTimes(
        requests=int(max(max(of.values(), default=0.0) for of in buckets.values())),
        p99_s=known,
        whole_p99_s=whole if whole is not None else sum(known.values()),
    )


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """A quantile of cumulative buckets, linear inside of one, as Prometheus' `histogram_quantile`.

    Beyond the last finite bound it is that bound.

    >>> quantile({1.0: 90.0, 2.0: 100.0, math.inf: 100.0}, 0.95)
    1.5
    """
    bounds = sorted(buckets)
    counts = [buckets[bound] for bound in bounds]
    total = max(counts, default=0.0)
    if total <= 0.0:
        return None
    rank, before, lower = share * total, 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count >= rank:
            if not math.isfinite(bound):
                return lower
            inside = count - before
            return lower + (bound - lower) * ((rank - before) / inside if inside > 0 else 1.0)
        before, lower = max(before, count), bound if math.isfinite(bound) else lower
    return lower


def _number(text: str) -> float | None:
    """A natural number or `+Inf` of Prometheus."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value >= 0 else None
