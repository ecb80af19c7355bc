"""Mean loss over held-out sequences, the same for every layout, without a trace in the training.

Forward passes only, in the order of the training's own program. The last global batch may be short: what
fills it up carries no weight. Nothing is drawn, no gradient is kept, and the routers' balance is not touched,
so that a run with evaluations trains as one without.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from executor.comm.host_copies import scalar
from executor.comm.tensor_parallel import token_losses
from executor.data.held_out import HeldOut
from executor.parallel.pipeline import LossFunction, Pipeline, run_forward
from executor.torch_internals.sharded import end_forwards
from executor.training import batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Mean loss over the tokens of `samples` held-out sequences after `step` steps; nats."""

    step: int
    loss: float
    samples: int
    took_s: float


def held_out_loss(
    pipeline: Pipeline,
    held_out: HeldOut,
    *,
    step: int,
    global_batch_size: int,
    sequence_length: int,
    document_end: int | None = None,
    stop: Callable[[], bool],
) -> Evaluation | None:
    """Evaluate on every rank; None on all of them once any has been asked to stop."""
    began_s = time.perf_counter()
    loss, total = _weighted_loss(pipeline), torch.zeros((), dtype=torch.float64, device=pipeline.device)
    kept = [None if stage.balance is None else stage.balance.total for stage in pipeline.stages]
    for first in range(0, held_out.samples, global_batch_size):
        read = batches.read_microbatches(
            pipeline,
            held_out.source,
            range(first, first + global_batch_size),
            sequence_length=sequence_length,
            end=held_out.samples,
            document_end=document_end,
        )
        share = run_forward(pipeline, read.tokens, read.targets, loss, read.documents)
        share = share.double() / pipeline.layout.tp
        shared = torch.stack((share, scalar(float(stop()), share)))
        dist.all_reduce(shared)
        total += shared[0]
        if shared[1] > 0:
            break
    for stage, balance in zip(pipeline.stages, kept, strict=True):
        if stage.balance is not None and balance is not None:
            stage.balance.total = balance
        end_forwards(stage.module)
    if shared[1] > 0:
        return None
    return Evaluation(
        step=step,
        loss=float(total) / (held_out.samples * sequence_length),
        samples=held_out.samples,
        took_s=time.perf_counter() - began_s,
    )


def _weighted_loss(pipeline: Pipeline) -> LossFunction:
    """Loss function of the last stage: the sum over a microbatch's targets, those of no sequence left out."""
    axis, vocab_size = pipeline.stages[-1].module.axis, pipeline.spec.vocab_size

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        there = targets != batches.NO_TARGET
        return (token_losses(logits, targets.where(there, 0), axis, vocab_size) * there).sum()

    return loss
