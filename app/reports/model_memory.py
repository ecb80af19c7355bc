"""What a model holds in memory, whatever the split: by parameter, by layer and token, by cached token."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.quantities import format_count
from app.reports.answer import Answer, Facts, Table, json_text
from costmodel.case import Workload
from costmodel.layout import ParallelLayout
from costmodel.memory.layer import memory_pieces
from costmodel.models.kinds import kind_title
from costmodel.models.parameters import parameter_count
from costmodel.models.spec import layer_runs
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import serving_stack
from costmodel.serving.memory import kv_bytes_per_token
from planner.plan import PlanRequest, stack_of
from topology.base.errors import InputError
from topology.base.units import KIB, format_bytes, three_digits
from topology.builders import build

SERVER = "vllm"
"""The engine whose pages are counted; its numbers are of two bytes."""
LONG_REQUEST = 2**20
"""Tokens of a request that is longer than any window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Layers of one kind: how many, their state, what a token leaves in one until its backward."""

    kind: str
    layers: int
    state_bytes: float
    activations_bytes_per_token: float
    activations_bytes_per_token_recomputed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRequest:
    """What a request keeps while it is served: bytes of any length, and of each further token.

    Attributes:
        engine: Whose pages they are.
        fixed_bytes: Of states and full windows, however long the request is.
        bytes_per_further_token: Of a token beyond every window.
    """

    engine: str
    fixed_bytes: float
    bytes_per_further_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """State of the whole model before any split, activations by kind of layer, and the cache of a request."""

    model: str
    stack: str
    precision: str
    sequence_length: int
    parameters: int
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    layers: tuple[LayerBytes, ...]
    cache: CachedRequest | None

    @property
    def state_bytes(self) -> float:
        """Weights, gradients and optimizer state."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes


MICROBATCHES = 2


def model_memory(request: PlanRequest) -> ModelMemory:
    """Memory of the model of a question as one GPU would hold it; nothing has to fit.

    Activations are those of one microbatch of several: of an only one, gradients take the place of some.
    """
    model, job = request.model, replace(request.job, global_batch_size=MICROBATCHES)
    pieces = memory_pieces(Workload(model=model, job=job, stack=stack_of(request)), ParallelLayout())
    runs = layer_runs(model)
    counted = [(run.count, layer.state) for run, layer in zip(runs, pieces.layers, strict=True)]
    states = [*counted, (1, pieces.embedding.state), (1, pieces.head.state)]

    def whole(part: str) -> float:
        """Bytes of one part of the state of all layers and both ends."""
        return sum(count * _number(getattr(state, part)) for count, state in states)

    return ModelMemory(
        model=model.name,
        stack=request.stack,
        precision=job.precision,
        sequence_length=job.sequence_length,
        parameters=parameter_count(model),
        weights_bytes=whole("weights_bytes"),
        gradients_bytes=whole("gradients_bytes"),
        optimizer_bytes=whole("optimizer_bytes"),
        layers=tuple(
            LayerBytes(
                kind=kind_title(model, run.kind),
                layers=run.count,
                state_bytes=_number(layer.state.total_bytes),
                activations_bytes_per_token=_number(layer.saved_bytes) / job.sequence_length,
                activations_bytes_per_token_recomputed=_number(layer.saved_bytes_recomputed)
                / job.sequence_length,
            )
            for run, layer in zip(runs, pieces.layers, strict=True)
        ),
        cache=_cache(request),
    )


def _number(quantity: Any) -> float:
    """The only entry of a quantity of one layout."""
    return float(np.ravel(quantity)[0])


def _cache(request: PlanRequest) -> CachedRequest | None:
    """What a request keeps while it is served; None where nobody knows what serving the model costs."""
    try:
        deployment = Deployment(
            model=request.model,
            hierarchy=build(request.cluster).hierarchy,
            layout=ServingLayout(),
            stack=serving_stack(SERVER),
        )
    except InputError:
        return None

    def held(tokens: int) -> int:
        """Bytes of a request."""
        return round(kv_bytes_per_token(deployment, tokens) * tokens)

    further = round(kv_bytes_per_token(deployment), 3)  # of an endless request: states are no share of it
    last = bisect_right(range(1, 2 * LONG_REQUEST), held(LONG_REQUEST), key=held)  # that fits the same pages
    fixed = round(held(last) - further * last)
    return CachedRequest(engine=SERVER, fixed_bytes=fixed, bytes_per_further_token=further)


def memory_answer(memory: ModelMemory) -> Answer:
    """The memory of a model in words."""
    each = memory.parameters
    parts = (
        ("weights", memory.weights_bytes),
        ("gradients", memory.gradients_bytes),
        ("optimizer", memory.optimizer_bytes),
        ("in all", memory.state_bytes),
    )
    pairs = [(name, f"{format_bytes(size)} · {size / each:.3g} bytes a parameter") for name, size in parts]
    if memory.cache is not None:
        pairs.append(("cache", _cache_words(memory.cache)))
    rows = tuple(
        (
            layer.kind,
            f"{layer.layers:,}",
            format_bytes(layer.state_bytes),
            _small(layer.activations_bytes_per_token),
            _small(layer.activations_bytes_per_token_recomputed),
        )
        for layer in memory.layers
    )
    columns = ("kind", "layers", "state a layer", "a token and layer", "recomputed")
    title = f"{memory.model} · {format_count(each)} parameters · {memory.precision} · {memory.stack}"
    note = f"Of sequences of {memory.sequence_length:,} tokens, on one GPU: every split divides it."
    return Answer(
        headline=title,
        sections=(
            Facts(title="", pairs=tuple(pairs)),
            Table(title="Activations", columns=columns, rows=rows, note=note),
        ),
        document=lambda: json_text(_record(memory)),
        records=(_record(memory),),
    )


def _cache_words(cache: CachedRequest) -> str:
    """What a request keeps, in words.

    >>> _cache_words(CachedRequest(engine="vllm", fixed_bytes=0, bytes_per_further_token=131_072))
    '128 KiB a token while it is served, in pages of vllm (bf16)'
    """
    pages = f"while it is served, in pages of {cache.engine} (bf16)"
    token = _small(cache.bytes_per_further_token)
    if not cache.fixed_bytes:
        return f"{token} a token {pages}"
    return f"{format_bytes(cache.fixed_bytes)} a request and {token} a further token {pages}"


def _small(size_bytes: float) -> str:
    """Bytes of a token, in KiB.

    >>> _small(327_680)
    '320 KiB'
    """
    return f"{three_digits(size_bytes / KIB)} KiB"


def _record(memory: ModelMemory) -> dict[str, Any]:
    """The memory as a document."""
    from topology.base.decode import unstructure

    record: dict[str, Any] = unstructure(memory)
    return {**record, "state_bytes": memory.state_bytes}
