"""GPUs as a range, as written (``..576``, ``8..1024``), and the numbers of it that suit a batch.

A cluster is rented or granted by whole nodes, and a batch is divided among replicas without a rest: of
a range those numbers are planned that share most with the batch.
"""

from __future__ import annotations

import math

from planner.questions.batches import MOST_TRIED, RANGE
from topology.base.counts import parse_count
from topology.base.errors import InputError

FLAG = "--gpus"


def is_gpu_range(text: str | None) -> bool:
    """Whether GPUs are written as a range.

    >>> is_gpu_range("..576"), is_gpu_range("8..1024"), is_gpu_range("64")
    (True, True, False)
    """
    return text is not None and RANGE in text


def read_gpu_range(text: str, largest: int) -> tuple[int, int]:
    """Both ends of a range of GPUs; without the first it begins at one.

    >>> read_gpu_range("..576", 1024), read_gpu_range("8..1k", 2048)
    ((1, 576), (8, 1024))
    """
    first, last = text.split(RANGE, 1)
    if not last.strip():
        raise InputError(
            what=f"{FLAG} {text} is no range",
            cause="it has no end, and a search needs one",
            fix=f"write for example {text}1024",
        )
    high = parse_count(last, FLAG, largest=largest)
    low = parse_count(first, FLAG, largest=largest) if first.strip() else 1
    if low > high:
        raise InputError(
            what=f"{FLAG} {text} is no range",
            cause=f"it goes from {low:,} down to {high:,}",
            fix=f"write {high}{RANGE}{low}",
        )
    return low, high


def end_of_gpus(needed: float) -> int:
    """Where a range ends that holds so many GPUs: the next power of two, or three quarters of it.

    >>> end_of_gpus(100), end_of_gpus(1100), end_of_gpus(42_600)
    (128, 1536, 49152)
    """
    power = 1 << (max(1, math.ceil(needed)) - 1).bit_length()
    return power * 3 // 4 if needed <= power * 3 / 4 else power


def suited_gpus(
    low: int, high: int, batch: int, gpus_per_node: int, most: int = MOST_TRIED
) -> tuple[int, ...]:
    """Numbers of GPUs of a range that share most with a batch, of whole nodes, both ends among them.

    >>> suited_gpus(1, 576, 512, 8, most=4)
    (1, 256, 512, 576)
    >>> suited_gpus(1, 8, 512, 8)
    (1, 2, 4, 8)

    Args:
        low: Fewest GPUs.
        high: Most.
        batch: Sequences of a step.
        gpus_per_node: GPUs of a node; below one node their divisors are planned.
        most: How many; those with the largest common divisor with the batch, of equal ones the larger.
    """
    inside = [n for n in range(low, min(high, gpus_per_node - 1) + 1) if gpus_per_node % n == 0]
    first = -(-low // gpus_per_node) * gpus_per_node
    whole = range(first, high // gpus_per_node * gpus_per_node + 1, gpus_per_node)
    ranked = sorted((*inside, *whole), key=lambda n: (math.gcd(n, batch), n), reverse=True)
    result = dict.fromkeys((high, min(ranked, default=high), *ranked))
    return tuple(sorted(list(result)[:most]))
