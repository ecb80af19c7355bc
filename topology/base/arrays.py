"""Names of the arrays that the packages compute with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Quantity = float | NDArray[Any]
"""A number, or an array of numbers that broadcasts against its neighbours."""

Floats = NDArray[np.float64]
"""Numbers of any shape."""

Vector = Floats
"""Numbers whose last or only axis is the layouts, the stages or the runs that are asked about."""

Ints = NDArray[np.int64]
"""Counts and codes."""

Index = NDArray[np.intp]
"""Places in another array."""

Mask = NDArray[np.bool_]
"""Which are meant."""
