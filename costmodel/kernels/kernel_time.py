"""What every kernel and collective function returns: seconds, where they were extrapolated, and from what."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from costmodel.kernels.grids import Bools, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """Seconds (array), where they were extrapolated (bool array of the same shape), and their source."""

    seconds: Floats
    extrapolated: Bools
    source: str


def floats(value: ArrayLike) -> Floats:
    """Return `value` as an array of float64."""
    return np.asarray(value, dtype=np.float64)
