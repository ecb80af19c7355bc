"""Rotary positions: angles of every position, and the turn of query and key heads by them.

Legend: ``S`` sequence length, ``h`` heads, ``d`` dimensions of a head that turn.
"""

from __future__ import annotations

import math

import torch

from costmodel.models.rotary import RopeScaling, Rotary
from costmodel.models.spec import ModelSpec

Rope = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, each (S, d)."""


def rotary_size(spec: ModelSpec) -> int:
    """Dimensions of each query head that turn, 0 where positions are learned.

    >>> from costmodel.models.catalog import model
    >>> rotary_size(model("deepseek-v3")), rotary_size(model("nemotron-4-15b")), rotary_size(model("gpt-2"))
    (64, 64, 0)
    """
    if spec.learned_positions:
        return 0
    return spec.attention.rotary_dim


def rotary_tables(
    positions: torch.Tensor, size: int, rotary: Rotary, dtype: torch.dtype, *, sliding: bool = False
) -> Rope:
    """Cosines and sines of angles position·frequency, halves repeated (RoFormer §3.2).

    Args:
        positions: (S,) positions in the whole sequence.
        size: d.
        rotary: Base and stretching.
        dtype: Type of the tables; angles are fp32.
        sliding: Whether for windowed layers that have a base of their own.
    """
    theta, scaling = rotary.theta, rotary.scaling
    if sliding and rotary.sliding_theta is not None:
        theta, scaling = rotary.sliding_theta, None
    exponents = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size
    frequencies = stretched(1.0 / theta**exponents, size, theta, scaling)
    angles = torch.outer(positions.float(), frequencies)
    angles = torch.cat((angles, angles), -1)
    grown = attention_factor(scaling)
    return (angles.cos() * grown).to(dtype), (angles.sin() * grown).to(dtype)


def stretched(
    frequencies: torch.Tensor, size: int, theta: float, scaling: RopeScaling | None
) -> torch.Tensor:
    """Frequencies (d/2,) after stretching; see `costmodel.models.rotary.RopeScaling`."""
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        return _stretched_by_wavelength(frequencies, scaling)
    low, high = _yarn_bounds(size, theta, scaling)
    dimension = torch.arange(size // 2, device=frequencies.device, dtype=torch.float32)
    kept = 1 - ((dimension - low) / (high - low)).clamp(0, 1)
    return frequencies / scaling.factor * (1 - kept) + frequencies * kept


def _stretched_by_wavelength(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1: long wavelengths divided, short ones kept, blended between by turns in the first length."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def _yarn_bounds(size: int, theta: float, scaling: RopeScaling) -> tuple[float, float]:
    """Dimensions that turn `beta_fast` and `beta_slow` times in the first length (YaRN §3.2)."""

    def dimension(turns: float) -> float:
        wavelength = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return size * math.log(wavelength) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    return (low, high) if low != high else (low, high + 0.001)  # the published code's guard


def attention_factor(scaling: RopeScaling | None) -> float:
    """What cosines and sines are multiplied by.

    >>> attention_factor(RopeScaling(kind="yarn", factor=40.0, mscale=1.0, mscale_all_dim=1.0))
    1.0
    """
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _grown(scaling.factor, scaling.mscale) / _grown(scaling.factor, scaling.mscale_all_dim)
    return _grown(scaling.factor, 1.0)


def latent_score_factor(scaling: RopeScaling | None) -> float:
    """What scores of latent attention are multiplied by beside 1/√d (DeepSeek-V2's published code)."""
    if scaling is None or not scaling.mscale_all_dim:
        return 1.0
    return _grown(scaling.factor, scaling.mscale_all_dim) ** 2


def _grown(factor: float, mscale: float) -> float:
    """0.1·mscale·ln(factor) + 1 (YaRN eq. 22)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def rotate(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Turn the first d dimensions of each head of x (B, S, h, …); pairs are across their two halves."""
    cosine, sine = (table[None, :, None, :] for table in rope)
    size = cosine.shape[-1]
    if size < x.shape[-1]:
        turning, still = x.split((size, x.shape[-1] - size), -1)
        return torch.cat((rotate(turning, rope), still), -1)
    half = size // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cosine + turned * sine


def deinterleave(x: torch.Tensor) -> torch.Tensor:
    """Reorder pairs (0,1),(2,3)… of the last dimension into halves, as DeepSeek's rotary weights expect."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
