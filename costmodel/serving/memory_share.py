"""The share of a GPU's memory that an engine takes for weights and cache where it is told none.

vLLM and TensorRT-LLM have one number. SGLang keeps memory free by a rule of its release, in MiB of M:

    share = (M − r) / M,   r = c + 1.5·max(m, 2048) + 128·N + 2·g + d·g·(3, or 4.5 of g > 300) + p

(`MemoryReserve`). At least 10 GiB are free of a GPU with more than 60. Servers that see take less, by
the size of their tower.

Legend: ``m`` tokens of a step of an attention rank, ``N`` GPUs of a replica, ``g`` requests of the largest
captured decode step, ``d`` attention ranks where there are several, ``p`` of captured prompts.
"""

from __future__ import annotations

from costmodel.models.attention import LatentAttention
from costmodel.models.compressed_attention import CompressedAttention
from costmodel.models.tower import Tower
from costmodel.serving.deployment import Deployment
from costmodel.serving.engine import GraphTier, MemoryReserve
from topology.base.units import MIB

_LARGE_MIB, _LARGE_LEAST_MIB = 60 * 1024, 10 * 1024
"""Memory of a large GPU, and what is kept free of it at least (SGLang 0.5.3 to 0.5.23)."""
_LEAST_STEP = 2048
_WIDE_GRAPH = 300
"""Requests of a decode step beyond which attention ranks keep half as much again (the same)."""
_SEVERAL = 4
"""GPUs that share a layer from which larger decode steps are captured (the same)."""
_PROMPT_STEPS = ((32, 4), (256, 16), (512, 32), (1024, 64), (4096, 256))
_LONG_PROMPT_STEP = 512
"""Sizes of captured prompts: up to each first number by each second one (SGLang 0.5.10 to 0.5.23)."""
_PLAIN_TOWER = 24 * 1024**2
"""Layers times hidden size squared of ViT-L/14, whose servers take 0.95 (`adjust_mem_fraction_for_vlm`)."""


def memory_share(deployment: Deployment, *, token_budget: int) -> float:
    """Share of its memory that the engine takes where it is told none.

    Args:
        deployment: The server; its stack is of its release, with the graphs that it captures.
        token_budget: Tokens of a step of an attention rank.

    >>> from topology.builders import default_cluster
    >>> from costmodel.models.catalog import model
    >>> from costmodel.serving.deployment import ServingLayout
    >>> from costmodel.serving.engine import at_version, serving_stack
    >>> def share(version, gpus):
    ...     return memory_share(
    ...         Deployment(
    ...             model=model("qwen3-32b"),
    ...             hierarchy=default_cluster("h100-sxm", 8).hierarchy,
    ...             layout=ServingLayout(tp=gpus),
    ...             stack=at_version(serving_stack("sglang"), version),
    ...         ),
    ...         token_budget=8192,
    ...     )
    >>> share("0.4.5", 8), share("0.5.6", 1), share("0.5.13", 1), share("0.5.13", 2)
    (0.81, 0.835, 0.83, 0.828)
    """
    stack, layout = deployment.stack, deployment.layout
    if not stack.reserves:
        return stack.memory_fraction
    rule, gpu = stack.reserves[-1], deployment.hierarchy.gpu
    if rule.shares:
        return next(share for gpus, share in rule.shares if layout.stage_gpus >= gpus)
    memory = round(gpu.memory_bytes / MIB)
    kept = _reserve_mib(deployment, rule, _tier(rule, memory), token_budget, memory)
    share = round((memory - kept) / memory, 3)
    return share * _tower_share(deployment.model.encoder)


def _tier(rule: MemoryReserve, memory_mib: int) -> GraphTier:
    """The row of GPUs with so much memory."""
    return next(tier for tier in rule.tiers if memory_mib >= 1024 * tier.least_gib)


def _reserve_mib(
    deployment: Deployment, rule: MemoryReserve, tier: GraphTier, token_budget: int, memory_mib: int
) -> float:
    """What is kept free, MiB."""
    layout, stack = deployment.layout, deployment.stack
    drafts = rule.draft_mib * (deployment.draft_tokens > 0)
    several = layout.attention_dp > 1
    if tier.reserve_gib:
        kept = 1024 * (tier.reserve_gib + tier.gpu_gib * layout.num_gpus)
        return kept + drafts + rule.attention_dp_mib * several
    batch = tier.few_gpus_batch if layout.stage_gpus < _SEVERAL else tier.batch
    batch = batch if not stack.graph_batch else stack.graph_batch
    tokens = token_budget * (layout.attention_dp if rule.counts_all_ranks else 1)
    kept = 512 + 1.5 * max(tokens, _LEAST_STEP) + 128 * layout.num_gpus
    kept += 2 * batch * (stack.graph_batch != 0)
    if several:
        kept += batch * layout.attention_dp * (3 if batch <= _WIDE_GRAPH else 4.5)
    kept += _prompt_graphs_mib(deployment, token_budget)
    return max(kept, _LARGE_LEAST_MIB if memory_mib > _LARGE_MIB else 0) + drafts


def _prompt_graphs_mib(deployment: Deployment, token_budget: int) -> float:
    """What captured prompts take: 8 MiB a size, 1.5 GiB of latent attention; 0 where none is captured."""
    if not deployment.stack.prompt_graph_tokens:
        return 0.0
    if isinstance(deployment.model.attention, LatentAttention | CompressedAttention):
        return 1536.0
    sizes, reached = 0, 0
    for last, step in (*_PROMPT_STEPS, (token_budget, _LONG_PROMPT_STEP)):
        sizes += max(min(last, token_budget) - reached, 0) // step
        reached = max(reached, last)
    return 8.0 * sizes


def _tower_share(tower: Tower | None) -> float:
    """Of that share, what a server that sees takes; 1 of one that does not."""
    if tower is None:
        return 1.0
    size = tower.num_layers * tower.hidden_size**2 / _PLAIN_TOWER
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (size - 1)))
