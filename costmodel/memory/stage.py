"""Bytes on one GPU: parameters and their state, saved activations, transient buffers, and the runtime's own.

The memory of a stage is linear in its layers, so the same pieces serve the estimate of one layout, the
scoring of many (every field has one entry per layout), and the solver that places layers and chooses
recomputation:

    stage = state of its layers and ends + in_flight · ((layers − recomputed) · saved + recomputed · input)
            + loss + working set + one layer's activations if any is recomputed

and what the GPU shows is fragmentation · stage + runtime.

Legend: ``P`` stages, ``M`` microbatches, ``V`` chunks of a rank, ``s`` index of a stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from costmodel.job import TrainingJob
from costmodel.layout import SCHEDULES, ParallelLayout, Quantity, num_microbatches
from costmodel.memory.layer import MemoryPieces, memory_pieces
from costmodel.models.spec import ModelSpec
from costmodel.pipeline.in_flight import held_microbatches, holds_ends, in_flight
from costmodel.stack import SoftwareStack

__all__ = [
    "MemoryBreakdown",
    "MemoryForm",
    "MemoryPieces",
    "held_microbatches",
    "holds_ends",
    "in_flight",
    "memory_by_stage",
    "memory_form",
    "memory_pieces",
    "stage_memory",
    "stage_parts",
    "stage_total_bytes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBreakdown:
    """Peak bytes of one pipeline stage on one GPU; the parts sum to `total_bytes`."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    kv_cache_bytes: float = 0.0
    buffers_bytes: float
    overhead_bytes: float

    @property
    def total_bytes(self) -> float:
        """All of it, as ``nvidia-smi`` would show."""
        return float(sum(getattr(self, field.name) for field in fields(self)))

    @property
    def allocated_bytes(self) -> float:
        """What the framework's allocator hands out: all but the runtime's overhead."""
        return self.total_bytes - self.overhead_bytes


def stage_parts(
    pieces: MemoryPieces,
    *,
    layers: Sequence[Quantity],
    recomputed: Sequence[Quantity],
    in_flight: Quantity,
    first: Quantity,
    last: Quantity,
) -> Mapping[str, Quantity]:
    """Peak memory of one stage by field name of `MemoryBreakdown`; broadcasts over layouts.

    Args:
        pieces: From `memory_pieces`.
        layers: Layers of each run on this stage.
        recomputed: How many of them are recomputed in full.
        in_flight: Microbatches held, from `held_microbatches`.
        first: Whether the stage holds the embedding (0 or 1).
        last: Whether it holds the head (0 or 1).

    Returns:
        Bytes by part.
    """
    runs = list(zip(pieces.layers, layers, recomputed, strict=True))
    saved = _sum((n - r) * layer.saved_bytes + r * layer.saved_bytes_recomputed for layer, n, r in runs)
    ends = first * pieces.embedding.activation_bytes + last * pieces.head.activation_bytes
    recomputes = np.greater(_sum(recomputed), 0)
    recompute_working = pieces.recompute_working_bytes - last * pieces.head.recompute_room_bytes
    activations = in_flight * saved + ends + recomputes * recompute_working
    buffers = pieces.working_bytes + pieces.buffer_bytes

    def state(part: str) -> Quantity:
        """One part of the state of the stage's layers and ends."""
        at_ends: Quantity = first * getattr(pieces.embedding.state, part)
        at_ends = at_ends + last * getattr(pieces.head.state, part)
        return at_ends + _sum(n * getattr(layer.state, part) for layer, n, _ in runs)

    allocated = {
        "weights_bytes": state("weights_bytes"),
        "gradients_bytes": state("gradients_bytes"),
        "optimizer_bytes": state("optimizer_bytes"),
        "activations_bytes": activations,
        "buffers_bytes": buffers,
    }
    overhead = pieces.runtime_bytes + (pieces.fragmentation - 1) * _sum(allocated.values())
    return {**allocated, "overhead_bytes": overhead}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForm:
    """The same memory as a linear form in the layers of a stage, fragmentation folded in.

    Attributes:
        static_bytes: State of a layer, by run.
        saved_bytes: Activations of a layer and microbatch under the layout's policy, by run.
        saved_bytes_recomputed: The same of a layer recomputed in full, by run.
        first_bytes: State and activations of the embedding.
        last_bytes: State, logits and loss of the head.
        recompute_working_bytes: Added on a stage that recomputes any layer.
        recompute_room_bytes: Not added on the last stage, where the loss left room for it.
        every_bytes: Working set, buffers and runtime, on every stage.
    """

    static_bytes: tuple[Quantity, ...]
    saved_bytes: tuple[Quantity, ...]
    saved_bytes_recomputed: tuple[Quantity, ...]
    first_bytes: Quantity
    last_bytes: Quantity
    recompute_working_bytes: Quantity
    recompute_room_bytes: Quantity
    every_bytes: Quantity


def memory_form(pieces: MemoryPieces) -> MemoryForm:
    """Fold the parts of the pieces together: what scoring many layouts needs."""
    grown, ends = pieces.fragmentation, (pieces.embedding, pieces.head)
    first, last = (grown * (end.state.total_bytes + end.activation_bytes) for end in ends)
    return MemoryForm(
        static_bytes=tuple(grown * layer.state.total_bytes for layer in pieces.layers),
        saved_bytes=tuple(grown * layer.saved_bytes for layer in pieces.layers),
        saved_bytes_recomputed=tuple(grown * layer.saved_bytes_recomputed for layer in pieces.layers),
        first_bytes=first,
        last_bytes=last,
        recompute_working_bytes=grown * pieces.recompute_working_bytes,
        recompute_room_bytes=grown * pieces.head.recompute_room_bytes,
        every_bytes=grown * (pieces.working_bytes + pieces.buffer_bytes) + pieces.runtime_bytes,
    )


def stage_total_bytes(
    form: MemoryForm,
    *,
    layers: Sequence[Quantity],
    recomputed: Sequence[Quantity],
    in_flight: Quantity,
    first: Quantity,
    last: Quantity,
) -> Quantity:
    """Peak bytes of one stage: the sum of `stage_parts` (arguments as there) in fewer passes."""
    total: Quantity = form.every_bytes + first * form.first_bytes + last * form.last_bytes
    for run, (n, r) in enumerate(zip(layers, recomputed, strict=True)):
        kept = (n - r) * form.saved_bytes[run] + r * form.saved_bytes_recomputed[run]
        total = total + n * form.static_bytes[run] + in_flight * kept
    recompute_working = form.recompute_working_bytes - last * form.recompute_room_bytes
    return total + np.greater(_sum(recomputed), 0) * recompute_working


def stage_memory(
    pieces: MemoryPieces,
    *,
    layers: Sequence[float],
    recomputed: Sequence[float],
    in_flight: float,
    first: float,
    last: float,
    index: int = 0,
) -> MemoryBreakdown:
    """Peak memory of one stage of one layout (entry `index` of the pieces); arguments as `stage_parts`."""
    parts = stage_parts(
        pieces, layers=layers, recomputed=recomputed, in_flight=in_flight, first=first, last=last
    )
    return MemoryBreakdown(**{name: float(np.atleast_1d(value)[index]) for name, value in parts.items()})


def memory_by_stage(
    model: ModelSpec,
    job: TrainingJob,
    stack: SoftwareStack,
    layout: ParallelLayout,
    layers_of_stage: Sequence[Sequence[int]],
    recompute_of_stage: Sequence[Sequence[int]],
) -> tuple[MemoryBreakdown, ...]:
    """Peak memory of every stage of one layout.

    Args:
        model: The model.
        job: The job.
        stack: The engine.
        layout: How the job is split.
        layers_of_stage: For each stage, its layers of each run.
        recompute_of_stage: For each stage, how many of those are recomputed in full.
    """
    pieces = memory_pieces(model, job, stack, layout)
    code, M = SCHEDULES.index(layout.schedule), num_microbatches(layout, job)
    relief = np.ravel(pieces.first_backward_relief)[0]
    stages = []
    for s, (counts, recomputed) in enumerate(zip(layers_of_stage, recompute_of_stage, strict=True)):
        first, last = holds_ends(code, layout.pp, s)
        stages.append(
            stage_memory(
                pieces,
                layers=counts,
                recomputed=recomputed,
                in_flight=float(held_microbatches(relief, code, layout.pp, layout.virtual_stages, M, s)),
                first=float(first),
                last=float(last),
            )
        )
    return tuple(stages)


def _sum(values: Iterable[Quantity]) -> Quantity:
    """Sum of numbers and arrays."""
    return sum(values, start=0.0)
