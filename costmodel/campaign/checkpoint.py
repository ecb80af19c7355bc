"""What a checkpoint is made of, and what writing and loading one takes.

An engine saves what it cannot compute again: the weights that compute reads, the fp32 master copy and the two
moments; never gradients. Every distinct byte is written once, replicas share the writing.

Legend: ``w`` bytes a parameter of weights, ``o`` of master copy and moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.campaign.course import Level
from costmodel.campaign.record import FailureModel, Storage
from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec, parameter_count
from costmodel.stack import SoftwareStack
from topology.spec import ClusterSpec

ADAM_BYTES = 12.0
"""fp32 master weights and two fp32 moments of a parameter; what a stack keeps beyond is scratch."""
WEIGHT_BYTES = 2.0
"""bf16 weights; copies in eight bits are derived, and not saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """Bytes of one checkpoint: in all, the weights of it, and on the rank that writes most.

    Attributes:
        total_bytes: Every distinct byte once.
        per_rank_bytes: What the fullest rank copies aside and writes.
        weights_per_rank_bytes: Weights that the fullest rank must hold again after a restart.
        writers: Ranks that write.
    """

    total_bytes: float
    per_rank_bytes: float
    weights_per_rank_bytes: float
    writers: int


def saved_bytes_per_parameter(stack: SoftwareStack, zero_stage: int = 0) -> float:
    """Bytes that a checkpoint holds of a parameter: w + o.

    14 with weights beside the master copy, 12 where sharded weights are gathered from it, 10 where there is
    no master copy (OPT-175B, bf16 engines keep fewer).

    >>> from costmodel.stack import stack
    >>> saved_bytes_per_parameter(stack("megatron-core"))
    14.0
    """
    from_master = stack.memory.gathers_from_master and zero_stage >= 3
    return (0.0 if from_master else WEIGHT_BYTES) + min(stack.memory.optimizer_bytes, ADAM_BYTES)


def checkpoint_state(
    model: ModelSpec, stack: SoftwareStack, layout: ParallelLayout, weights_of_stage_bytes: Sequence[float]
) -> CheckpointState:
    """Bytes of a checkpoint under a layout.

    Args:
        model: The model; its distinct parameters are written once.
        stack: What the engine keeps of a parameter.
        layout: Ranks of the job.
        weights_of_stage_bytes: Weights of a rank of each stage, as in the memory of the plan.
    """
    each = saved_bytes_per_parameter(stack, layout.zero_stage)
    total = each * parameter_count(model)
    mean = sum(weights_of_stage_bytes) / len(weights_of_stage_bytes)
    fullest = max(weights_of_stage_bytes)
    return CheckpointState(
        total_bytes=total,
        per_rank_bytes=total / layout.num_gpus * (fullest / mean if mean else 1.0),
        weights_per_rank_bytes=fullest,
        writers=layout.num_gpus,
    )


def levels_of(state: CheckpointState, world: FailureModel, cluster: ClusterSpec) -> tuple[Level, ...]:
    """The places this checkpoint goes to, nearest first: a peer's memory if kept there, then storage."""
    slowest = min(node.host_bandwidth_bytes_per_s for node in cluster.nodes)
    nic = min(_nic_bytes_per_s(node.nic_bandwidth_bytes_per_s, slowest) for node in cluster.nodes)
    spread_s = state.weights_per_rank_bytes / nic
    last = _stored(state, world, world.storage, slowest, spread_s)
    if not world.peer_memory:
        return (last,)
    copy_s = state.per_rank_bytes / nic
    peer = Level(
        name="peer memory",
        stall_s=world.times.stall.seconds + state.per_rank_bytes / slowest,
        durable_s=copy_s,
        load_s=copy_s + spread_s,
        survives="node",
    )
    return (peer, last)


def _stored(
    state: CheckpointState, world: FailureModel, storage: Storage, host_bytes_per_s: float, spread_s: float
) -> Level:
    """The level of a storage system: written while steps go on, or while they wait."""
    write_s = state.total_bytes / storage.write_bytes_per_s
    aside_s = world.times.stall.seconds + state.per_rank_bytes / host_bytes_per_s
    return Level(
        name=storage.name,
        stall_s=aside_s if world.asynchronous else write_s,
        durable_s=write_s if world.asynchronous else 0.0,
        load_s=state.total_bytes / storage.read_bytes_per_s + spread_s,
        survives=storage.survives,
    )


def _nic_bytes_per_s(nic: float, host: float) -> float:
    """Bytes a second of a GPU to another node; to its host where there is no network."""
    return nic or host
