"""Tensor and sequence parallelism: where activations change hands, and modules that hold a shard of a matrix.

A parameter split over the ``tp`` axis is a DTensor, so FSDP and checkpoints know its global shape; compute
takes its local part. The two ends of every split region are one function each, Megatron's f and g (Shoeybi
2019 §3, Korthikanti 2022 §4.2.2): `enter` brings every rank the full sequence, `leave_region` sums the
partial results.

Legend: ``B`` sequences, ``S`` sequence length, ``H`` hidden size, ``V`` vocabulary, ``t`` tensor-parallel
degree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from executor.comm.collectives import ProcessGroup, all_gather, all_reduce, reduce_scatter
from executor.comm.cuts import chunk_bounds
from executor.comm.sequence_first import from_rows, lies_sequence_first, rows_of

SEQUENCE_DIM = 1  # activations are (B, S, H)
LOGITS_AT_ONCE = 1 << 24  # whose fp32 scores the loss holds: 64 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorAxis:
    """This rank's place on the tp axis; `sequence_parallel` splits activations between regions.

    With `overlaps` their messages run under the products beside them (`executor.model.overlapped`).
    """

    group: ProcessGroup
    size: int
    rank: int
    sequence_parallel: bool
    overlaps: bool = False


def local(parameter: torch.Tensor) -> torch.Tensor:
    """Give the part of a parameter that this rank computes with."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


class _GatherSequence(torch.autograd.Function):
    """All-gather along the sequence; the gradient is summed and scattered back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return all_gather(x, SEQUENCE_DIM, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return reduce_scatter(gradients[0], SEQUENCE_DIM, ctx.group), None


class _ScatterSequence(torch.autograd.Function):
    """Sum partial results and keep this rank's part of the sequence; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return reduce_scatter(x, SEQUENCE_DIM, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return all_gather(gradients[0], SEQUENCE_DIM, ctx.group), None


class _Copy(torch.autograd.Function):
    """Identity whose gradient is summed over the group (Megatron's f)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return all_reduce(gradients[0], ctx.group), None


class _Reduce(torch.autograd.Function):
    """Sum over the group whose gradient is the identity (Megatron's g)."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        return all_reduce(x, group)

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def enter(x: torch.Tensor, axis: TensorAxis | None) -> torch.Tensor:
    """Begin a region split over `axis`: every rank gets all of (B, S, H)."""
    if axis is None or axis.size == 1:
        return x
    result: torch.Tensor = (_GatherSequence if axis.sequence_parallel else _Copy).apply(x, axis.group)
    return result


def leave_region(x: torch.Tensor, axis: TensorAxis | None) -> torch.Tensor:
    """End a region split over `axis`: partial (B, S, H) are summed (S/t stays when sequence parallel)."""
    if axis is None or axis.size == 1:
        return x
    result: torch.Tensor = (_ScatterSequence if axis.sequence_parallel else _Reduce).apply(x, axis.group)
    return result


class VocabEmbedding(nn.Embedding):
    """Token embedding over the rows of the table that this rank holds."""

    axis: TensorAxis | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look tokens up, absent rows counting as zero, and sum over the axis."""
        table = local(self.weight)
        if self.axis is None or self.axis.size == 1:
            return functional.embedding(tokens, table)
        start, _ = chunk_bounds(self.num_embeddings, self.axis.size, self.axis.rank)
        if self.axis.sequence_parallel:  # what is scattered lies sequence first
            tokens = tokens.t()
        inside = (tokens >= start) & (tokens < start + table.shape[0])
        rows = functional.embedding(torch.where(inside, tokens - start, 0), table)
        partial = rows * inside.unsqueeze(-1)
        return leave_region(partial.transpose(0, 1) if self.axis.sequence_parallel else partial, self.axis)


class _VocabCrossEntropy(torch.autograd.Function):
    """Negative log-likelihood per token over logits whose vocabulary is split.

    Kept are the logits as they came and one log-sum-exp a token; fp32 scores exist for a chunk of tokens at a
    time, and the gradient takes the logits' own place.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, start: int, group: ProcessGroup | None
    ) -> torch.Tensor:
        turned = lies_sequence_first(logits)
        rows, wanted = rows_of(logits, sequence_first=turned), (targets.t() if turned else targets).flatten()
        peak = rows.amax(-1).float()
        peak = peak if group is None else all_reduce(peak, group, "max")
        total = torch.empty_like(peak)
        for part in _chunks(rows):
            total[part] = _scores(rows, peak, part).exp_().sum(-1)
        inside = (wanted >= start) & (wanted < start + rows.shape[-1])
        column = torch.where(inside, wanted - start, 0)
        chosen = (rows.gather(-1, column.unsqueeze(-1)).squeeze(-1).float() - peak) * inside
        if group is not None:
            chosen, total = all_reduce(torch.stack((chosen, total)), group).unbind(0)
        ctx.save_for_backward(logits, peak + total.log(), column, inside)
        losses = total.log() - chosen
        return losses.unflatten(0, targets.shape[::-1]).t() if turned else losses.view_as(targets)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        logits, log_total, column, inside = ctx.saved_tensors
        turned = lies_sequence_first(logits)
        rows = rows_of(logits, sequence_first=turned)
        outer = (gradients[0].t() if turned else gradients[0]).flatten()
        hit = -torch.where(inside, outer, 0.0)
        for part in _chunks(rows):
            gradient = _scores(rows, log_total, part).exp_().mul_(outer[part].unsqueeze(-1))
            gradient.scatter_add_(-1, column[part].unsqueeze(-1), hit[part].unsqueeze(-1))
            rows[part] = gradient  # the graph is used once: no second copy
        return from_rows(rows, logits, sequence_first=turned), None, None, None


def _chunks(rows: torch.Tensor) -> Iterator[slice]:
    """Rows whose fp32 scores are held at once."""
    step = max(1, LOGITS_AT_ONCE // rows.shape[-1])
    for start in range(0, rows.shape[0], step):
        yield slice(start, min(start + step, rows.shape[0]))


def _scores(rows: torch.Tensor, less: torch.Tensor, part: slice) -> torch.Tensor:
    """Logits of some rows less a number for each, in fp32."""
    return rows[part].to(torch.float32, copy=True).sub_(less[part].unsqueeze(-1))


def token_losses(
    logits: torch.Tensor, targets: torch.Tensor, axis: TensorAxis | None, vocab_size: int
) -> torch.Tensor:
    """Negative log-likelihood of each target, nats, fp32; the vocabulary may be split over `axis`.

    nll = log Σ_v exp(z_v) − z_target, with the sum taken over every rank's part of V.

    Args:
        logits: (B, S, V/t) of this rank; the backward pass writes their gradient over them.
        targets: (B, S) token ids.
        axis: The axis the vocabulary is split over, or None.
        vocab_size: V.
    """
    split = axis is not None and axis.size > 1
    start = chunk_bounds(vocab_size, axis.size, axis.rank)[0] if axis is not None and split else 0
    result: torch.Tensor = _VocabCrossEntropy.apply(
        logits, targets, start, axis.group if axis and split else None
    )
    return result
