"""One kind of link between two devices, as the graph and the hierarchy carry it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link: what it is, bytes/s in each direction, and the seconds an empty message takes."""

    kind: str
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
