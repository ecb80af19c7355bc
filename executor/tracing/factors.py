"""Which part of which dimension of a tensor is divided over ranks, and what views make of it.

A *factor* (dimension, inner, size) divides a dimension of ``outer · size · inner`` entries into `size` units:
heads of a matrix's columns are (1, head size, heads). Columns of a weight may be dealt in any order, so that
what a product gives may be divided by any factor of its width; each operation leaves those that it allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from executor.tracing.record import TracedStep

REDUCES = ("mean", "sum", "amax", "amin", "var_mean", "logsumexp", "linalg_vector_norm")
LAYER_NORMS = ("native_layer_norm", "_fused_rms_norm")
OF_CHANNELS = (
    "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "upsample_nearest2d",
    "upsample_bilinear2d",
)  # fmt: skip
Factor = tuple[int, int, int]
Factors = frozenset[Factor]


def meet(first: Factors, second: Factors) -> Factors:
    """Factors that divide two tensors of one shape alike.

    >>> sorted(meet(frozenset({(1, 1, 32)}), frozenset({(1, 4, 8), (2, 1, 64)})))
    [(1, 4, 8)]
    """
    result = set()
    for dim, inner, size in first:
        for other, inner2, size2 in second:
            low, high = max(inner, inner2), min(inner * size, inner2 * size2)
            if dim == other and high > low and high % low == 0:
                result.add((dim, low, high // low))
    return frozenset(result)


def reshaped(factors: Iterable[Factor], before: Sequence[int], after: Sequence[int]) -> Factors:
    """Factors of a view of the same entries in another shape.

    >>> sorted(reshaped({(1, 1, 96)}, (5, 96), (5, 3, 4, 8)))
    [(1, 1, 3), (2, 1, 4), (3, 1, 8)]
    >>> sorted(reshaped({(1, 1, 4)}, (5, 4, 6, 8), (20, 6, 8)))
    [(0, 1, 4)]
    >>> sorted(reshaped({(0, 1, 4)}, (20, 6, 8), (5, 4, 6, 8)))
    [(1, 1, 4)]
    """
    wanted, result = list(factors), set()
    for old, new in _groups(before, after):
        for dim, inner, size in wanted:
            if dim not in old:
                continue
            low = inner * prod(before[i] for i in old if i > dim)
            for j in new:
                stride = prod(after[i] for i in new if i > j)
                start, end = max(low, stride), min(low * size, stride * after[j])
                if end > start and end % start == 0 and start % stride == 0:
                    result.add((j, start // stride, end // start))
    return frozenset(result)


def _groups(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Consecutive dimensions of both shapes that hold as many entries."""
    i = j = 0
    while i < len(before) or j < len(after):
        old, new, a, b = list[int](), list[int](), 1, 1
        while not (old or new) or a != b:
            if (a <= b and i < len(before)) or j >= len(after):
                if i >= len(before):
                    return  # shapes of different sizes have no groups
                old.append(i)
                a, i = a * before[i], i + 1
            else:
                new.append(j)
                b, j = b * after[j], j + 1
        while j < len(after) and after[j] == 1:
            new.append(j)
            j += 1
        yield old, new


def moved(factors: Iterable[Factor], places: Sequence[int]) -> Factors:
    """Factors where dimension `places[i]` of before is dimension i now.

    >>> sorted(moved({(2, 1, 4)}, (0, 2, 1)))
    [(1, 1, 4)]
    """
    return frozenset((places.index(dim), inner, size) for dim, inner, size in factors if dim in places)


def cropped(factors: Iterable[Factor], dim: int, before: int, after: int) -> Factors:
    """Factors of a piece of one dimension; a weight's columns are dealt piece by piece.

    >>> sorted(cropped({(1, 1, 96)}, 1, 96, 32))
    [(1, 1, 32)]
    >>> sorted(cropped({(1, 8, 12)}, 1, 96, 32))
    [(1, 8, 4)]
    """
    result = set()
    for at, inner, size in factors:
        if at != dim or before == after:
            result.add((at, inner, size))
        elif inner * size == before and after % inner == 0 and after > inner:
            result.add((at, inner, after // inner))
    return frozenset(result)


def dimension(words: Sequence[Any], place: int, usual: int, rank: int) -> int:
    """A dimension among arguments, counted from the front."""
    word = words[place] if len(words) > place and words[place] is not None else usual
    return int(word) % rank


def dimension_places(name: str, words: Sequence[Any], rank: int) -> list[int]:
    """Which dimension of before each one is now."""
    if name == "permute":
        return [int(dim) % rank for dim in words[0]]
    result = list(range(rank))
    if rank > 1:
        a, b = (0, 1) if name == "t" else (dimension(words, 0, 0, rank), dimension(words, 1, 1, rank))
        result[a], result[b] = result[b], result[a]
    return result


def undivided(factors: Factors, dims: Iterable[int]) -> Factors:
    """Factors of other dimensions."""
    return frozenset(f for f in factors if f[0] not in set(dims))


def reduced(factors: Factors, words: Sequence[Any], rank: int, left: int) -> Factors:
    """Factors of dimensions that a reduction leaves."""
    word = words[0] if words and isinstance(words[0], list | tuple | int) else range(rank)
    dims = {int(dim) % rank for dim in ([word] if isinstance(word, int) else word)}
    kept = undivided(factors, dims)
    return kept if left == rank else moved(kept, [i for i in range(rank) if i not in dims])


Shape = tuple[int, ...]


def _viewed(step: TracedStep, before: Shape, mine: Factors) -> Factors:
    """The same entries in another shape."""
    return reshaped(mine, before, step.outputs[0].shape)


def _turned(step: TracedStep, before: Shape, mine: Factors) -> Factors:
    """Dimensions in another order."""
    return moved(mine, dimension_places(step.name, step.arguments[1:], len(before)))


def _expanded(step: TracedStep, before: Shape, mine: Factors) -> Factors:
    """Repeated along dimensions of one entry, or new ones in front."""
    more = len(step.outputs[0].shape) - len(before)
    return frozenset((dim + more, inner, size) for dim, inner, size in mine)


def _sliced(step: TracedStep, before: Shape, mine: Factors) -> Factors:
    """A range of one dimension."""
    dim = dimension(step.arguments[1:], 0, 0, len(before))
    return cropped(mine, dim, before[dim], step.outputs[0].shape[dim])


def _picked(step: TracedStep, before: Shape, mine: Factors) -> dict[int, Factors]:
    """One entry, or each, of a dimension."""
    dim = dimension(step.arguments[1:], 0, 0, len(before))
    rest = moved(undivided(mine, [dim]), [i for i in range(len(before)) if i != dim])
    return dict.fromkeys(range(len(step.outputs)), rest)


def _split(step: TracedStep, before: Shape, mine: Factors) -> dict[int, Factors]:
    """Pieces of one dimension."""
    dim = dimension(step.arguments[1:], 1, 0, len(before))
    return {
        place: cropped(mine, dim, before[dim], seen.shape[dim]) for place, seen in enumerate(step.outputs)
    }


def _along(step: TracedStep, before: Shape, mine: Factors) -> Factors:
    """What runs along one dimension."""
    return undivided(mine, [dimension(step.arguments[1:], 0, -1, len(before))])


def _logarithms(step: TracedStep, before: Shape, mine: Factors) -> Factors:
    """Of a softmax over classes that may be divided, where a loss follows."""
    classes = frozenset({(1, 1, before[-1])})
    return classes if len(before) == 2 and classes <= mine else _along(step, before, mine)


def _reduction(step: TracedStep, before: Shape, mine: Factors) -> Factors:
    """Means and sums over dimensions."""
    return reduced(mine, step.arguments[1:], len(before), len(step.outputs[0].shape))


def _normed(step: TracedStep, before: Shape, mine: Factors) -> Factors:
    """Norms over the last dimensions."""
    return undivided(mine, range(len(before) - len(step.arguments[1]), len(before)))


def _pooled(step: TracedStep, before: Shape, mine: Factors) -> Factors:
    """What every channel does alone."""
    del step, before
    return frozenset(factor for factor in mine if factor[0] == 1)


ALONE: Mapping[str, Callable[[TracedStep, Shape, Factors], Factors | dict[int, Factors]]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"), _viewed),
    **dict.fromkeys(("t", "transpose", "permute"), _turned),
    "expand": _expanded,
    "slice": _sliced,
    **dict.fromkeys(("select", "unbind"), _picked),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _split),
    **dict.fromkeys(("_softmax", "_safe_softmax", "cumsum"), _along),
    "_log_softmax": _logarithms,
    **dict.fromkeys(REDUCES, _reduction),
    **dict.fromkeys(LAYER_NORMS, _normed),
    **dict.fromkeys(OF_CHANNELS, _pooled),
}
"""What operations of one tensor leave of its factors: of all that they give, or of each."""
