"""What an optimizer keeps and computes of the trained matrices of an operation.

Legend: ``m`` ≤ ``n`` the sides of a matrix on a rank, ``S`` steps of the Newton–Schulz iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.ops.op import FLOAT_BYTES, LINEAR, Op
from costmodel.updates.optimizers import Optimizer
from topology.base.arrays import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product of an update: `count` times (m, k) @ (k, n) in `dtype`; flops alone where k is 0."""

    dtype: str
    count: Quantity
    m: Quantity
    n: Quantity
    k: Quantity


def matrices_of(op: Op) -> tuple[Quantity, Quantity, Quantity]:
    """How many matrices an operation trains, and their sides, the smaller first; joined ones are alike."""
    each = np.maximum(op.experts, 1) * max(op.joins, 1)
    n, k = op.n / max(op.joins, 1), np.asarray(op.k, dtype=np.float64)
    return each, np.minimum(n, k), np.maximum(n, k)


def uneven_state_bytes(ops: Sequence[Op], optimizer: Optimizer, *, matrices: bool) -> Quantity:
    """Bytes kept beyond `state_bytes` of every trained parameter: squares of sides, vectors kept otherwise.

        Σ matrices 4·copies·(m² + n²) + Σ others (their state − state)·parameters

    Args:
        ops: Operations of a layer, the embedding or the head.
        optimizer: What updates them.
        matrices: Whether their matrices are updated as such; those of the embedding and the head are not.
    """
    total: Quantity = 0.0
    state = optimizer.state_bytes or 0.0
    others = state if optimizer.other_state_bytes is None else optimizer.other_state_bytes
    for op in ops:
        if op.frozen:
            continue
        if not (matrices and op.kind in LINEAR):
            total = total + (others - state) * op.parameters
            continue
        for side in matrices_of(op)[1:]:
            kept = (side <= optimizer.largest_side) * optimizer.side_copies
            total = total + FLOAT_BYTES * matrices_of(op)[0] * kept * side * side
    return total


def update_products(op: Op, optimizer: Optimizer) -> tuple[Product, ...]:
    """Products of one step of one operation's matrices.

    Newton–Schulz: S times X·Xᵀ, its square, and their sum times X: S·(4·m²·n + 2·m³) FLOP a matrix. Sides:
    products with a square of each side; every so many steps its decomposition, as so many products of it.

    Source: Muon (kellerjordan.github.io/posts/muon); Shampoo (arXiv 2309.06497), SOAP (arXiv 2409.11321).
    """
    each, m, n = matrices_of(op)
    products = []
    if optimizer.newton_schulz_steps:
        times = each * optimizer.newton_schulz_steps
        products = [
            Product(dtype="bf16", count=times, m=m, n=m, k=n),
            Product(dtype="bf16", count=times, m=m, n=m, k=m),
            Product(dtype="bf16", count=times, m=m, n=n, k=m),
        ]
    for side, other in ((m, n), (n, m)):
        if not optimizer.side_products:
            break
        here = each * (side <= optimizer.largest_side)
        value = optimizer.root_flop_per_side / 2 / optimizer.root_every
        products.append(Product(dtype="fp32", count=here * optimizer.side_products, m=side, n=other, k=side))
        products.append(Product(dtype="fp32", count=here * value, m=side, n=side, k=side))
    return tuple(products)
