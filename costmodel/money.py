"""Dollars and watt-hours of a step and of a billion tokens."""

from numpy.typing import ArrayLike

from costmodel.kernels.grids import Floats
from costmodel.kernels.kernel_time import floats

SECONDS_PER_HOUR = 3600.0
BILLION = 10**9


def usd(seconds: ArrayLike, num_gpus: ArrayLike, usd_per_gpu_hour: float) -> Floats:
    """US dollars of `num_gpus` rented for `seconds`: t·N·price/3600.

    >>> float(usd(3600.0, 8, 2.5))
    20.0
    """
    return floats(seconds) * floats(num_gpus) * (usd_per_gpu_hour / SECONDS_PER_HOUR)


def watt_hours(seconds: ArrayLike, num_gpus: ArrayLike, watts_per_gpu: float) -> Floats:
    """Watt-hours drawn by `num_gpus` for `seconds`: t·N·W/3600.

    >>> float(watt_hours(3600.0, 2, 700.0))
    1400.0
    """
    return floats(seconds) * floats(num_gpus) * (watts_per_gpu / SECONDS_PER_HOUR)


def per_billion_tokens(amount_per_step: ArrayLike, tokens_per_step: ArrayLike) -> Floats:
    """Amount (dollars, Wh) of a billion tokens, from that of one step.

    >>> float(per_billion_tokens(2.0, 4_000_000))
    500.0
    """
    return floats(amount_per_step) * (BILLION / floats(tokens_per_step))
