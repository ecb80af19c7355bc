"""What a checkpoint is made of.

An engine saves what it cannot compute again: the weights that compute reads, the fp32 master copy and the two
moments; never gradients. Every distinct byte is written once, replicas share the writing.

Legend: ``w`` bytes a parameter of weights, ``o`` of master copy and moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec, parameter_count
from costmodel.stack import SoftwareStack

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
