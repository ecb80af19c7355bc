"""Bytes that one layer's forward pass leaves behind for its backward, under each recompute policy.

Sums over the per-layer table, so that one description of a layer gives time and memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.layout import RECOMPUTES
from costmodel.ops.op import HALF_BYTES, LINEAR, Op, OpKind, ShardShape
from costmodel.ops.updates import uneven_state_bytes
from costmodel.updates.optimizers import Optimizer
from topology.base.arrays import Floats, Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShare:
    """One rank's share of a layer, for one microbatch; arrays with one entry per distinct cut.

    Attributes:
        parameters: Parameters on the rank, routed experts excluded.
        expert_parameters: Parameters of the rank's routed experts.
        saved_bytes: Activations kept, one entry per policy of `layout.RECOMPUTES` (``full``: the layer's
            input).
        working_bytes: Largest set of temporaries while one operation runs backward.
        block_bytes: What exists of a block while ``selective`` runs it again.
        matrix_parameters: Parameters of the distinct matrices of a layer: dense ones, and one expert's.
        frozen_bytes: Weights on the rank that are not trained, routed experts excluded.
        frozen_expert_bytes: Those of the rank's routed experts.
        uneven_bytes: What the optimizer keeps of some parameters alone (`costmodel.ops.updates`).
    """

    parameters: Floats
    expert_parameters: Floats
    saved_bytes: Floats
    working_bytes: Floats
    block_bytes: Floats
    matrix_parameters: Floats
    frozen_bytes: Floats
    frozen_expert_bytes: Floats
    uneven_bytes: Floats


def layer_share(
    ops: Sequence[Op],
    shard: ShardShape,
    hidden_size: float,
    *,
    updated: Optimizer | None = None,
    matrices: bool = True,
    frees: bool = False,
) -> LayerShare:
    """Sums over the operations of one layer (or of an end), one entry per cut.

    Args:
        ops: Its operations.
        shard: How it is cut.
        hidden_size: H; 2·H where hidden states are in fp32.
        updated: An optimizer that keeps more of some parameters than of others.
        matrices: Whether its matrices are updated as matrices.
        frees: Whether its backward frees what its operations kept one by one.
    """
    uneven = 0.0 if updated is None else uneven_state_bytes(ops, updated, matrices=matrices)
    experts = [op for op in ops if op.kind is OpKind.GROUPED_GEMM]
    expert_parameters = _total([op.parameters for op in experts])
    kept = [saved_bytes(ops, policy, shard, hidden_size) for policy in RECOMPUTES]
    zero = np.zeros(np.shape(shard.tp))
    return LayerShare(
        parameters=zero + _total([op.parameters for op in ops]) - expert_parameters,
        expert_parameters=zero + expert_parameters,
        saved_bytes=np.stack([zero + of_policy for of_policy in kept]),
        working_bytes=zero + working_bytes(ops, frees=frees),
        block_bytes=zero + _total([op.saved_bytes - op.saved_bytes_selective for op in ops if op.relaunched]),
        matrix_parameters=zero + _total([op.n * op.k for op in ops if op.kind in LINEAR and not op.frozen]),
        frozen_bytes=zero + _total([op.frozen_bytes for op in ops if op.kind is not OpKind.GROUPED_GEMM]),
        uneven_bytes=zero + uneven,
        frozen_expert_bytes=zero + _total([op.frozen_bytes for op in experts]),
    )


def saved_bytes(ops: Sequence[Op], policy: str, shard: ShardShape, hidden_size: float) -> Quantity:
    """Activations that stay between forward and backward of one microbatch of one layer, bytes.

    Without fused attention, GQA or gating this is Korthikanti et al. 2022, equations 1–4 and table 2:
    none T·H·(34 + 5·a·S/H), selective 34·T·H, each divided over tp as they state; full 2·T·H.

    Args:
        ops: The layer's operations.
        policy: One of `layout.RECOMPUTES`.
        shard: How the layer is cut.
        hidden_size: H.

    Returns:
        Bytes on one rank.
    """
    if policy == "full":
        return HALF_BYTES * shard.sharded_tokens * hidden_size
    if policy == "selective":
        return _total([op.saved_bytes_selective for op in ops])
    if policy == "selective-op":
        return _total([op.saved_bytes_op for op in ops])
    return _total([op.saved_bytes for op in ops])


def working_bytes(ops: Sequence[Op], *, frees: bool = False) -> Quantity:
    """Largest temporaries of one operation backward, in bytes.

    A linear needs its whole input and the gradients of input and output; unfused attention needs the
    gradients of the scores before and after softmax; attention of a split sequence the buffers of its
    exchange; an unfused gate the gradients of its product and of both factors.

    Args:
        ops: Operations of a layer.
        frees: Whether what operations after it had kept is free by then.
    """
    largest: Quantity = 0.0
    gone: Quantity = 0.0
    for op in reversed(ops):
        size = op.working_bytes
        if op.kind in LINEAR:
            size = np.maximum(size, HALF_BYTES * np.maximum(op.experts, 1) * op.m * (op.n + 2 * op.k))
        if op.kind is OpKind.ATTENTION and not op.fused:
            size = np.maximum(size, 2 * HALF_BYTES * op.batch * op.heads * op.query_tokens * op.kv_tokens)
        largest = np.maximum(largest, np.maximum(size - frees * gone, op.gradient_bytes - gone))
        gone = gone + op.saved_bytes
    return largest


def _total(values: Sequence[Quantity]) -> Quantity:
    """Sum of numbers and arrays."""
    return sum(values, start=0.0)
