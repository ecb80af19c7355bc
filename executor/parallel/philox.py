"""Philox4x64-10 by integers of any torch device: the stream of ``numpy.random.Philox``, counter by counter.

Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.3. torch multiplies 64 bits and
keeps the low 64, so the high half is put together from products of halves; the sign bit is data.
"""

from __future__ import annotations

import torch

WORDS = 4  # of 64 bits, in the block of one counter
_ROUNDS = 10
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_LOW = 0xFFFFFFFF


def random_words(key: int, counters: torch.Tensor) -> torch.Tensor:
    """Words of numbered blocks of a key of 128 bits: int64 (…, 4) that are the bits of unsigned numbers."""
    counter = counters + 1  # numpy counts before it draws
    zero = torch.zeros_like(counter)
    a, b, c, d = counter, zero, zero, zero
    keys = [key & (1 << 64) - 1, key >> 64]
    for _ in range(_ROUNDS):
        high_a, low_a = _product(_MULTIPLIERS[0], a)
        high_c, low_c = _product(_MULTIPLIERS[1], c)
        a, b, c, d = high_c ^ b ^ _signed(keys[0]), low_c, high_a ^ d ^ _signed(keys[1]), low_a
        keys = [(k + step) & (1 << 64) - 1 for k, step in zip(keys, _KEY_STEPS, strict=True)]
    return torch.stack((a, b, c, d), -1)


def _product(factor: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 64 bits of an unsigned product of 128."""
    high, low = factor >> 32, factor & _LOW
    x_high, x_low = _shifted(x, 32), x & _LOW
    low_low, high_low = low * x_low, high * x_low
    middle = low * x_high + _shifted(low_low, 32)
    upper = (middle & _LOW) + high_low  # below 2^64: (2^32 - 1) + (2^32 - 1)^2
    top = high * x_high + _shifted(middle, 32) + _shifted(upper, 32)
    return top, x * _signed(factor)


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right, the sign bit too."""
    return (x >> bits) & ((1 << 64 - bits) - 1)


def _signed(word: int) -> int:
    """The same 64 bits as torch's signed integer."""
    return word - (1 << 64) if word >= 1 << 63 else word
