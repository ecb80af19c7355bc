"""Which passes of operations run: forward, the gradients of input and weight, the forward again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.ops.op import Op, OpKind
from topology.base.arrays import Quantity

PASSES = 3  # of a matrix product: forward, and its two gradients


def has_backward(ops: Sequence[Op]) -> bool:
    """Whether anything of a part is trained, or lies after what is."""
    return not any(op.forward_only for op in ops) or any(bool(np.any(op.parameters)) for op in ops)


def trained_flop(op: Op) -> Quantity:
    """Operations of a product forward, less a third for each of its passes that does not run."""
    return op.flop * ((PASSES - op.frozen - op.forward_only) / PASSES)


def relaunched_share(ops: Sequence[Op]) -> float:
    """Kernels that the host launches again under ``selective``, over all of a forward pass."""
    kernels = [op for op in ops if op.kind is not OpKind.COLLECTIVE]
    return sum(op.relaunched for op in kernels) / max(len(kernels), 1)
