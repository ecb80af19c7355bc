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
import numpy.typing as npt

from costmodel.activation_memory import LayerShare, layer_share
from costmodel.layers import embedding_ops, head_ops, layer_ops
from costmodel.layout import RECOMPUTES, SCHEDULES, LayoutTable, ParallelLayout, Quantity, num_microbatches
from costmodel.model import ModelSpec, layer_runs
from costmodel.ops import Op
from costmodel.shards import unique_shards
from costmodel.stack import SoftwareStack
from costmodel.state_memory import BytesPerParameter, State, bytes_per_parameter, state_bytes, unit_bytes
from costmodel.workload import TrainingJob

V_SHAPED = ("zbv", "dualpipev")
"""Schedules whose first rank holds the first and the last chunk, and so the embedding and the head."""


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
class LayerMemory:
    """One layer of a kind on one rank, for one microbatch.

    Attributes:
        state: Its parameters and their state.
        saved_bytes: Activations kept until its backward under the layout's policy (``full``: as ``none``).
        saved_bytes_recomputed: Activations kept if the whole layer is recomputed: its input.
        working_bytes: Temporaries of its backward, weight-gradient scratch, and gathered sharded parameters.
        recompute_working_bytes: Activations that exist while it is recomputed.
    """

    state: State
    saved_bytes: Quantity
    saved_bytes_recomputed: Quantity
    working_bytes: Quantity
    recompute_working_bytes: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMemory:
    """The embedding or the head: its state, and what it holds at the peak (not multiplied by in-flight)."""

    state: State
    activation_bytes: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPieces:
    """All that a stage's memory is made of, one entry per layout.

    Attributes:
        layers: One per run of `layer_runs`.
        embedding: On the first stage.
        head: On the last stage: logits and loss.
        working_bytes: Temporaries of the largest layer, on every stage.
        recompute_working_bytes: Added on a stage that recomputes any layer.
        buffer_bytes: Gradient buckets, on every stage.
        runtime_bytes: CUDA context and communicator buffers, on every GPU.
        fragmentation: Reserved over allocated bytes of everything but the runtime.
    """

    layers: tuple[LayerMemory, ...]
    embedding: EndMemory
    head: EndMemory
    working_bytes: Quantity
    recompute_working_bytes: Quantity
    buffer_bytes: Quantity
    runtime_bytes: Quantity
    fragmentation: float


def in_flight(
    schedule: Quantity, pp: Quantity, virtual_stages: Quantity, num_microbatches: Quantity, stage: Quantity
) -> Quantity:
    """Microbatches whose activations of a whole stage are held at the peak.

    GPipe M; 1F1B P − s; interleaved (2(P − s − 1) + (V − 1)·P + 1)/V, in chunks of 1/V stage; ZB-H1 P; ZBV P;
    DualPipeV P + 1; never more than M.

    Args:
        schedule: Code of `layout.SCHEDULES`.
        pp: Stages P.
        virtual_stages: Chunks V of a rank.
        num_microbatches: M.
        stage: Index s of the stage, 0 first.

    Returns:
        Microbatches.

    >>> float(in_flight(SCHEDULES.index("1f1b"), 8, 1, 64, 2))
    6.0

    Sources: Narayanan et al. 2021 §2.2 and Megatron-LM's warm-up count; Qi et al. 2023 (ZB-H1); Qi et al.
    2024 (ZBV); DeepSeek-V3 report, table 2 (DualPipe).
    """
    P, V, M, s = pp, virtual_stages, num_microbatches, stage
    held = {
        "gpipe": M,
        "1f1b": P - s,
        "interleaved": (2 * (P - s - 1) + (V - 1) * P + 1) / V,
        "zb-h1": P,
        "zbv": P,
        "dualpipev": P + 1,
    }
    choices = [np.asarray(held[name], dtype=np.float64) for name in SCHEDULES]
    return np.minimum(np.choose(np.asarray(schedule), choices), M)


def holds_ends(schedule: Quantity, pp: Quantity, stage: Quantity) -> tuple[Quantity, Quantity]:
    """Whether a stage's rank holds the embedding, and whether it holds the head, under a schedule (code)."""
    v_shaped = np.isin(schedule, [SCHEDULES.index(name) for name in V_SHAPED])
    first = np.equal(stage, 0)
    return first, np.where(v_shaped, first, np.equal(stage, np.asarray(pp) - 1))


def memory_pieces(
    model: ModelSpec, job: TrainingJob, stack: SoftwareStack, layout: ParallelLayout | LayoutTable
) -> MemoryPieces:
    """Everything the memory of any stage is made of; fields have one entry per layout.

    Layouts that cut a layer the same way share one evaluation of the per-layer table.
    """
    table = LayoutTable.of([layout]) if isinstance(layout, ParallelLayout) else layout
    shard, index = unique_shards(table, job)
    each = bytes_per_parameter(table, stack, job)
    context = _Context(model, job, stack, table, index, each)

    def share(ops: Sequence[Op]) -> LayerShare:
        """Sums over operations, once per distinct cut."""
        return layer_share(ops, shard, model.hidden_size)

    shares = [share(layer_ops(model, run.kind, job, stack, shard)) for run in layer_runs(model)]
    layers = tuple(_layer_memory(of_run, context) for of_run in shares)
    return MemoryPieces(
        layers=layers,
        embedding=_embedding_memory(share(embedding_ops(model, stack, shard)), context),
        head=_head_memory(share(head_ops(model, stack, shard)), context),
        working_bytes=_largest([layer.working_bytes for layer in layers]),
        recompute_working_bytes=_largest([layer.recompute_working_bytes for layer in layers]),
        buffer_bytes=stack.bucket_bytes * (table.dp * table.cp > 1),
        runtime_bytes=stack.context_bytes + stack.communicator_bytes * _communicators(table),
        fragmentation=stack.fragmentation,
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
    """Peak memory of one stage by field name of `MemoryBreakdown`; broadcasts over layouts.

    Args:
        pieces: From `memory_pieces`.
        layers: Layers of each run on this stage.
        recomputed: How many of them are recomputed in full.
        in_flight: Microbatches held, from `in_flight`.
        first: Whether the stage holds the embedding (0 or 1).
        last: Whether it holds the head (0 or 1).

    Returns:
        Bytes by part.
    """
    runs = list(zip(pieces.layers, layers, recomputed, strict=True))
    saved = _sum((n - r) * layer.saved_bytes + r * layer.saved_bytes_recomputed for layer, n, r in runs)
    ends = first * pieces.embedding.activation_bytes + last * pieces.head.activation_bytes
    recomputes = np.greater(_sum(recomputed), 0)
    activations = in_flight * saved + ends + recomputes * pieces.recompute_working_bytes
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
    stages = []
    for s, (counts, recomputed) in enumerate(zip(layers_of_stage, recompute_of_stage, strict=True)):
        first, last = holds_ends(code, layout.pp, s)
        stages.append(
            stage_memory(
                pieces,
                layers=counts,
                recomputed=recomputed,
                in_flight=float(in_flight(code, layout.pp, layout.virtual_stages, M, s)),
                first=float(first),
                last=float(last),
            )
        )
    return tuple(stages)


@dataclass(frozen=True, slots=True)
class _Context:
    """What every piece reads: the question, the layouts, and how each cuts a layer."""

    model: ModelSpec
    job: TrainingJob
    stack: SoftwareStack
    table: LayoutTable
    index: npt.NDArray[np.intp]
    each: BytesPerParameter


def _layer_memory(share: LayerShare, at: _Context) -> LayerMemory:
    """Pieces of one layer under each layout's own policy and sharding."""
    none, full = RECOMPUTES.index("none"), RECOMPUTES.index("full")
    policy = np.where(at.table.recompute == full, none, at.table.recompute)
    parameters, experts = share.parameters[at.index], share.expert_parameters[at.index]
    working = share.working_bytes + at.stack.gradient_scratch_bytes * share.matrix_parameters
    return LayerMemory(
        state=state_bytes(at.each, parameters, experts),
        saved_bytes=share.saved_bytes[policy, at.index],
        saved_bytes_recomputed=share.saved_bytes[full][at.index],
        working_bytes=working[at.index] + unit_bytes(parameters + experts, at.table, at.stack),
        recompute_working_bytes=(share.saved_bytes[none] - share.saved_bytes[full])[at.index],
    )


def _embedding_memory(share: LayerShare, at: _Context) -> EndMemory:
    """The embedding: its table, and the dropout masks of the microbatches in flight on the first stage."""
    table, parameters = at.table, share.parameters[at.index]
    masks = share.saved_bytes[0][at.index]
    if np.any(masks):
        M = num_microbatches(table, at.job)
        masks = masks * in_flight(table.schedule, table.pp, table.virtual_stages, M, 0)
    return EndMemory(
        state=state_bytes(at.each, parameters),
        activation_bytes=masks + unit_bytes(parameters, table, at.stack),
    )


def _head_memory(share: LayerShare, at: _Context) -> EndMemory:
    """The head: its projection (a tied one is held again when pp > 1), the logits and their loss."""
    table, model = at.table, at.model
    tied_copy = model.tie_word_embeddings * (table.pp > 1) * model.vocab_size * model.hidden_size / table.tp
    parameters = share.parameters[at.index] + tied_copy
    shards = table.tp if at.stack.vocab_parallel_loss else 1
    logits = table.microbatch_size * (at.job.sequence_length / table.cp) * (model.vocab_size / shards)
    return EndMemory(
        state=state_bytes(at.each, parameters),
        activation_bytes=at.stack.loss_bytes_per_logit * logits + unit_bytes(parameters, table, at.stack),
    )


def _communicators(table: LayoutTable) -> Quantity:
    """Process groups with more than one rank on a GPU: one for each axis in use."""
    axes = (table.tp, table.pp, table.dp, table.cp, table.ep, table.expert_tp)
    return _sum((axis > 1).astype(np.float64) for axis in axes)


def _sum(values: Iterable[Quantity]) -> Quantity:
    """Sum of numbers and arrays."""
    return sum(values, start=0.0)


def _largest(values: Sequence[Quantity]) -> Quantity:
    """Entry-wise maximum of arrays."""
    largest: Quantity = np.maximum.reduce([np.asarray(value) for value in values])
    return largest
