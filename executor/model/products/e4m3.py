"""The eight bits in which products multiply, e4m3, and the power of two that values need for it."""

from __future__ import annotations

import torch

FORMAT = torch.float8_e4m3fn
BIAS, MANTISSA_BITS = 127, 23  # of fp32, whose exponents e8m0 has
NOT_A_NUMBER = 255  # in e8m0, and the exponent of what is not finite in fp32
_LARGEST_MANTISSA, _LARGEST_EXPONENT = 0x600000, 8  # 448 = 1.75 · 2⁸


def exponents(largest: torch.Tensor) -> torch.Tensor:
    """Exponents, as e8m0 stores them (uint8), of the least powers of two that keep such values within 448.

    Read off the bits: a quotient and a logarithm would round, and not alike on every device.

    >>> (exponents(torch.tensor([448.0, 449.0, 1.0, 0.0])).int() - BIAS).tolist()
    [0, 1, -8, -127]
    """
    bits = largest.float().view(torch.int32)
    power, mantissa = bits >> MANTISSA_BITS, bits & ((1 << MANTISSA_BITS) - 1)
    clamp = (power + (mantissa > _LARGEST_MANTISSA).int() - _LARGEST_EXPONENT).clamp(min=0)
    return torch.where(power == NOT_A_NUMBER, NOT_A_NUMBER, clamp).to(torch.uint8)


def inverse(exponent: torch.Tensor) -> torch.Tensor:
    """One over 2^(exponent − 127), fp32, of exponents from 1 to 253."""
    return ((2 * BIAS - exponent.int()) << MANTISSA_BITS).view(torch.float32)
