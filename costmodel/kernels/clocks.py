"""Clocks that a GPU's design power sustains: the law that steps of training and of serving share.

Kernels are timed alone and cool. A step of milliseconds that would draw more than the design power runs at
lower clocks.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from costmodel.kernels.precisions import PRECISIONS
from costmodel.kernels.stand_ins import precision_on
from topology.base.arrays import Floats, Quantity
from topology.base.decode import read_toml
from topology.hardware.gpu import Gpu

CONSTANTS_FILE = Path(__file__).parents[1] / "data" / "constants.toml"


def slowdown(joules: Quantity, seconds: Quantity, watts: Quantity, exponent: float) -> Floats:
    """Kernels at the clocks that the design power sustains, over those at full clocks.

        slowdown = max(1, joules/(seconds·watts))^exponent

    Args:
        joules: Energy of the arithmetic.
        seconds: At full clocks.
        watts: Design power.
        exponent: Between 1/3 (voltage falls with clocks) and 1 (it is at its floor).

    >>> slowdown(700.0, 1.0, 700.0, 0.667).tolist()
    1.0
    """
    draw = joules / np.maximum(seconds, 1e-30) / watts
    return np.asarray(np.maximum(1.0, draw) ** exponent, dtype=np.float64)


def sustained_s(joules: Floats, seconds: Floats, gpu: Gpu) -> Floats:
    """Seconds of a step at the clocks that its energy lets a GPU sustain, of those at full clocks."""
    return seconds * slowdown(joules, seconds, gpu.tdp_w, _constant("clock_exponent"))


def product_joules(gpu: Gpu, dtype: str, flop: Floats) -> Floats:
    """Energy of the operations of a product: that of sixteen bits, by the width of its operands."""
    wide = PRECISIONS["bf16"].activation_bytes
    share = precision_on(gpu, dtype).activation_bytes / wide
    return np.asarray(_constant("picojoule_per_flop") * 1e-12 * share * flop, dtype=np.float64)


@functools.cache
def _constant(name: str) -> float:
    """A constant of training and serving, from its one home."""
    entry = read_toml(CONSTANTS_FILE)[name]
    return float(entry["value"])
