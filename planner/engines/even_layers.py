"""How an engine fills its pipeline stages where nobody says how: layers of every stage, or that it stops.

A stage is one chunk of a pipeline rank; there are pp · virtual_stages of them, in model order. An engine that
cannot make them stops, so the answer of a function here is None, and not some other split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from costmodel.layout import ParallelLayout
from costmodel.pipeline.even_split import even_split
from costmodel.pipeline.stages import ranks_of_chunks

EvenLayers: TypeAlias = Callable[[int, ParallelLayout, int], tuple[int, ...] | None]
"""From layers, layout and modules that predict further tokens to the layers of every stage."""

_OUTER_SLOTS = ((0, 0), (1, 1), (0, 1), (1, 0))
"""Layers whose place the embedding and the loss take: none where that divides, else of both, else of one."""


def as_even_as_possible(num_layers: int, layout: ParallelLayout, modules: int) -> tuple[int, ...]:
    """Stages of any sizes, as even as they can be, whoever builds them.

    >>> as_even_as_possible(10, ParallelLayout(pp=4), 0)
    (2, 3, 3, 2)
    """
    return even_split((num_layers,), layout, modules=modules).chunk_layers(ranks_of_chunks(layout))


def divided(num_layers: int, layout: ParallelLayout, _modules: int) -> tuple[int, ...] | None:
    """Equal stages; where layers do not divide, the embedding and the loss may each take the place of one.

    Modules that predict further tokens are on the last stage and take no place.

    >>> divided(80, ParallelLayout(pp=4), 0), divided(126, ParallelLayout(pp=4), 0)
    ((20, 20, 20, 20), (31, 32, 32, 31))
    >>> divided(61, ParallelLayout(pp=4), 0) is None
    True

    Source: ``get_num_layers_to_build`` of megatron/core/transformer/transformer_block.py, megatron-core
    0.19.2, with ``account_for_embedding_in_pipeline_split`` and ``account_for_loss_in_pipeline_split``.
    """
    stages = layout.pp * layout.virtual_stages
    if stages == 1:
        return (num_layers,)
    for embedding, loss in _OUTER_SLOTS:
        each, rest = divmod(num_layers + embedding + loss, stages)
        if not rest and each >= 1:
            return _filled((each - embedding, *(each,) * (stages - 2), each - loss), layout)
    return None


def weighted_ends(num_layers: int, layout: ParallelLayout, _modules: int) -> tuple[int, ...] | None:
    """The embedding and the head count as a layer each, what is left over goes to the first stages.

    >>> weighted_ends(32, ParallelLayout(pp=4), 0), weighted_ends(30, ParallelLayout(pp=4), 0)
    ((8, 9, 8, 7), (7, 8, 8, 7))

    Source: ``_generate_llm_fqn_per_model_part`` of torchtitan/distributed/pipeline_parallel.py, 0.3.0, with
    weights ``pipeline_parallel_first_stage_less_layers`` and ``pipeline_parallel_last_stage_less_layers``.
    """
    stages = layout.pp * layout.virtual_stages
    if stages == 1:
        return (num_layers,)
    each, rest = divmod(num_layers + 2, stages)
    layers = [each + (stage < rest) for stage in range(stages)]
    layers[0] -= 1
    layers[-1] -= 1
    return _filled(tuple(layers), layout) if each else None


def _filled(layers: tuple[int, ...], layout: ParallelLayout) -> tuple[int, ...] | None:
    """The layers of stages that leave no rank without one."""
    held = [0] * layout.pp
    for rank, count in zip(ranks_of_chunks(layout), layers, strict=True):
        held[rank] += count
    return layers if min(held) > 0 else None
