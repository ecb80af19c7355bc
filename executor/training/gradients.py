"""Gradients after the backward passes: the sums FSDP does not know of, their norm, and clipping.

FSDP has already summed over data-parallel replicas. What is left: copies of a parameter on the tensor axis
that saw different tokens or heads, and tied embeddings on two pipeline stages.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from executor.comm import sharding
from executor.comm.mesh import Meshes
from executor.comm.tensor_parallel import local
from executor.model.transformer import CausalLM
from executor.parallel.pipeline import Pipeline


def finish_gradients(pipeline: Pipeline) -> None:
    """Complete every gradient of this rank: sums over tp, then over tied embeddings."""
    layout = pipeline.layout
    if layout.tp > 1:
        parts = [
            local(parameter.grad)
            for stage in pipeline.stages
            for name, parameter in stage.module.named_parameters()
            if parameter.grad is not None
            and sharding.sums_gradient(name, sequence_parallel=layout.sequence_parallel)
        ]
        sum_together(parts, pipeline.meshes.group("tp"))
    if pipeline.spec.tie_word_embeddings and pipeline.num_stages > 1:
        _sum_tied(pipeline)


def sum_together(tensors: list[torch.Tensor], group: object) -> None:
    """Sum tensors over a group in place, as one message."""
    if not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    start = 0
    for tensor in tensors:
        tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()


def tied_weights(pipeline: Pipeline) -> list[torch.nn.Parameter]:
    """Copies of the tied embedding on this rank: on the first stage, on the last, or both."""
    result = []
    for stage in pipeline.stages:
        for name, parameter in stage.module.named_parameters():
            if name in ("model.embed_tokens.weight", "lm_head.weight"):
                result.append(parameter)
    return result


def _sum_tied(pipeline: Pipeline) -> None:
    """Sum the gradient of a tied embedding over the two stages that hold a copy.

    Stages of one pipeline that hold no copy take part with nothing to add, so the pipeline's own group
    serves.
    """
    copies = tied_weights(pipeline)
    size = _tied_size(pipeline)
    total = torch.zeros(size, device=pipeline.device)
    for parameter in copies:
        if parameter.grad is not None:
            mine = local(parameter.grad).flatten()
            total[: mine.numel()] += mine
    dist.all_reduce(total, group=pipeline.meshes.group("pp"))
    for parameter in copies:
        gradient = local(parameter.grad)
        gradient.copy_(total[: gradient.numel()].view_as(gradient))


def _tied_size(pipeline: Pipeline) -> int:
    """Upper bound, the same on every rank, of the elements of one rank's part of the embedding."""
    rows = -(-pipeline.spec.vocab_size // pipeline.layout.tp)
    return -(-rows // pipeline.meshes.size("shard")) * pipeline.spec.hidden_size


def _copies(name: str, model: CausalLM, meshes: Meshes, *, tied: bool) -> int:
    """How many ranks hold the same part of a parameter."""
    rule = sharding.rule(name)
    copies = meshes.copies(is_expert=rule.is_expert, whole=rule.tensor_dim is None)
    twice = (
        tied and model.spec.tie_word_embeddings and name in ("model.embed_tokens.weight", "lm_head.weight")
    )
    return copies * (2 if twice else 1)


def _squares(pipeline: Pipeline) -> Iterator[torch.Tensor]:
    """Sums of squares of this rank's gradients, each divided by the ranks that hold a copy."""
    tied = pipeline.num_stages > 1
    for stage in pipeline.stages:
        for name, parameter in stage.module.named_parameters():
            if parameter.grad is not None:
                copies = _copies(name, stage.module, pipeline.meshes, tied=tied)
                yield local(parameter.grad).float().square().sum() / copies


def total_norm(pipeline: Pipeline) -> torch.Tensor:
    """Euclidean norm of the whole model's gradient, the same number on every rank."""
    total = torch.zeros((), device=pipeline.device)
    for square in _squares(pipeline):
        total += square
    dist.all_reduce(total)
    return total.sqrt()


def clip(pipeline: Pipeline, norm: torch.Tensor, limit: float) -> None:
    """Scale gradients so that their norm is at most `limit`."""
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for stage in pipeline.stages:
        for parameter in stage.module.parameters():
            if parameter.grad is not None:
                local(parameter.grad).mul_(scale)
