"""Where ranks land: named axes from slowest to fastest, and the GPU of every rank.

Legend: an axis has `size` members that are `stride` ranks apart, its stride being the product of the
sizes of the faster axes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topology.base.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Axes slowest to fastest with their sizes, and the GPU each rank runs on."""

    axes: tuple[tuple[str, int], ...]
    gpu_of_rank: tuple[int, ...]

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks."""
        return len(self.gpu_of_rank)

    def size(self, axis: str) -> int:
        """Return the size of an axis."""
        return self.axes[self._position(axis)][1]

    def stride(self, axis: str) -> int:
        """Return how many ranks apart consecutive members of an axis are."""
        return math.prod(size for _, size in self.axes[self._position(axis) + 1 :])

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """Return the groups of an axis: the GPUs of ranks that differ along it alone, in rank order.

        >>> mesh([("dp", 2), ("tp", 2)]).groups("dp")
        ((0, 2), (1, 3))
        """
        position = self._position(axis)
        grid = np.asarray(self.gpu_of_rank).reshape([size for _, size in self.axes])
        rows = np.moveaxis(grid, position, -1).reshape(-1, self.axes[position][1])
        return tuple(tuple(int(gpu) for gpu in row) for row in rows)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the place of a rank on every axis.

        >>> mesh([("pp", 2), ("tp", 4)]).coordinates(6)
        {'pp': 1, 'tp': 2}
        """
        places = np.unravel_index(rank, [size for _, size in self.axes])
        return {name: int(place) for (name, _), place in zip(self.axes, places, strict=True)}

    def _position(self, axis: str) -> int:
        names = [name for name, _ in self.axes]
        if axis not in names:
            cause = f"its axes are {', '.join(names)}"
            raise InputError(f"the mesh has no axis {axis!r}", cause, "name one of these axes")
        return names.index(axis)


def mesh(axes: Sequence[tuple[str, int]], gpu_of_rank: Sequence[int] | None = None) -> Mesh:
    """Return a mesh over ranks 0…, rank r on GPU r unless `gpu_of_rank` places it elsewhere."""
    names = [name for name, _ in axes]
    sizes = [size for _, size in axes]
    num_ranks = math.prod(sizes)
    placed = tuple(range(num_ranks)) if gpu_of_rank is None else tuple(gpu_of_rank)
    if len(set(names)) < len(names) or min(sizes, default=1) < 1:
        cause = f"axes {', '.join(f'{name}={size}' for name, size in axes)}"
        raise InputError("the mesh is malformed", cause, "name every axis once, with a size of at least 1")
    if len(placed) != num_ranks or len(set(placed)) < num_ranks:
        cause = f"{' · '.join(map(str, sizes))} = {num_ranks} ranks on {len(set(placed))} different GPUs"
        raise InputError("the mesh does not place every rank on its own GPU", cause, "list one GPU per rank")
    return Mesh(axes=tuple((name, size) for name, size in axes), gpu_of_rank=placed)
