"""All that the memory of a stage is made of: per layer, per end, and per GPU; one entry per layout.

Layouts that cut a layer the same way share one evaluation of the per-layer table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from costmodel.case import Workload
from costmodel.layout import RECOMPUTES, SCHEDULES, LayoutTable, ParallelLayout, num_microbatches
from costmodel.memory.activations import LayerShare, layer_share
from costmodel.memory.state import (
    BytesPerParameter,
    State,
    bytes_per_parameter,
    frozen_unit_bytes,
    head_unit_bytes,
    root_unit_bytes,
    state_bytes,
    unit_bytes,
    with_frozen,
    with_uneven,
)
from costmodel.models.spec import layer_runs
from costmodel.ops.cuts import Cuts, cuts_of
from costmodel.ops.op import FLOAT_BYTES, HALF_BYTES, Op
from costmodel.ops.passes import loss_bytes_held
from costmodel.ops.tower import tower_shard
from costmodel.parallel.axes import AXES
from costmodel.pipeline.derived import holds_all
from costmodel.pipeline.in_flight import copied_parameters, in_flight
from costmodel.pipeline.pairing import paired_share
from costmodel.stack import SoftwareStack
from costmodel.updates.offload import IN_TRANSIT
from costmodel.updates.optimizers import optimizer
from topology.base.arrays import Quantity
from topology.base.columns import Columns

_HOLDS_ALL = np.array([holds_all(schedule) for schedule in SCHEDULES])


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMemory(Columns):
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
class EndMemory(Columns):
    """The embedding or the head: its state, and what it holds at the peak (not multiplied by in-flight).

    `recompute_room_bytes` of that are free again when layers are recomputed, so recomputing takes less more.
    """

    state: State
    activation_bytes: Quantity
    recompute_room_bytes: Quantity = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPieces(Columns):
    """All that a stage's memory is made of, one entry per layout.

    Attributes:
        layers: One per run of `layer_runs`.
        embedding: On the first stage.
        head: On the last stage: logits and loss.
        working_bytes: Temporaries of the largest layer, on every stage.
        recompute_working_bytes: Added on a stage that recomputes any layer.
        first_backward_relief: Share of a microbatch's activations that its gradients replace, see
            `in_flight.held_microbatches`.
        buffer_bytes: Gradient buckets, on every stage.
        runtime_bytes: CUDA context and communicator buffers, on every GPU.
        fragmentation: Reserved over allocated bytes of everything but the runtime.
    """

    layers: tuple[LayerMemory, ...]
    embedding: EndMemory
    head: EndMemory
    working_bytes: Quantity
    recompute_working_bytes: Quantity
    first_backward_relief: Quantity
    buffer_bytes: Quantity
    runtime_bytes: Quantity
    fragmentation: float


def memory_pieces(
    work: Workload, layout: ParallelLayout | LayoutTable, *, cuts: Cuts | None = None
) -> MemoryPieces:
    """Everything the memory of any stage is made of; fields have one entry per layout.

    Layouts that cut a layer the same way share one evaluation of the per-layer table: `cuts`, when the caller
    has them already.
    """
    model, job, stack = work.model, work.job, work.stack
    table = LayoutTable.from_rows([layout]) if isinstance(layout, ParallelLayout) else layout
    known = cuts or cuts_of(work, table)
    each = bytes_per_parameter(work, table)
    context = _Context(work, table, known.of_layout, each, _pairs(work, table))

    record = optimizer(job.optimizer)
    hidden = FLOAT_BYTES / HALF_BYTES if job.adapter and job.adapter.is_wide else 1
    updated, blocks = None if record.is_plain else record, len(known.parts) - 2

    def share(at: int, ops: Sequence[Op]) -> LayerShare:
        """Sums over operations, once per distinct cut."""
        seen = model.tower if at == 0 else None
        return layer_share(
            ops,
            tower_shard(seen, job, known.shard) if seen else known.shard,
            (seen.hidden_size if job.trains_tower else 0) if seen else model.residual_width * hidden,
            updated=updated,
            matrices=at < blocks,
            frees=stack.memory.frees_in_backward,
        )

    *shares, embedding, head = (share(at, part) for at, part in enumerate(known.parts))
    runs = len(layer_runs(model))
    layers = tuple(_layer_memory(of_run, context) for of_run in shares)
    layers, modules = layers[:runs], layers[runs:]
    relief = _first_backward_relief(layers, stack)
    layers = _relieved_recomputed(layers, relief, context)
    working = _largest([layer.working_bytes for layer in layers])
    recompute_working = _largest([layer.recompute_working_bytes for layer in layers])
    ends = (
        _embedding_memory(embedding, context),
        _with_modules(_head_memory(head, context, working, recompute_working), modules, working, context),
    )
    if stack.memory.frees_loss:
        ends = (ends[0], _at_its_largest_moment(ends, layers, relief, working, recompute_working, context))
    return MemoryPieces(
        layers=layers,
        embedding=ends[0],
        head=ends[1],
        working_bytes=working,
        recompute_working_bytes=recompute_working,
        first_backward_relief=relief,
        buffer_bytes=stack.memory.bucket_bytes or (job.bucket_bytes or 0.0) * (table.replicas > 1),
        runtime_bytes=stack.memory.context_bytes + stack.memory.communicator_bytes * _communicators(table),
        fragmentation=stack.memory.fragmentation,
    )


@dataclass(frozen=True, slots=True)
class _Context:
    """What every piece reads: the question, the layouts, how each cuts a layer, and whether passes pair."""

    work: Workload
    table: LayoutTable
    index: npt.NDArray[np.intp]
    each: BytesPerParameter
    paired: npt.NDArray[np.bool_] | bool

    @property
    def parameters_away(self) -> bool:
        """Whether what ZeRO-3 shards waits in host memory."""
        return self.work.job.offload is not None and self.work.job.offload.parameters


def _layer_memory(share: LayerShare, at: _Context) -> LayerMemory:
    """Pieces of one layer under each layout's own policy and sharding."""
    none, full = RECOMPUTES.index("none"), RECOMPUTES.index("full")
    away = at.work.job.offload.activations if at.work.job.offload else 0.0
    policy = np.where(at.table.recompute == full, none, at.table.recompute)
    parameters, experts = share.parameters[at.index], share.expert_parameters[at.index]
    working = share.working_bytes + at.work.stack.memory.gradient_scratch_bytes * share.matrix_parameters
    value = (policy == RECOMPUTES.index("selective")) * share.block_bytes[at.index]
    beside = value + at.paired * share.saved_bytes[policy, at.index]
    frozen, frozen_experts = share.frozen_bytes[at.index], share.frozen_expert_bytes[at.index]
    beside = beside + frozen_unit_bytes(frozen + frozen_experts, at.table, at.work.stack)
    state = with_uneven(state_bytes(at.each, parameters, experts), at.table, _uneven(at, share))
    wide = at.work.job.adapter is not None and at.work.job.adapter.is_wide
    same = (
        1 if wide or not at.work.stack.memory.keeps_wide_norms else 0
    )  # its input, or a norm's copy in fp32
    return LayerMemory(
        state=with_frozen(state, at.table, at.work.stack, frozen, frozen_experts, away=at.parameters_away),
        saved_bytes=share.saved_bytes[policy, at.index],
        saved_bytes_recomputed=(1 - away) * share.saved_bytes[full][at.index] * _inputs_held(at),
        working_bytes=working[at.index] + unit_bytes(parameters + experts, at.table, at.work.stack) + beside,
        recompute_working_bytes=(
            share.saved_bytes[none] - (same - IN_TRANSIT * away) * share.saved_bytes[full]
        )[at.index],
    )


def _uneven(at: _Context, share: LayerShare) -> Quantity:
    """What an optimizer keeps of some parameters alone; paged moments lie beside what the allocator has."""
    return share.uneven_bytes[at.index] * (not at.work.stack.memory.pages_moments)


def _inputs_held(at: _Context) -> Quantity:
    """Tensors of the size of its input that a recomputed layer leaves: it, and beside adapters of FSDP1 two.

    Source: torch/distributed/fsdp/_runtime_utils.py: _register_post_backward_reshard_only_hook, whose
    register_multi_grad_hook holds tensors and gradients; 62 of 2·32 in every run of fms-acceleration.
    """
    twice = at.work.stack.memory.holds_frozen_inputs and at.work.job.adapter is not None
    return 1.0 + twice * np.greater_equal(at.table.zero_stage, 3)


def _pairs(work: Workload, table: LayoutTable) -> npt.NDArray[np.bool_] | bool:
    """Where a layer of a second microbatch is held beside that whose backward runs."""
    if not work.stack.timing.pairs_expert_passes:
        return False
    return np.asarray(paired_share(table, num_microbatches(table, work.job), work.stack) > 0, dtype=bool)


def _first_backward_relief(layers: Sequence[LayerMemory], stack: SoftwareStack) -> Quantity:
    """min(activations, gradients)/activations of a layer, the least over runs; 0 for gradients in advance.

    A block of a module may save nothing beside its input, and is relieved of nothing.
    """
    kept = [np.maximum(1, layer.saved_bytes) for layer in layers]
    shares = [
        np.minimum(1, layer.state.gradients_bytes / saved) for layer, saved in zip(layers, kept, strict=True)
    ]
    least: Quantity = np.minimum.reduce(shares) * stack.memory.gradients_on_demand
    return least


def _relieved_recomputed(
    layers: tuple[LayerMemory, ...], relief: Quantity, at: _Context
) -> tuple[LayerMemory, ...]:
    """Layers whose gradients replace more of what they keep recomputed than of what they keep whole.

    Of the only microbatch of a step, which is held (1 - relief) times, a layer recomputed in full keeps what
    its gradients leave: A - min(A, G). Where several are held, the relief of whole layers stands.
    """
    if not at.work.stack.memory.gradients_on_demand:
        return layers
    alone = (at.table.pp == 1) & (num_microbatches(at.table, at.work.job) == 1)
    left = 1 - np.asarray(relief, dtype=np.float64)

    def relieved(layer: LayerMemory) -> Quantity:
        kept = layer.saved_bytes_recomputed
        held = np.maximum(0.0, kept - layer.state.gradients_bytes)
        return np.where(
            alone & (left > 0), np.minimum(kept, held / np.maximum(left, np.finfo(np.float64).tiny)), kept
        )

    return tuple(replace(layer, saved_bytes_recomputed=relieved(layer)) for layer in layers)


def _embedding_memory(share: LayerShare, at: _Context) -> EndMemory:
    """The embedding: its table, and the dropout masks of the microbatches in flight on the first stage."""
    table, parameters = at.table, share.parameters[at.index]
    masks = share.saved_bytes[0][at.index]
    if np.any(masks):
        M = num_microbatches(table, at.work.job)
        masks = masks * in_flight(table.schedule, table.pp, table.virtual_stages, M, 0)
    frozen = share.frozen_bytes[at.index]
    unit: Quantity = 0.0
    if at.work.stack.memory.ends_in_root_unit:
        unit = root_unit_bytes(
            parameters, frozen, table, at.work.stack, waits=at.work.model.tie_word_embeddings
        )
    elif not at.work.stack.memory.reduces_by_unit:
        unit = unit_bytes(parameters, table, at.work.stack) + frozen_unit_bytes(frozen, table, at.work.stack)
    trained = with_uneven(state_bytes(at.each, parameters), table, _uneven(at, share))
    state = with_frozen(trained, table, at.work.stack, frozen, away=at.parameters_away)
    return EndMemory(state=state, activation_bytes=masks + unit)


def _head_memory(
    share: LayerShare, at: _Context, working: Quantity, recompute_working: Quantity
) -> EndMemory:
    """The head: its projection (a tied one is held again when pp > 1), the logits and their loss.

    A schedule with all microbatches in flight holds the softmax of each, or the logits of engines whose loss
    keeps no softmax. Softly capped logits are kept for the cap's gradient. What a head that is reduced by
    itself holds (`head_unit_bytes`) leaves room where layers are recomputed.
    """
    table, model = at.table, at.work.model
    tied_copy = copied_parameters(at.work, table) * (table.pp > 1) / table.tp
    trains = at.work.job.adapter is None
    parameters = share.parameters[at.index] + tied_copy * trains
    frozen = share.frozen_bytes[at.index] + HALF_BYTES * tied_copy * (not trains)
    logits, kept, loss = _logits(at)
    if model.module:
        loss = loss + share.saved_bytes[0][at.index]
    trained = with_uneven(state_bytes(at.each, parameters), table, _uneven(at, share))
    held = _waiting(at) * kept
    if at.work.stack.memory.reduces_by_unit:
        peak = head_unit_bytes(HALF_BYTES * logits, loss, parameters, frozen, table, at.work.stack, working)
        room = np.minimum(peak, recompute_working)
    elif at.work.stack.memory.ends_in_root_unit:
        peak = loss + root_unit_bytes(parameters, frozen, table, at.work.stack, waits=True)
        room = 0 * loss
    else:
        unit = unit_bytes(parameters, table, at.work.stack) + frozen_unit_bytes(frozen, table, at.work.stack)
        peak, room = loss + unit, 0 * loss
    return EndMemory(
        state=with_frozen(trained, table, at.work.stack, frozen, away=at.parameters_away),
        activation_bytes=peak + held,
        recompute_room_bytes=room,
    )


def _at_its_largest_moment(
    ends: tuple[EndMemory, EndMemory],
    layers: Sequence[LayerMemory],
    relief: Quantity,
    working: Quantity,
    recompute_working: Quantity,
    at: _Context,
) -> EndMemory:
    """The head with what the largest moment of a step holds beyond the layers' backward, as torch has them.

        loss      w + o + A + l           no gradient yet, if there is one microbatch
        backward  w + o + max(g, A) + k   k of one layer: its temporaries and, recomputed, its activations
        update    w + o + g + x           x the temporary of a chain of kernels

    A are activations; engines whose gradients do not take their place have g + A. Where a stage recomputes
    all of its layers A is less and k more: `recompute_room_bytes` is the difference between the two cases.
    With stages there are other microbatches, and only k and l take each other's place.
    """
    embedding, head = ends
    table, counts = at.table, [run.count for run in layer_runs(at.work.model)]
    alone = (table.pp == 1) & (num_microbatches(table, at.work.job) == 1)
    held = np.where(alone, 1 - np.asarray(relief, dtype=np.float64), 1.0)
    states = [layer.state for layer in layers]
    gradients = _of_all(counts, [state.gradients_bytes for state in states])
    gradients = gradients + embedding.state.gradients_bytes + head.state.gradients_bytes
    always = head.activation_bytes - _logits(at)[2] if at.work.stack.memory.ends_in_root_unit else 0.0
    temporary = _temporary(at) * (gradients / at.work.stack.memory.gradient_bytes) * (table.pp == 1)

    def beyond(kept: Sequence[Quantity], of_layer: Quantity, made_since: Quantity = 0.0) -> Quantity:
        """What is beyond the layers' backward if they keep so much and one of them so much more.

        Of what they keep is a share that the backward makes.
        """
        activations = _of_all(counts, kept)
        replaced = at.work.stack.memory.gradients_on_demand
        absent = np.maximum(0.0, gradients - activations) if replaced else gradients
        backward = of_layer + alone * absent + made_since * activations
        loss = np.maximum(0.0, head.activation_bytes - always - backward)
        update = temporary - held * activations - embedding.activation_bytes - of_layer - always
        most: Quantity = always + np.maximum(loss, update)
        return most

    whole = beyond([layer.saved_bytes for layer in layers], working)
    recomputed = beyond(
        [layer.saved_bytes_recomputed for layer in layers],
        working + recompute_working,
        1 - 1 / _inputs_held(at),
    )
    return replace(head, activation_bytes=whole, recompute_room_bytes=whole - recomputed)


def _temporary(at: _Context) -> float:
    """Bytes of a parameter that an update in a chain of kernels holds beside state: one moment, its root.

    Source: torch/optim/adam.py, _multi_tensor_adam: ``torch._foreach_sqrt`` of all second moments.
    """
    stack, updated = at.work.stack, optimizer(at.work.job.optimizer)
    moments = stack.memory.moment_bytes if updated.state_bytes is None else updated.state_bytes
    return moments / 2 * (stack.timing.foreach_update and updated.chained)


def _of_all(counts: Sequence[int], values: Sequence[Quantity]) -> Quantity:
    """Sum over all layers of what a layer of each run has."""
    return sum((n * value for n, value in zip(counts, values, strict=True)), start=0.0)


def _logits(at: _Context) -> tuple[Quantity, Quantity, Quantity]:
    """Logits of a microbatch on a rank; bytes of them until their backward, and at their loss."""
    model, table, memory = at.work.model, at.table, at.work.stack.memory
    shards = table.tp if at.work.stack.timing.vocab_parallel_loss else 1
    classes = model.vocab_size / shards
    if model.module:
        classes = model.module.head.logits / (shards if model.module.head.loss_rows else 1)
    logits = table.microbatch_size * (at.work.job.sequence_length / table.cp) * classes
    capped = HALF_BYTES * (model.final_logit_softcapping is not None)
    each = loss_bytes_held(at.work.stack)
    kept = min(FLOAT_BYTES, each) + capped
    chunks = memory.loss_chunks or max(1.0, model.vocab_size / model.hidden_size)
    alive = (each + capped) * logits / chunks
    return logits, kept * logits * (chunks == 1), alive


def _waiting(at: _Context) -> Quantity:
    """Microbatches that wait for their backward at the end of a pipeline, beside the one at its loss."""
    waiting: Quantity = (num_microbatches(at.table, at.work.job) - 1) * _HOLDS_ALL[at.table.schedule]
    return waiting * (at.table.pp > 1)


def _with_modules(
    head: EndMemory, modules: Sequence[LayerMemory], working: Quantity, at: _Context
) -> EndMemory:
    """The head with modules that predict further tokens: their state, and what they keep for their backward.

    It comes as soon as that of the head, so one microbatch is held; where all are in flight, all are. Beside
    what a layer of theirs keeps there are the logits, as of the main head. None is recomputed in full:
    Megatron-LM skips them under ``--recompute-method block``. Temporaries beyond those of a layer are the
    head's alone.
    """
    if not modules:
        return head
    count, held, (_, kept, _) = at.work.job.mtp_layers, 1 + _waiting(at), _logits(at)
    state = State(**{
        name: getattr(head.state, name) + count * sum(getattr(module.state, name) for module in modules)
        for name in State.names()
    })  # fmt: skip
    saved = sum(module.saved_bytes for module in modules) + kept
    beyond = _largest([np.maximum(0.0, module.working_bytes - working) for module in modules])
    return replace(head, state=state, activation_bytes=head.activation_bytes + count * held * saved + beyond)


def _communicators(table: LayoutTable) -> Quantity:
    """Process groups with more than one rank on a GPU: one for each axis in use."""
    return sum(((getattr(table, axis) > 1).astype(np.float64) for axis in AXES), start=0.0)


def _largest(values: Sequence[Quantity]) -> Quantity:
    """Entry-wise maximum of arrays."""
    largest: Quantity = np.maximum.reduce([np.asarray(value) for value in values])
    return largest
