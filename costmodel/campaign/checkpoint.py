"""What a checkpoint is made of.

An engine saves what it cannot compute again: the weights that compute reads, the fp32 master copy and the
optimizer's moments; never gradients. Every distinct byte is written once, replicas share the writing. Of a
job that trains adapters these are the adapters' own: a restart reads the frozen base where the run found it.

Legend: ``w`` bytes a parameter of weights, ``o`` of master copy and moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.case import Workload
from costmodel.layout import ParallelLayout
from costmodel.memory.state import kept_bytes
from costmodel.models.parameters import mtp_parameters, parameter_count
from costmodel.models.spec import layer_runs
from costmodel.ops.cuts import ops_of_parts
from costmodel.ops.op import Op, ShardShape
from costmodel.ops.updates import uneven_state_bytes
from costmodel.stack import SoftwareStack
from costmodel.updates.optimizers import USUAL, optimizer

ADAM_BYTES = 12.0
"""fp32 master weights and two fp32 moments of a parameter; what a stack keeps beyond is scratch."""
WEIGHT_BYTES = 2.0
"""bf16 weights; copies in eight bits are derived, and not saved."""
BASE_BYTES = 2.0
"""Of a frozen parameter where it is read from: published in sixteen bits, and quantised once it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """Bytes of one checkpoint: in all, the weights of it, and on the rank that writes most.

    Attributes:
        total_bytes: Every distinct byte once.
        per_rank_bytes: What the fullest rank copies aside and writes.
        weights_per_rank_bytes: Weights that the fullest rank must hold again after a restart.
        writers: Ranks that write.
        base_bytes: Frozen weights, which no checkpoint holds; a restart reads them where the run found them.
    """

    total_bytes: float
    per_rank_bytes: float
    weights_per_rank_bytes: float
    writers: int
    base_bytes: float = 0.0


def saved_bytes_per_parameter(stack: SoftwareStack, zero_stage: int = 0, updated_by: str = USUAL) -> float:
    """Bytes that a checkpoint holds of a trained parameter: w + o.

    14 with weights beside the master copy, 12 where sharded weights are gathered from it, 10 where there is
    no master copy (OPT-175B, bf16 engines keep fewer) or moments have sixteen bits.

    >>> from costmodel.stack import stack
    >>> saved_bytes_per_parameter(stack("megatron-core"))
    14.0
    >>> saved_bytes_per_parameter(stack("megatron-core"), updated_by="adamw-bf16")
    10.0
    """
    updated = optimizer(updated_by)
    from_master = stack.memory.gathers_from_master and updated.has_master and zero_stage >= 3
    return (0.0 if from_master else WEIGHT_BYTES) + min(kept_bytes(updated, stack), ADAM_BYTES)


def checkpoint_bytes(work: Workload, zero_stage: int = 0) -> float:
    """Bytes of a checkpoint: of all parameters, or of those of the adapters where a job trains them alone.

    Args:
        work: What runs: the model, the job, the engine.
        zero_stage: Of the layout.

    Returns:
        (w + o)·trained parameters, what the optimizer keeps of some of them alone, and what workers that
        run apart keep of their last agreement.
    """
    job = work.job
    updated = optimizer(job.optimizer)
    each = saved_bytes_per_parameter(work.stack, zero_stage, job.optimizer)
    each += job.apart.kept_bytes if job.apart else 0.0
    if job.adapter is None and updated.is_plain:
        modules = job.mtp_layers * mtp_parameters(work.model) if job.mtp_layers else 0
        return each * (parameter_count(work.model) + modules)
    value = 0.0
    for count, ops, matrices in _parts(work):
        uneven = 0.0 if updated.is_plain else float(uneven_state_bytes(ops, updated, matrices=matrices))
        value += count * (each * float(sum(op.parameters for op in ops)) + uneven)
    return value


def _parts(work: Workload) -> list[tuple[int, tuple[Op, ...], bool]]:
    """Layers of every run and both ends on one GPU: how many, operations, whether matrices are updated so."""
    job = work.job
    whole = ShardShape(sequence_length=float(job.sequence_length))
    *layers, embedding, head = ops_of_parts(work, whole)
    counts = [*(run.count for run in layer_runs(work.model)), *[job.mtp_layers] * bool(job.mtp_layers)]
    runs = [(count, ops, True) for count, ops in zip(counts, layers, strict=True)]
    return [*runs, (1, embedding, False), (1, head, False)]


def checkpoint_state(
    work: Workload, layout: ParallelLayout, weights_of_stage_bytes: Sequence[float]
) -> CheckpointState:
    """Bytes of a checkpoint under a layout.

    Args:
        work: What runs: the model, the job, the engine.
        layout: Ranks of the job.
        weights_of_stage_bytes: Weights of a rank of each stage, as in the memory of the plan.
    """
    total = checkpoint_bytes(work, layout.zero_stage)
    mean = sum(weights_of_stage_bytes) / len(weights_of_stage_bytes)
    fullest = max(weights_of_stage_bytes)
    return CheckpointState(
        total_bytes=total,
        per_rank_bytes=total / layout.num_gpus * (fullest / mean if mean else 1.0),
        weights_per_rank_bytes=fullest,
        writers=layout.num_gpus,
        base_bytes=0.0 if work.job.adapter is None else BASE_BYTES * parameter_count(work.model),
    )
