"""Normal numbers by counter: any part of a parameter is drawn alone, equal to that part of the whole.

Sixteen bits of a Philox stream, addressed by the element's place in the whole parameter, choose one of
65,536 quantiles of the normal distribution: bf16 keeps half as many bits, and a table is read faster than a
logarithm.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from functools import cache

import numpy as np
import torch

from executor.comm.tensor_parallel import chunk_bounds

_PER_COUNTER = 16  # numbers of 16 bits in one Philox block of 4 words
_BLOCK = 1 << 18  # numbers drawn at a time: what is between stays in the cache

Cuts = tuple[tuple[int, int, int], ...]
"""Cuts of a tensor, one after the other: dimension, number of parts, index."""


def normal_part(key: str, shape: torch.Size, cuts: Cuts, std: float) -> torch.Tensor:
    """Draw the part that `cuts` leave of a tensor of N(0, std²), fp32 on the host.

    >>> whole = normal_part("w", torch.Size((6, 8)), (), 1.0)
    >>> torch.equal(normal_part("w", torch.Size((6, 8)), ((1, 2, 1), (0, 3, 0)), 1.0), whole[:2, 4:])
    True
    """
    box = [(0, size) for size in shape]
    for dimension, parts, index in cuts:
        start, end = box[dimension]
        low, high = chunk_bounds(end - start, parts, index)
        box[dimension] = (start + low, start + high)
    drawn = np.empty([end - start for start, end in box], dtype=np.float32)
    if drawn.size:
        _draw(drawn.reshape(-1), key, shape, box)
    return torch.from_numpy(drawn).mul_(std)


def _draw(flat: np.ndarray, key: str, shape: torch.Size, box: list[tuple[int, int]]) -> None:
    """Fill the part run by run: a run is what lies together in the whole."""
    cut = [d for d, (start, end) in enumerate(box) if end - start < shape[d]]
    last = cut[-1] if cut else 0
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    first, end = box[last] if box else (0, 1)
    stride = strides[last] if strides else 1
    run = (end - first) * stride
    philox = np.random.Philox(key=int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "big"))
    counter, done = 0, 0
    for place in itertools.product(*(range(*bounds) for bounds in box[:last])):
        offset = sum(i * s for i, s in zip(place, strides, strict=False)) + first * stride
        for begin in range(0, run, _BLOCK):
            count = min(_BLOCK, run - begin)
            block, skipped = divmod(offset + begin, _PER_COUNTER)
            blocks = -(-(skipped + count) // _PER_COUNTER)
            philox.advance(block - counter)
            bits = philox.random_raw(4 * blocks).view(np.uint16)[skipped : skipped + count]
            np.take(_quantiles(), bits, out=flat[done : done + count], mode="clip")
            counter, done = block + blocks, done + count


@cache
def _quantiles() -> np.ndarray:
    """Middle of each of 65,536 equal parts of N(0, 1), fp32."""
    levels = (torch.arange(1 << 16, dtype=torch.float64, device="cpu") + 0.5) / (1 << 16)
    return torch.special.ndtri(levels).float().numpy()
