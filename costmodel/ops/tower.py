"""A tower as operations of one rank: its layers over the patches of a microbatch, and its two ends.

Every image is a sequence of its own, and its patches attend to each other both ways. Ranks of tensor
parallelism hold the tower whole, those of context parallelism deal whole images among themselves.

Legend: ``P`` patches of a rank's microbatch, ``h`` width of the tower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodel.job import TrainingJob
from costmodel.models.tower import Tower
from costmodel.ops.op import HALF_BYTES, Op, OpKind, ShardShape, elementwise, gemm
from costmodel.stack import SoftwareStack
from topology.base.arrays import Quantity

BOTH_WAYS = 2  # pairs of attention without a mask, of those of the causal kernel


def images_of(tower: Tower, job: TrainingJob) -> tuple[int, int]:
    """Images of a sequence, and patches of each."""
    return job.images or 1, tower.merge * (job.image_tokens or tower.image_tokens)


def tower_shard(tower: Tower, job: TrainingJob, shard: ShardShape) -> ShardShape:
    """What one rank sees of a layer of the tower: its images as sequences, cut by nothing."""
    images, patches = images_of(tower, job)
    dealt = np.ceil(shard.microbatch_size * images / shard.cp)
    alone = {
        name: count + 0 * shard.tp for name, count in (("tp", 1), ("cp", 1), ("ep", 1), ("expert_tp", 1))
    }
    return ShardShape(sequence_length=float(patches), microbatch_size=dealt, **alone)


def both_ways(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The same operations, whose attention has no causal mask."""
    return tuple(
        replace(op, batch=BOTH_WAYS * op.batch, flop=BOTH_WAYS * op.flop)
        if op.kind is OpKind.ATTENTION
        else op
        for op in ops
    )


def untrained_ops(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The same operations of weights that are not trained, before anything that is: they keep nothing."""
    return tuple(op if op.kind is OpKind.COLLECTIVE else _untrained(op) for op in ops)


def _untrained(op: Op) -> Op:
    return replace(
        op, frozen=True, forward_only=True, parameters=0, frozen_bytes=HALF_BYTES * op.parameters,
        saved_bytes=0, saved_bytes_selective=0, saved_bytes_op=0, working_bytes=0,
    )  # fmt: skip


def tower_end_ops(tower: Tower, job: TrainingJob, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """What turns pixels into patches before the tower, and patches into the decoder's tokens after it."""
    seen = tower_shard(tower, job, shard)
    P, h = seen.tokens, tower.hidden_size
    tokens = P / tower.merge
    kept = P * (tower.patch_kept or tower.patch_values)
    patches = gemm("patches", m=P, n=h, k=tower.patch_values, saved_elements=kept)
    before = [op for product in tower.before for op in _before(*product, P)]
    join = [
        gemm(f"join {number}", m=tokens, n=n, k=k, saved_elements=tokens * k)
        for number, (k, n) in enumerate(tower.join)
    ]
    passes: Quantity = 2 * HALF_BYTES * P * h
    places = elementwise(
        "patch positions",
        traffic_bytes=passes * (1 if stack.timing.fused_elementwise else 2),
        saved_bytes=HALF_BYTES * P * h,
        parameters=tower.stem_parameters - patches.parameters - sum(op.parameters for op in before),
    )
    held = tower.join_parameters - sum(op.parameters for op in join)
    norms = elementwise("join norms", traffic_bytes=2 * HALF_BYTES * P * h, parameters=held)
    stem = (*before, patches, places)
    return (*(stem if job.trains_tower else untrained_ops(stem)), norms, *join)


def _before(rows: int, inputs: int, outputs: int, patches: Quantity) -> tuple[Op, ...]:
    """A product before that of patches, whose input is data, and the activation after it."""
    size = HALF_BYTES * patches * rows * outputs
    return (
        gemm("frames", m=patches * rows, n=outputs, k=inputs, saved_elements=0),
        elementwise("frame activation", traffic_bytes=2 * size, saved_bytes=size),
    )
