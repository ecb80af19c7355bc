"""Normal numbers by counter: any part of a parameter is drawn alone, equal to that part of the whole.

Sixteen bits of a Philox stream, addressed by the element's place in the whole parameter, choose one of
65,536 quantiles of the normal distribution: bf16 keeps half as many bits, and a table is read faster than a
logarithm. A GPU draws by its own integers what numpy draws on the host, bit for bit.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import torch

from executor.comm.cuts import Cuts, box
from executor.parallel.philox import WORDS, random_words

_PER_COUNTER = 4 * WORDS  # numbers of 16 bits in one block of words of 64
_BLOCK = 1 << 18  # numbers drawn at a time on the host: what is between stays in the cache
_DEVICE_BLOCK = 1 << 24  # and by a device's integers: about 0.5 GiB between


def draw_normal(out: torch.Tensor, key: str, shape: torch.Size, cuts: Cuts, std: float) -> None:
    """Fill `out` with the part that `cuts` leave of a tensor of this shape of N(0, std²).

    >>> whole, part = torch.empty(6, 8), torch.empty(2, 4)
    >>> draw_normal(whole, "w", whole.shape, (), 1.0)
    >>> draw_normal(part, "w", whole.shape, ((1, 2, 1), (0, 3, 0)), 1.0)
    >>> torch.equal(part, whole[:2, 4:])
    True
    """
    if out.numel() == 0:
        return
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "big")
    runs, quantiles = _runs(shape, box(shape, cuts)), _quantiles(std)
    if out.device.type == "cpu" and out.dtype == torch.float32 and out.is_contiguous():
        _draw_on_host(out.view(-1).numpy(), number, runs, quantiles)
        return
    flat = out.view(-1) if out.is_contiguous() else torch.empty_like(out.reshape(-1))
    _draw_on_device(flat, number, runs, torch.from_numpy(quantiles).to(out.device))
    if not out.is_contiguous():
        out.copy_(flat.view(out.shape))


def _runs(shape: torch.Size, part: tuple[slice, ...]) -> Iterator[tuple[int, int]]:
    """Where the part lies in the flat whole, in order: first element and length of each run."""
    cut = [d for d, side in enumerate(part) if side.stop - side.start < shape[d]]
    last = cut[-1] if cut else 0
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    side, stride = (part[last], strides[last]) if part else (slice(0, 1), 1)
    for place in itertools.product(*(range(outer.start, outer.stop) for outer in part[:last])):
        first = sum(i * s for i, s in zip(place, strides, strict=False)) + side.start * stride
        yield first, (side.stop - side.start) * stride


def _pieces(runs: Iterator[tuple[int, int]], most: int) -> Iterator[tuple[int, int]]:
    """The same runs, none longer than `most`."""
    for first, length in runs:
        for begin in range(0, length, most):
            yield first + begin, min(most, length - begin)


def _draw_on_host(flat: np.ndarray, key: int, runs: Iterator[tuple[int, int]], quantiles: np.ndarray) -> None:
    """Fill from numpy's own Philox."""
    philox = np.random.Philox(key=key)
    at, done = 0, 0
    for first, count in _pieces(runs, _BLOCK):
        counter, skipped = divmod(first, _PER_COUNTER)
        counters = -(-(skipped + count) // _PER_COUNTER)
        philox.advance(counter - at)
        bits = philox.random_raw(WORDS * counters).astype("<u8", copy=False).view("<u2")
        np.take(quantiles, bits[skipped : skipped + count], out=flat[done : done + count], mode="clip")
        at, done = counter + counters, done + count


def _draw_on_device(
    flat: torch.Tensor, key: int, runs: Iterator[tuple[int, int]], quantiles: torch.Tensor
) -> None:
    """Fill by integers of the device, many runs of one length at a time."""
    shifts = torch.tensor((0, 16, 32, 48), device=flat.device)
    done = 0
    for count, group in itertools.groupby(_pieces(runs, _DEVICE_BLOCK), key=lambda piece: piece[1]):
        numbers = torch.arange(count, device=flat.device)
        counters = torch.arange(-(-(_PER_COUNTER - 1 + count) // _PER_COUNTER), device=flat.device)
        while some := [first for first, _ in itertools.islice(group, max(1, _DEVICE_BLOCK // count))]:
            first = torch.tensor(some, device=flat.device).unsqueeze(-1)
            words = random_words(key, first // _PER_COUNTER + counters)
            bits = ((words.unsqueeze(-1) >> shifts) & 0xFFFF).flatten(1)
            drawn = quantiles[bits.gather(1, first % _PER_COUNTER + numbers)]
            flat[done : done + drawn.numel()] = drawn.view(-1)
            done += drawn.numel()


@cache
def _quantiles(std: float) -> np.ndarray:
    """Middle of each of 65,536 equal parts of N(0, std²), fp32."""
    levels = (torch.arange(1 << 16, dtype=torch.float64, device="cpu") + 0.5) / (1 << 16)
    drawn: np.ndarray = (torch.special.ndtri(levels) * std).float().numpy()
    return drawn
