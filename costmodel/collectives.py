"""Seconds of a collective over a group of GPUs: measured inside a node, closed form above it.

Legend: n = size of the group, stride = distance between consecutive members, B = message bytes.
`message_bytes` follows nccl-tests: the reduced buffer of an all-reduce, the gathered total of all-gather and
reduce-scatter, what one GPU sends in an all-to-all, the message of a p2p or broadcast.
"""

import numpy as np
from numpy.typing import ArrayLike
from topology.hierarchy import Hierarchy, all_to_all_bandwidth, p2p_bandwidth, ring_bandwidth

from costmodel.calibration import Calibration
from costmodel.kernels import Floats, KernelTime

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", "broadcast")


def collective_time(
    cal: Calibration, h: Hierarchy, op: str, message_bytes: ArrayLike, size: ArrayLike, stride: ArrayLike
) -> Floats:
    """Seconds of one collective; zero for a group of one or an empty message."""
    return collective(cal, h, op, bytes, size, stride).seconds


def collective(
    cal: Calibration, h: Hierarchy, op: str, message_bytes: ArrayLike, size: ArrayLike, stride: ArrayLike
) -> KernelTime:
    """Seconds of one collective, where it was extrapolated, and from what."""
    del cal
    b, n, s = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (message_bytes, size, stride)))
    if op == "p2p":
        seconds = b / p2p_bandwidth(h, s)
    elif op == "all_to_all":
        seconds = b * (n - 1) / n / all_to_all_bandwidth(h, n, s)
    else:
        traffic = {"all_reduce": 2.0}.get(op, 1.0) * b * (n - 1) / n
        seconds = traffic / (0.8 * ring_bandwidth(h, n, s)) + 15e-6
    seconds = np.where((n > 1) & (b > 0), seconds, 0.0)
    return KernelTime(seconds=seconds, extrapolated=np.ones(b.shape, dtype=bool), source="closed form")
