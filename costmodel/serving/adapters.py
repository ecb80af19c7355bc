"""Adapters of requests: every request names one of several LoRA adapters beside one set of weights.

A server keeps the adapters of a batch in buffers, as many as it has slots, all of the largest rank. Beside
every packed product (query-key-value, output, gate and up, down) two kernels go through the tokens: down to
the rank, and up again onto the product's output, each with the matrices of the adapter that a token names.
Tensor-parallel ranks split B of products whose outputs are split, and A of those whose inputs are; the other
matrix is whole.

Legend: ``m`` tokens of one rank, ``r`` rank, ``k`` and ``n`` inputs and outputs of a matrix, ``s`` slots.

Source: Punica (arXiv 2310.18547), S-LoRA (arXiv 2311.03285); vLLM 0.33, `lora/layers`, not fully sharded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from costmodel.models.spec import LayerKind, ModelSpec
from costmodel.serving.deployment import Deployment
from costmodel.serving.engine import ServingStack
from costmodel.updates.adapters import Adapter
from topology.base.arrays import Floats
from topology.base.errors import InputError, shown

HALF_BYTES = 2.0  # adapters and activations
WIDE_BYTES = 4.0  # numbers between the two kernels
KERNELS = 2  # down to the rank, and up


@dataclass(frozen=True, slots=True)
class _Product:
    """A packed product of one rank: its inputs, its outputs side by side, and how many matrices they are."""

    inputs: float
    outputs: float
    matrices: int


def refuse_adapters(model: ModelSpec, stack: ServingStack, adapter: Adapter) -> None:
    """Refuse adapters whose products are not priced, or that the engine is not told of.

    Raises:
        InputError: adapters of experts or latent attention, of another kind than LoRA, or of another engine.
    """
    what, flag = f"adapters beside {shown(model.name)} are not priced", f"--adapter {adapter.words}"
    if not stack.adapter_ranks:
        raise InputError(f"{stack.name} is given no adapters here", flag, "ask for --engine vllm or sglang")
    if adapter.kind != "lora":
        cause = f"{flag}: a served base has the precision of --weights, and engines serve LoRA alone"
        raise InputError(what, cause, f"write --adapter lora:r={adapter.rank}")
    if "attention" in adapter.targets and not model.attention.adapts:
        raise InputError(what, f"{flag}: {model.attention.named}", "name a model with grouped heads")
    if "mlp" in adapter.targets and model.is_moe:
        fix = f"write --adapter lora:r={adapter.rank},targets=attention"
        raise InputError(what, f"{flag}: {model.num_experts} experts would have one each", fix)
    if adapter.rank > max(stack.adapter_ranks):
        cause = f"{flag}; its buffers have ranks up to {max(stack.adapter_ranks)}"
        raise InputError(f"{stack.name} has no buffers of that rank", cause, "give a smaller rank")


def buffer_rank(stack: ServingStack, adapter: Adapter) -> int:
    """The rank that a server's buffers have for an adapter: the next of those that there are.

    >>> from costmodel.serving.engine import serving_stack
    >>> [buffer_rank(serving_stack("vllm"), Adapter(rank=rank)) for rank in (16, 24)]
    [16, 32]
    """
    return min(rank for rank in stack.adapter_ranks if rank >= adapter.rank)


def adapters_layer_bytes(deployment: Deployment, kind: LayerKind) -> float:
    """Bytes of one layer's buffers on one GPU: s·r·(k + n) of every product, in sixteen bits."""
    return deployment.adapters * sum(
        _matrix_bytes(deployment, product) for product in _products(deployment, kind)
    )


def adapters_s(deployment: Deployment, kind: LayerKind, m: Floats) -> Floats:
    """Seconds that adapters take in one layer, at `m` tokens of a rank.

    Both kernels of a product are bound by memory: matrices of the adapters that the tokens name (of s named
    alike, s·(1 − (1 − 1/s)^m) on average), the tokens' inputs, and their outputs read and written.
    """
    slots = deployment.adapters
    seconds = np.zeros_like(np.asarray(m, dtype=np.float64))
    if not slots:
        return seconds
    rate = deployment.hierarchy.gpu.memory_bandwidth_bytes_per_s
    named = slots * (1 - (1 - 1 / slots) ** m)
    rank = _rank(deployment)
    for product in _products(deployment, kind):
        between = 2 * WIDE_BYTES * rank * product.matrices
        token = HALF_BYTES * (product.inputs + 2 * product.outputs) + between
        seconds = seconds + KERNELS * deployment.stack.kernel_s
        seconds = seconds + (named * _matrix_bytes(deployment, product) + m * token) / rate
    return seconds


def _rank(deployment: Deployment) -> int:
    """Rank of the buffers; 0 without adapters."""
    return buffer_rank(deployment.stack, deployment.adapter) if deployment.adapter else 0


def _matrix_bytes(deployment: Deployment, product: _Product) -> float:
    """Bytes of A and B of one adapter beside a packed product: every matrix of it has an A of its own."""
    return HALF_BYTES * _rank(deployment) * (product.matrices * product.inputs + product.outputs)


def _products(deployment: Deployment, kind: LayerKind) -> Iterator[_Product]:
    """The packed products of a layer that have adapters, as one rank has them."""
    if deployment.adapter is None or not deployment.adapters:
        return
    model, tp, targets = deployment.model, deployment.layout.tp, deployment.adapter.targets
    H = model.hidden_size
    if "attention" in targets:
        query = model.num_attention_heads * model.qk_head_dim / tp
        yield _Product(H, query + model.attention.cached_numbers(tp), 3)
        yield _Product(query, H, 1)
    _, width = model.feed_forward(kind.mlp).common_width
    if "mlp" in targets and width:
        matrices = 2 if model.gated_mlp else 1
        yield _Product(H, matrices * width / tp, matrices)
        yield _Product(width / tp, H, 1)
