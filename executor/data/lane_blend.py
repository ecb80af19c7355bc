"""Blends with text in them: each place of a global batch takes turns by itself, so that it keeps its lanes.

In step t, place p of G has turn t + p of the blend's period of P turns (`executor.data.blend`). So in any P
steps each place uses each source exactly as often as its weight says, a batch of P places or more is in
proportion to within the turns left over, and a source's lane l is used by places l, l + L, l + 2L … alone. A
source that is found by number, as token files are, is one lane: its samples come in its own order.

Legend: ``G`` global batch size, ``L`` lanes of a source, ``P`` period in turns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from executor.data.blend import TokenSource, blend
from executor.data.stream import TextStream


class LaneBlend:
    """Sources that take turns, by places."""

    def __init__(
        self, sources: Sequence[TokenSource], weights: Sequence[int], *, global_batch_size: int
    ) -> None:
        self.sources, self.weights, self.batch = tuple(sources), tuple(weights), global_batch_size
        self.turns = blend(sources, weights).turns
        uses = [self.turns == source for source in range(len(self.sources))]
        # uses before each of the turns of two periods, as what begins in one may end in the next
        self.before = [np.concatenate((np.zeros(1, np.int64), np.cumsum(np.tile(used, 2)))) for used in uses]

    def place(self, index: int) -> tuple[int, int]:
        """Source of sample `index`, and which of that source's samples it is."""
        step, place = divmod(index, self.batch)
        source = int(self.turns[(step + place) % len(self.turns)])
        lanes = _lanes(self.sources[source])
        sharing = np.arange(place % lanes, self.batch, lanes)
        earlier = sharing[sharing < place]
        now = np.count_nonzero(self.turns[(step + earlier) % len(self.turns)] == source)
        window = int(self._uses(source, sharing, step).sum()) + int(now)
        return source, window * lanes + place % lanes

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        """Give the tokens of one sample."""
        source, its_index = self.place(index)
        return self.sources[source].sample(its_index)

    def windows(self, source: int, step: int) -> list[int]:
        """How many windows each lane of a source has given before a step."""
        lanes = _lanes(self.sources[source])
        uses = self._uses(source, np.arange(self.batch), step)
        return [int(uses[lane::lanes].sum()) for lane in range(lanes)]

    def _uses(self, source: int, places: npt.NDArray[np.int64], steps: int) -> npt.NDArray[np.int64]:
        """How often places have used a source before a step."""
        first, (whole, rest) = places % len(self.turns), divmod(steps, len(self.turns))
        return whole * self.weights[source] + self.before[source][first + rest] - self.before[source][first]


def _lanes(source: TokenSource) -> int:
    """Lanes of a source."""
    return source.lanes if isinstance(source, TextStream) else 1
