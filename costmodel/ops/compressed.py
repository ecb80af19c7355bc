"""What is sent of the gradients of a layer when they are compressed, as so many uncompressed parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.ops.op import TABLED, Op, OpKind
from costmodel.ops.updates import matrices_of
from costmodel.updates.compression import LEAST_GAIN, Compression
from topology.base.arrays import Quantity


def spared_parameters(ops: Sequence[Op], compression: Compression, *, experts: bool) -> Quantity:
    """Parameters that need not be sent, because factors of rank r stand for matrices (m, n).

        Σ matrices max(0, m·n − r·(m + n)), where the factors are smaller by more than `LEAST_GAIN`

    Embeddings, norms and biases are sent whole, and so are the weights of grouped convolutions.

    Args:
        ops: Operations of a layer, or of an end of the model; those without parameters hold no weight, but
            those of a traced block, whose parameters its last operation has.
        compression: How gradients are sent.
        experts: Whether to count the weights of routed experts, or all others.
    """
    if not compression.factors:
        return 0.0
    kinds = (OpKind.GROUPED_GEMM,) if experts else TABLED
    traced = any(op.name == "saved" for op in ops)
    total: Quantity = 0.0
    for op in ops:
        if op.kind not in kinds or op.frozen or not (traced or np.any(op.parameters)):
            continue
        each, m, n = matrices_of(op)
        sent = np.minimum(compression.rank, m) * (m + n)
        total = total + each * np.where(LEAST_GAIN * sent < m * n, m * n - sent, 0.0)
    return total
