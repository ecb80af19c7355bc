"""Which layers each pipeline stage has, and which of them it recomputes."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from topology.base.errors import InputError


def even_layers(num_layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage when no plan says otherwise: even, earlier stages taking the remainder.

    >>> even_layers(10, 4)
    (3, 3, 2, 2)
    """
    base, more = divmod(num_layers, stages)
    return tuple(base + (index < more) for index in range(stages))


def check_split(spec: ModelSpec, split: tuple[int, ...], total: int) -> None:
    """Refuse a split that is not one of this model over these stages."""
    if len(split) == total and sum(split) == spec.num_layers and min(split) >= 0:
        return
    raise InputError(
        what="layers_of_stage does not split this model",
        cause=f"{list(split)} over {total} stages, {spec.num_layers} layers",
        fix=f"give {total} numbers that sum to {spec.num_layers}",
    )


def recompute_counts(
    layout: ParallelLayout, layers: list[int], recompute_of_stage: Sequence[int] | None, rank: int
) -> list[int]:
    """Recomputed layers of each of this rank's stages, taken in model order.

    The planner counts layers that are recomputed in full; the selective policies apply to every layer.
    """
    if layout.recompute != "full":
        return [0] * len(layers) if layout.recompute == "none" else layers
    left = sum(layers) if recompute_of_stage is None else recompute_of_stage[rank]
    counts = []
    for count in layers:
        counts.append(min(left, count))
        left -= counts[-1]
    return counts
