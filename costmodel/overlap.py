"""Two things at once on one GPU: how long compute and communication take when they overlap."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def overlapped_time(
    compute_s: ArrayLike, communication_s: ArrayLike, compute_slowdown: float, communication_slowdown: float
) -> Floats:
    """Seconds of compute c and communication m that start together and slow each other down.

    While both run, compute proceeds at rate 1/gc and communication at 1/gm; whoever is left runs alone:
        T = m·gm + c − m·gm/gc   if c·gc ≥ m·gm   (communication ends first)
        T = c·gc + m − c·gc/gm   otherwise

    Args:
        compute_s: c, seconds alone.
        communication_s: m, seconds alone.
        compute_slowdown: gc ≥ 1 (1.12–1.19 for NVLink collectives that use SMs, 1.03 for NIC-bound).
        communication_slowdown: gm ≥ 1.

    >>> float(overlapped_time(10.0, 4.0, 1.0, 1.0))
    10.0
    >>> float(overlapped_time(10.0, 0.0, 1.2, 1.1))
    10.0
    >>> float(overlapped_time(2.0, 10.0, 1.0, 1.0))
    10.0
    """
    c, m = np.asarray(compute_s, dtype=np.float64), np.asarray(communication_s, dtype=np.float64)
    both_compute, both_communication = c * compute_slowdown, m * communication_slowdown
    return np.where(
        both_compute >= both_communication,
        both_communication + c - both_communication / compute_slowdown,
        both_compute + m - both_compute / communication_slowdown,
    )


def exposed(
    compute_s: ArrayLike, communication_s: ArrayLike, compute_slowdown: float, communication_slowdown: float
) -> Floats:
    """Seconds that communication adds to compute when overlapped: T(c, m) − c, never below zero.

    >>> float(exposed(10.0, 4.0, 1.0, 1.0))
    0.0
    >>> round(float(exposed(10.0, 4.0, 1.2, 1.0)), 3)
    0.667
    """
    together = overlapped_time(compute_s, communication_s, compute_slowdown, communication_slowdown)
    return np.maximum(together - np.asarray(compute_s, dtype=np.float64), 0.0)
