"""Gradients sent as two factors of low rank, what they miss added to the next ones: PowerSGD.

As torch's `powerSGD_hook` computes it, operation by operation, for one unit of parameters at a time: a matrix
(n, m) of which factors are smaller by more than `LEAST_GAIN` goes as P (n, r) and Q (m, r), everything else
of the unit whole. Embeddings are sent whole, as the cost model has them; the hook would factor them.

Source: Vogels 2019 (arXiv 1905.13727) algorithms 1 and 2; torch 2.13,
torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from costmodel.updates.compression import LEAST_GAIN

SEED = 0  # of the first factors: torch's own
MOST_GRAM_SCHMIDT = 2
"""Columns up to which torch orthogonalizes them one by one, and by a QR factorization beyond."""


@dataclass(slots=True)
class Missed:
    """What one replica keeps of a unit between steps.

    `error` is what the factors missed of its gradients, by parameter one after the other; `factors` are the
    last Qs, the same on every replica.
    """

    error: torch.Tensor | None = None
    factors: torch.Tensor | None = None


def goes_as_factors(name: str, shape: torch.Size, rank: int) -> bool:
    """Whether a parameter is sent as factors of at most this rank."""
    if len(shape) < 2 or name.startswith("model.embed"):
        return False
    n, m = shape[0], shape[1:].numel()
    return LEAST_GAIN * min(n, m, rank) * (n + m) < n * m


def sides_of(shapes: Mapping[str, torch.Size], rank: int) -> dict[str, tuple[int, int, int]]:
    """The parameters of a unit that go as factors: rows n, columns m and rank r of each, alike ones together.

    >>> sides_of({"model.layers.0.a.weight": torch.Size((64, 32)), "model.norm.weight": torch.Size((32,))}, 4)
    {'model.layers.0.a.weight': (64, 32, 4)}
    """
    sides: dict[tuple[int, int], list[str]] = {}
    for name, shape in shapes.items():
        if goes_as_factors(name, shape, rank):
            sides.setdefault((shape[0], shape[1:].numel()), []).append(name)
    return {name: (n, m, min(n, m, rank)) for (n, m), names in sides.items() for name in names}


def first_factors(shapes: list[tuple[int, int]], seed: int, device: torch.device) -> torch.Tensor:
    """Qs to begin with, one after the other, each (m, r): normal, and the same on every replica."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = [torch.randn(1, m, r, device="cpu").flatten() for m, r in shapes]
    return torch.cat(drawn).to(device)


def seeds() -> Iterator[int]:
    """Of the first factors of each unit, one after the other."""
    drawn = np.random.RandomState(SEED)  # as torch draws them
    while True:
        yield int(drawn.randint(1_000_000_000))


def sum_factored(
    gradients: Mapping[str, torch.Tensor], kept: Missed, *, rank: int, seed: int, replicas: int
) -> Iterator[torch.Tensor]:
    """Sum a unit's gradients over replicas, in place; yields each message, to be summed in place meanwhile.

    Args:
        gradients: this replica's shares of one sum, by parameter.
        kept: What it keeps of them.
        rank: Columns of a factor.
        seed: Of the first factors.
        replicas: How many there are.
    """
    flat = torch.cat([part.flatten() for part in gradients.values()]).mul_(replicas)
    if kept.error is None:
        kept.error = flat.clone()
    else:
        flat.add_(kept.error)
        kept.error.copy_(flat)
    parts = dict(zip(gradients, flat.split([part.numel() for part in gradients.values()]), strict=True))
    sides = sides_of({name: part.shape for name, part in gradients.items()}, rank)
    whole = [part for name, part in parts.items() if name not in sides]
    matrices = [parts[name].view(1, n, m) for name, (n, m, _) in sides.items()]
    left = flat.new_empty(sum(n * r for n, _, r in sides.values()))
    ps = _views(left, [(n, r) for n, _, r in sides.values()])
    if kept.factors is None and matrices:
        kept.factors = first_factors([(m, r) for _, m, r in sides.values()], seed, flat.device)
    right = flat.new_empty(0) if kept.factors is None else kept.factors
    qs = _views(right, [(m, r) for _, m, r in sides.values()])
    for matrix, p, q in zip(matrices, ps, qs, strict=True):
        orthogonalize(q)
        p.copy_(torch.bmm(matrix, q))
    if whole:
        message = torch.cat(whole)
        yield message
        message.div_(replicas)
        for part, value in zip(whole, message.split([part.numel() for part in whole]), strict=True):
            part.copy_(value)
    if matrices:
        yield left
        for matrix, p, q in zip(matrices, ps, qs, strict=True):
            orthogonalize(p)
            q.copy_(torch.bmm(matrix.transpose(1, 2), p))
        yield right
        right.div_(replicas)
        for matrix, p, q in zip(matrices, ps, qs, strict=True):
            matrix.copy_(torch.bmm(p, q.transpose(1, 2)))
    kept.error.sub_(flat)
    for name, gradient in gradients.items():
        gradient.copy_(parts[name].view_as(gradient))


def _views(flat: torch.Tensor, shapes: list[tuple[int, int]]) -> list[torch.Tensor]:
    """Matrices that lie one after the other, each (1, rows, columns)."""
    parts = flat.split([rows * columns for rows, columns in shapes]) if shapes else ()
    return [part.view(1, *shape) for part, shape in zip(parts, shapes, strict=True)]


def orthogonalize(matrices: torch.Tensor) -> None:
    """Make the columns of each matrix (batch, rows, columns) orthonormal in place; one of zeros stays so."""
    if matrices.shape[2] > MOST_GRAM_SCHMIDT:
        matrices.copy_(torch.linalg.qr(matrices)[0])
        return
    for place in range(matrices.shape[2]):
        column, rest = matrices[:, :, place : place + 1], matrices[:, :, place + 1 :]
        length = torch.norm(column, dim=1, keepdim=True)
        column /= torch.where(length == 0, 1.0, length)
        if rest.shape[2]:
            rest -= torch.sum(column * rest, dim=1, keepdim=True) * column
