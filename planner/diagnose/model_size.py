"""How large a recorded model is, by the shapes of its products: where no script says which model it is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.diagnose.budget import once_more, sets_of
from planner.diagnose.intervals import inside
from planner.traces.events import Events, Trace

LINEAR: Final = "aten::linear"
EMBEDDING: Final = "aten::embedding"
"""Operations of forwards alone, whose second or first operand is a weight; backwards call aten::mm."""
LARGEST: Final = 2**40
"""Elements of a weight."""
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Weights that one rank multiplies by: its shard of the model."""

    parameters: int
    """Of matrices and embeddings; a head as large as the embedding counts once, as if they were tied."""
    vocabulary: int | None
    hidden_size: int | None
    passes: int
    """Forwards of a step: microbatches."""


def model_size(trace: Trace) -> ModelSize | None:
    """The size of a rank's weights; None where no shapes of forwards are recorded.

    A step runs each weight once a forward. How many forwards it runs is how often the largest embedding, else
    the rarest weight is used.
    """
    events = trace.events
    linear, embedding = _weights(events, trace, LINEAR, 1), _weights(events, trace, EMBEDDING, 0)
    if not linear:
        return None
    steps = max(1, len(trace.windows))
    table = max(embedding, key=math.prod, default=None)
    calls = embedding[table] if table is not None else min(linear.values())
    passes = max(1, calls)
    weights = Counter({shape: round(count / passes) for shape, count in linear.items()})
    tables = Counter({shape: round(count / passes) for shape, count in embedding.items()})
    for shape in tables:
        weights[shape] = max(0, weights[shape] - 1) if shape == table else weights[shape]
    parameters = sum(math.prod(shape) * count for shape, count in (weights + tables).items())
    if not parameters:
        return None
    return ModelSize(
        parameters=parameters,
        vocabulary=table[0] if table is not None else None,
        hidden_size=table[1] if table is not None else None,
        passes=max(1, round(passes / steps)),
    )


def _weights(events: Events, trace: Trace, name: str, operand: int) -> Counter[Shape]:
    """How often an operation uses a weight of each shape, in whole steps, without what runs once more."""
    chosen = events.of("operation") & events.named(np.array([each == name for each in events.names], bool))
    if trace.windows:
        first, last = trace.windows[0].start_s, trace.windows[-1].end_s
        chosen &= (events.start_s >= first) & (events.start_s < last)
    repeated = once_more(events)
    if repeated.any():
        chosen &= ~inside(events.start_s, sets_of(events, repeated))
    return Counter(_shapes(events, chosen, operand))


def _shapes(events: Events, chosen: NDArray[np.bool_], operand: int) -> Iterator[Shape]:
    """The weight of each call."""
    for row in events.rows(chosen):
        shapes = row.args.get("shapes")
        shape = shapes[operand] if isinstance(shapes, tuple) and len(shapes) > operand else ()
        if isinstance(shape, tuple) and len(shape) == 2:
            sized = all(type(size) is int and size > 0 for size in shape)
            if sized and math.prod(shape) < LARGEST:
                yield shape
