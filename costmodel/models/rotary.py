"""Rotary positions of a model, in the words of a Hugging Face ``config.json``.

Sizes and costs do not depend on any of this; what a model computes does. Two angles that differ by a setting
here give different logits and no error, so a model that is built or exported states all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeScalingKind = Literal["linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How angles are stretched beyond the length a model was first trained on.

    - ``linear``: every frequency is divided by `factor` (Chen 2023, arXiv 2306.15595).
    - ``llama3``: only wavelengths longer than `original_max_position_embeddings` / `low_freq_factor` are,
      those shorter than the same / `high_freq_factor` stay, and what lies between is blended (Llama 3.1).
    - ``yarn``: dimensions that turn fewer than `beta_slow` times in the original length are divided, those
      that turn more than `beta_fast` times stay (Peng 2023, arXiv 2309.00071 §3.2). Cosines and sines grow by
      `attention_factor`, by default 0.1·ln(factor) + 1 (eq. 22), or by the ratio of that with `mscale` and
      with `mscale_all_dim` (DeepSeek-V2). `truncate` rounds the two bounds to whole dimensions.
    """

    kind: RopeScalingKind
    factor: float
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Rotary positions (RoFormer, arXiv 2104.09864 §3.2, whose base is the default).

    Attributes:
        theta: Base of the angles position·θ^(−2i/d).
        sliding_theta: Base in windowed layers, which are then not scaled; None: they are as the others.
        fraction: Share of a head's dimensions that turn, the first ones (``partial_rotary_factor``).
        interleaved: Whether pairs are neighbours instead of the two halves of the part that turns.
        scaling: Stretching beyond the first training length.
    """

    theta: float = 10_000.0
    sliding_theta: float | None = None
    fraction: float = 1.0
    interleaved: bool = False
    scaling: RopeScaling | None = None
