"""Bytes of parameters and their training state on one rank, under ZeRO sharding.

Legend: ``w``, ``g``, ``o`` bytes per parameter of weights, gradients and optimizer; ``N`` ranks sharing a
shard.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from costmodel.case import Workload
from costmodel.layout import LayoutTable
from costmodel.models.parameters import layer_parameters, parameter_count
from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.stack import SoftwareStack
from costmodel.updates.optimizers import MASTER_BYTES, Optimizer, optimizer
from topology.base.arrays import Quantity
from topology.base.columns import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class State(Columns):
    """Persistent bytes of some parameters on one rank, after sharding."""

    weights_bytes: Quantity
    gradients_bytes: Quantity
    optimizer_bytes: Quantity

    @property
    def total_bytes(self) -> Quantity:
        """Weights, gradients and optimizer state."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesPerParameter:
    """Bytes of state that one parameter of a rank leaves on it after sharding, one entry per layout."""

    dense: State
    expert: State


def bytes_per_parameter(work: Workload, table: LayoutTable) -> BytesPerParameter:
    """State per parameter under each layout's ZeRO stage (Rajbhandari et al. 2020, figure 1), bytes.

    ZeRO-1 divides o by N, ZeRO-2 also g, ZeRO-3 also w; a stack that gathers from its master weights keeps no
    separate w at ZeRO-3, and where these are the narrow weights themselves, no second ones below ZeRO-2. Of a
    parameter whose master waits in host memory w is left, and g unless it goes there too. N is the shard
    degree for dense parameters, and its share of the expert replicas for experts.

    Args:
        table: The layouts; zero_stage, shard_degree and expert replicas are read.
        work: What runs: the model, the job, the engine.

    Returns:
        Bytes per dense and per expert parameter.
    """
    stack, job = work.stack, work.job
    dense_ranks = np.minimum(table.shard_degree, table.replicas)
    stages = [np.greater_equal(table.zero_stage, stage) for stage in (1, 2, 3)]
    weight_bytes = stack.memory.weight_bytes + stack.memory.fp8_weight_copies * job.is_low_precision
    gradient_bytes = stack.memory.gradient_bytes + stack.memory.bf16_sum_bytes * (job.precision == "bf16")
    updated = optimizer(job.optimizer)
    offload = job.offload
    away = offload.updated if offload else 0.0
    resident = 1 - stages[2] * (stack.memory.gathers_from_master and updated.has_master) * (1 - away)
    gradient_bytes *= 1 - away * stack.memory.offloads_gradients
    gradient_bytes *= largest_unit_share(work.model) if stack.memory.updates_in_backward else 1.0
    kept = kept_bytes(updated, stack) - np.where(stages[1], 0.0, _weights_among(updated, stack))
    optimizer_bytes = kept * (1 - away)
    optimizer_bytes += job.compression.kept_bytes(stack.memory.gradient_bytes) if job.compression else 0.0
    optimizer_bytes += job.apart.kept_bytes if job.apart else 0.0
    on_gpu = 1 - stages[2] * bool(offload and offload.parameters)
    second = stages[2] * _second_share(stack) * stack.memory.parameter_gather_bytes

    def after(ranks: npt.NDArray[Any]) -> State:
        """Bytes per parameter when sharded state is divided over so many ranks."""
        share = 1 / ranks
        return State(
            weights_bytes=on_gpu * weight_bytes * resident * np.where(stages[2], share, 1.0) + second,
            gradients_bytes=on_gpu * gradient_bytes * np.where(stages[1], share, 1.0),
            optimizer_bytes=optimizer_bytes * np.where(stages[0], share, 1.0),
        )

    return BytesPerParameter(dense=after(dense_ranks), expert=after(table.expert_shard_degree))


def _second_share(stack: SoftwareStack) -> float:
    """Share of the weights that a rank has in a second copy of them."""
    return 1 / stack.memory.second_shard if stack.memory.second_shard else 0.0


def kept_bytes(updated: Optimizer, stack: SoftwareStack) -> float:
    """Bytes per parameter of optimizer state: the profile's, with moments and master copy of the optimizer.

    What a profile keeps beside moments is at most an fp32 master weight, and whatever else it shards.
    """
    memory = stack.memory
    if updated.state_bytes is None:
        return memory.optimizer_bytes - memory.moment_bytes * memory.pages_moments
    beside = memory.optimizer_bytes - memory.moment_bytes
    moments = 0.0 if memory.pages_moments else updated.state_bytes
    return moments + beside - (0 if updated.has_master else min(MASTER_BYTES, beside))


def largest_unit_share(model: ModelSpec) -> float:
    """Share of the parameters in the largest of layers, embedding and head: whose gradients exist at once."""
    layers = [layer_parameters(model, run.kind) for run in layer_runs(model)]
    return max(*layers, model.vocab_size * model.hidden_size) / parameter_count(model)


def _weights_among(updated: Optimizer, stack: SoftwareStack) -> float:
    """Bytes per parameter of narrow weights in the sharded state: the only ones where none is gathered."""
    memory = stack.memory
    keeps = memory.gathers_from_master or memory.weight_bytes >= MASTER_BYTES  # which are their own master
    beside = memory.optimizer_bytes - memory.moment_bytes
    return memory.weight_bytes if keeps and updated.has_master and beside == memory.weight_bytes else 0.0


def with_uneven(state: State, table: LayoutTable, uneven_bytes: Quantity) -> State:
    """The state with what an optimizer keeps of some parameters alone, sharded from ZeRO-1 on."""
    if not np.any(uneven_bytes):
        return state
    shards = np.where(table.zero_stage >= 1, np.minimum(table.shard_degree, table.replicas), 1)
    return replace(state, optimizer_bytes=state.optimizer_bytes + uneven_bytes / shards)


def state_bytes(each: BytesPerParameter, parameters: Quantity, expert_parameters: Quantity = 0.0) -> State:
    """Weights, gradients and optimizer state of a rank's parameters, in bytes.

    Args:
        each: From `bytes_per_parameter`.
        parameters: Parameters of the rank that data parallelism replicates, experts excluded.
        expert_parameters: Parameters of the rank's routed experts.

    Returns:
        The three parts, one entry per layout.
    """
    if not np.any(expert_parameters):
        return State(**{part: parameters * getattr(each.dense, part) for part in _PARTS})
    return State(
        **{
            part: parameters * getattr(each.dense, part) + expert_parameters * getattr(each.expert, part)
            for part in _PARTS
        }
    )


def with_frozen(
    state: State,
    table: LayoutTable,
    stack: SoftwareStack,
    frozen_bytes: Quantity,
    frozen_expert_bytes: Quantity = 0.0,
    *,
    away: bool = False,
) -> State:
    """The state with weights that are not trained: they have neither gradients nor moments.

    They are sharded at ZeRO-3 alone: w/N, or w; an engine whose units are gathered at every stage has both,
    w + w/N, at ZeRO-0 2·w. What ZeRO-3 shards is in host memory where parameters are offloaded.

    Args:
        state: Of what is trained.
        table: The layouts.
        stack: Whether its units are gathered.
        frozen_bytes: Weights of the rank, routed experts excluded.
        frozen_expert_bytes: Weights of its routed experts.
        away: Whether parameters are offloaded.
    """
    if not (np.any(frozen_bytes) or np.any(frozen_expert_bytes)):
        return state
    whole = 1 - np.greater_equal(table.zero_stage, 3)
    gathers = stack.memory.gathers_from_master and stack.memory.reduces_by_unit
    kept = np.maximum(1 - whole, float(gathers)) * (whole if away else 1)
    alone = np.less(table.zero_stage, 1)
    held = whole + (1 - whole) * _second_share(stack)
    dense = frozen_bytes * (held + kept / np.where(alone, 1, np.minimum(table.shard_degree, table.replicas)))
    expert = frozen_expert_bytes * (held + kept / np.where(alone, 1, table.expert_shard_degree))
    return replace(state, weights_bytes=state.weights_bytes + dense + expert)


def frozen_unit_bytes(
    frozen_bytes: Quantity, table: LayoutTable, stack: SoftwareStack, *, prefetches: bool = True
) -> Quantity:
    """Frozen weights of one unit while gathered at ZeRO-3, and of the next one if prefetched."""
    units = 1 + (prefetches and stack.timing.fsdp_prefetch)
    return frozen_bytes * units * np.greater_equal(table.zero_stage, 3)


_PARTS = ("weights_bytes", "gradients_bytes", "optimizer_bytes")


def unit_bytes(
    parameters: Quantity, table: LayoutTable, stack: SoftwareStack, *, prefetches: bool = True
) -> Quantity:
    """Transient bytes of one unit (a layer) around its compute.

    At ZeRO-3 the unit's weights are gathered, the next one's too if prefetched, and its whole gradient
    exists in the gather precision and in the reduction's before it is scattered. Engines that reduce by
    unit have the first of these gradients at every stage, and the second from ZeRO-2 on; of the others this
    is zero below ZeRO-3.

    Args:
        parameters: Parameters of the unit on a rank before sharding, experts included.
        table: The layouts.
        stack: Bytes per gathered and reduced parameter, and prefetching.
        prefetches: Whether a unit of this size follows, to be prefetched where the stack does.

    Returns:
        Bytes, one entry per layout.
    """
    sharded = [np.greater_equal(table.zero_stage, stage) for stage in (2, 3)]
    reduced, whole = (sharded[0], 1) if stack.memory.reduces_by_unit else (sharded[1], sharded[1])
    gathered = (
        sharded[1] * stack.memory.parameter_gather_bytes * (1 + (prefetches and stack.timing.fsdp_prefetch))
    )
    per_parameter = (
        gathered + whole * stack.memory.parameter_gather_bytes + reduced * stack.memory.gradient_reduce_bytes
    )
    return parameters * per_parameter


def root_unit_bytes(
    parameters: Quantity, frozen_bytes: Quantity, table: LayoutTable, stack: SoftwareStack, *, waits: bool
) -> Quantity:
    """What an end holds all the step where both ends are one unit: its weights, and a gradient that waits.

    Args:
        parameters: Trained parameters of the end on a rank before sharding.
        frozen_bytes: Frozen weights of it.
        table: The layouts; gathered at ZeRO-3, a whole gradient exists from ZeRO-2 on.
        stack: Bytes per gathered parameter.
        waits: Whether its gradient is there before the layers' backward: of the head, or tied to it.
    """
    gathers, reduces = (np.greater_equal(table.zero_stage, stage) for stage in (3, 2))
    held = gathers + reduces * float(waits)
    return parameters * stack.memory.parameter_gather_bytes * held + gathers * frozen_bytes


def head_unit_bytes(
    logits_bytes: Quantity,
    loss_bytes: Quantity,
    parameters: Quantity,
    frozen_bytes: Quantity,
    table: LayoutTable,
    stack: SoftwareStack,
    working: Quantity,
) -> Quantity:
    """What a head that is a unit of its own holds at most, beyond the working set of a layer.

    At its loss there are its gathered weights and, from ZeRO-1 on, the buffer that they came in; at its
    gradients the logits' gradient and the weights', in the gather precision. Then logits and gathered weights
    go, but from ZeRO-2 on the weights' gradient stays, in the reduction's precision, until the last layer's
    is reduced: beside that layer's working set.

    Args:
        logits_bytes: The logits, or their gradient.
        loss_bytes: What the loss holds at its peak, logits included.
        parameters: Trained parameters of the head on a rank before sharding.
        frozen_bytes: Frozen weights of it.
        table: The layouts.
        stack: Bytes per gathered and reduced parameter.
        working: Working set of the largest layer, which is not there while the head computes.

    Returns:
        Bytes, one entry per layout.
    """
    memory = stack.memory
    from_one, from_two, from_three = (np.greater_equal(table.zero_stage, stage) for stage in (1, 2, 3))
    weights = parameters * memory.parameter_gather_bytes
    gathered = from_three * (weights + frozen_bytes)
    at_loss = loss_bytes + gathered + from_one * (weights + frozen_bytes)
    at_gradients = logits_bytes + gathered + weights
    reduced = from_two * parameters * memory.gradient_reduce_bytes
    most: Quantity = np.maximum(np.maximum(at_loss, at_gradients) - working, reduced)
    return most
