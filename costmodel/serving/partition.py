"""Layers of each pipeline stage with which the cache of a replica holds most tokens.

A stage of l layers has A − l·w bytes for a cache, of which a token takes l·k: it holds T tokens while
l ≤ A/(w + T·k). The most T for which the stages take all layers between them is found by bisection.

Legend: ``A`` bytes of a GPU that layers and cache share, ``w`` bytes of a layer's weights, ``k`` bytes of a
token in a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodel.serving.deployment import Deployment, layers_of_stages, stages_of
from costmodel.serving.memory import cache_left_bytes, kv_bytes_per_token

PRECISION = 1e-6
"""Of the tokens that a cache holds, where the bisection stops: less than one of a million."""


def roomiest_layers(deployment: Deployment, *, token_budget: int, max_batch: int) -> tuple[int, ...]:
    """Layers of each stage with which the scarcest stage holds most tokens; () where no split fits.

    Of equal splits the one nearest to even is taken, from the first stage on.
    """
    layout, total = deployment.layout, deployment.model.num_layers
    if layout.pp == 1 or layout.pp > total:
        return ()
    even = replace(layout, layers=layers_of_stages(replace(deployment, layout=replace(layout, layers=()))))
    stages = stages_of(replace(deployment, layout=even))
    rooms = [_room(stage, token_budget, max_batch) for stage in stages]
    if _taken(rooms, 0.0, total) < total:
        return ()
    low, high = 0.0, max(shared / kept for shared, _, kept in rooms)
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _taken(rooms, middle, total) >= total else (low, middle)
    return _trimmed([_most(room, low, total) for room in rooms], total)


def _room(stage: Deployment, token_budget: int, max_batch: int) -> tuple[float, float, float]:
    """Bytes that a stage's layers and cache share, of a layer's weights, and of a token in a layer."""
    layers = layers_of_stages(stage)[stage.stage or 0]
    left = cache_left_bytes(stage, token_budget=token_budget, max_batch=max_batch)
    more = _with_layers(stage, layers + 1)
    weights = left - cache_left_bytes(more, token_budget=token_budget, max_batch=max_batch)
    kept = kv_bytes_per_token(more) - kv_bytes_per_token(stage)
    return left + layers * weights, weights, kept


def _with_layers(stage: Deployment, layers: int) -> Deployment:
    """The same stage with so many layers; what the others have does not matter to it."""
    place, each = stage.stage or 0, layers_of_stages(stage)
    return replace(stage, layout=replace(stage.layout, layers=(*each[:place], layers, *each[place + 1 :])))


def _most(room: tuple[float, float, float], tokens: float, total: int) -> int:
    """Layers that a stage may have and hold so many tokens."""
    shared, weights, kept = room
    return min(max(int(shared // (weights + tokens * kept)), 0), total)


def _taken(rooms: Sequence[tuple[float, float, float]], tokens: float, total: int) -> int:
    """Layers that all stages take between them; none where one takes none."""
    each = [_most(room, tokens, total) for room in rooms]
    return sum(each) if min(each) else 0


def _trimmed(most: Sequence[int], total: int) -> tuple[int, ...]:
    """Layers of each stage that sum to all, none more than its most: the largest stages give way."""
    layers = list(most)
    while sum(layers) > total:
        widest = max(range(len(layers)), key=lambda stage: (layers[stage], -stage))
        layers[widest] -= 1
    return tuple(layers)
