"""Bytes on one GPU: parameters and their state, saved activations, transient buffers, and the runtime's own.

The memory of a stage is linear in its layers, so one form of it serves the estimate of one layout, the
scoring of many (every field has one entry per layout), the bounds, and the solver that places layers and
chooses recomputation. Its equation is `costmodel.pipeline.stage_costs.stage_bytes`; what the GPU shows is
fragmentation · stage + runtime.

Legend: ``P`` stages, ``M`` microbatches, ``V`` chunks of a rank, ``s`` index of a stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from costmodel.case import Workload
from costmodel.layout import SCHEDULES, ParallelLayout, num_microbatches
from costmodel.memory.layer import MemoryPieces, memory_pieces
from costmodel.pipeline.in_flight import held_microbatches, holds_ends, in_flight
from costmodel.pipeline.stage_costs import stage_bytes
from topology.base.arrays import Quantity

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForm:
    """Memory as a linear form in the layers of a stage: of one part, or of all with fragmentation folded in.

    Attributes:
        static_bytes: State of a layer, by run.
        saved_bytes: Activations of a layer and microbatch under the layout's policy, by run.
        saved_bytes_recomputed: The same of a layer recomputed in full, by run.
        state_of_ends_bytes: State of the embedding and of the head.
        activations_of_ends_bytes: What the embedding and the head (logits, loss) hold at the peak.
        recompute_working_bytes: Added on a stage that recomputes any layer.
        recompute_room_bytes: Not added on the last stage, where the loss left room for it.
        every_bytes: Working set, buffers and runtime, on every stage.
    """

    static_bytes: tuple[Quantity, ...]
    saved_bytes: tuple[Quantity, ...]
    saved_bytes_recomputed: tuple[Quantity, ...]
    state_of_ends_bytes: tuple[Quantity, ...] = (0.0, 0.0)
    activations_of_ends_bytes: tuple[Quantity, ...] = (0.0, 0.0)
    recompute_working_bytes: Quantity = 0.0
    recompute_room_bytes: Quantity = 0.0
    every_bytes: Quantity = 0.0

    def state_at(self, first: Quantity, last: Quantity) -> Quantity:
        """State of the ends that a stage holds (0 or 1 each)."""
        return first * self.state_of_ends_bytes[0] + last * self.state_of_ends_bytes[1]

    def activations_at(self, first: Quantity, last: Quantity) -> Quantity:
        """Activations of the ends that a stage holds, whatever is in flight."""
        return first * self.activations_of_ends_bytes[0] + last * self.activations_of_ends_bytes[1]

    def fixed_at(self, first: Quantity, last: Quantity) -> Quantity:
        """All of a stage that is not its layers."""
        return self.every_bytes + self.state_at(first, last) + self.activations_at(first, last)

    def recompute_working_at(self, last: Quantity) -> Quantity:
        """What recomputing any layer adds to a stage."""
        return self.recompute_working_bytes - last * self.recompute_room_bytes


def memory_form(pieces: MemoryPieces) -> MemoryForm:
    """The sum of the forms of all parts as the GPU shows it: what scoring, bounds and solvers read."""
    parts = tuple(_part_forms(pieces).values())

    def total(name: str) -> Any:
        """A field of the sum, entry by entry where it is a tuple."""
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], tuple):
            return tuple(pieces.fragmentation * _sum(entries) for entries in zip(*values, strict=True))
        return pieces.fragmentation * _sum(values)

    form = MemoryForm(**{field.name: total(field.name) for field in fields(MemoryForm)})
    return replace(form, every_bytes=form.every_bytes + pieces.runtime_bytes)


def _part_forms(pieces: MemoryPieces) -> Mapping[str, MemoryForm]:
    """The form of every part that the allocator hands out, by field name of `MemoryBreakdown`."""
    layers, ends, none = pieces.layers, (pieces.embedding, pieces.head), (0.0,) * len(pieces.layers)
    empty = MemoryForm(static_bytes=none, saved_bytes=none, saved_bytes_recomputed=none)
    state = {
        part: replace(
            empty,
            static_bytes=tuple(getattr(layer.state, part) for layer in layers),
            state_of_ends_bytes=tuple(getattr(end.state, part) for end in ends),
        )
        for part in ("weights_bytes", "gradients_bytes", "optimizer_bytes")
    }
    activations = replace(
        empty,
        saved_bytes=tuple(layer.saved_bytes for layer in layers),
        saved_bytes_recomputed=tuple(layer.saved_bytes_recomputed for layer in layers),
        activations_of_ends_bytes=tuple(end.activation_bytes for end in ends),
        recompute_working_bytes=pieces.recompute_working_bytes,
        recompute_room_bytes=pieces.head.recompute_room_bytes,
    )
    buffers = replace(empty, every_bytes=pieces.working_bytes + pieces.buffer_bytes)
    return {**state, "activations_bytes": activations, "buffers_bytes": buffers}


def stage_total_bytes(
    form: MemoryForm,
    *,
    layers: Sequence[Quantity],
    recomputed: Sequence[Quantity],
    in_flight: Quantity,
    first: Quantity,
    last: Quantity,
) -> Quantity:
    """Peak bytes of one stage; broadcasts over layouts.

    Args:
        form: From `memory_form`.
        layers: Layers of each run on this stage.
        recomputed: How many of them are recomputed in full.
        in_flight: Microbatches held, from `held_microbatches`.
        first: Whether the stage holds the embedding (0 or 1).
        last: Whether it holds the head (0 or 1).
    """
    return stage_bytes(
        static_bytes=form.static_bytes,
        saved_bytes=form.saved_bytes,
        saved_bytes_recomputed=form.saved_bytes_recomputed,
        layers=layers,
        recomputed=recomputed,
        in_flight=in_flight,
        fixed_bytes=form.fixed_at(first, last),
        recompute_working_bytes=form.recompute_working_at(last),
    )


def stage_parts(
    pieces: MemoryPieces,
    *,
    layers: Sequence[Quantity],
    recomputed: Sequence[Quantity],
    in_flight: Quantity,
    first: Quantity,
    last: Quantity,
) -> Mapping[str, Quantity]:
    """Peak bytes of one stage by field name of `MemoryBreakdown`; arguments as `stage_total_bytes`."""
    at = {"layers": layers, "recomputed": recomputed}
    allocated = {
        name: stage_total_bytes(form, **at, in_flight=in_flight, first=first, last=last)
        for name, form in _part_forms(pieces).items()
    }
    overhead = pieces.runtime_bytes + (pieces.fragmentation - 1) * _sum(allocated.values())
    return {**allocated, "overhead_bytes": overhead}


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
    """Peak memory of one stage of one layout, entry `index` of the pieces; see `stage_total_bytes`."""
    parts = stage_parts(
        pieces, layers=layers, recomputed=recomputed, in_flight=in_flight, first=first, last=last
    )
    return MemoryBreakdown(**{name: float(np.atleast_1d(value)[index]) for name, value in parts.items()})


def memory_by_stage(
    work: Workload,
    layout: ParallelLayout,
    layers_of_stage: Sequence[Sequence[int]],
    recompute_of_stage: Sequence[Sequence[int]],
) -> tuple[MemoryBreakdown, ...]:
    """Peak memory of every stage of one layout.

    Args:
        work: What runs: the model, the job, the engine.
        layout: How the job is split.
        layers_of_stage: For each stage, its layers of each run.
        recompute_of_stage: For each stage, how many of those are recomputed in full.
    """
    pieces = memory_pieces(work, layout)
    code, M = SCHEDULES.index(layout.schedule), num_microbatches(layout, work.job)
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
