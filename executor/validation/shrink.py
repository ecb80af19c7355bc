"""A plan made small enough to run here: the same axes, kinds of layers and schedule, fewer of everything.

Legend: ``P`` pipeline ranks, ``V`` virtual stages of a rank, ``M`` microbatches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.layout import AXIS_FIELDS, PLAIN_SCHEDULE, ParallelLayout
from costmodel.models.spec import ModelSpec, with_layers
from costmodel.parallel.axes import RANK_AXES
from costmodel.updates.compression import parse_compression
from executor.validation.reference import ReferenceJob
from planner.plan import Plan

MOST_RANKS = 8
SMALL = 2  # degree of an axis that the plan uses
KEEP_FIRST = tuple(name for name in AXIS_FIELDS if name in RANK_AXES)  # axes that stay when not all fit
SEQUENCE_LENGTH = 32
WIDENED = {"mxfp8": 2}  # sides of products, so that half of one is a whole block; others are of sixteen
STEPS = 3
SMALL_RANK = 4


def small_case(plan: Plan, most_ranks: int = MOST_RANKS) -> ReferenceJob:
    """Shrink a plan to a case that `run_reference` and `run_layout` compute in seconds."""
    layout = small_layout(plan.layout, most_ranks, experts=plan.request.model.is_moe)
    split = small_split(plan.layers_of_stage, layout.pp * layout.virtual_stages)
    widened = WIDENED.get(plan.request.job.precision, 1)
    spec = small_model(plan.request.model, sum(split), layout, widened)
    recomputed = tuple(1 if count else 0 for count in pick(plan.recompute_of_stage, layout.pp))
    return ReferenceJob(
        spec=spec,
        layout=layout,
        sequence_length=SEQUENCE_LENGTH * widened,
        num_microbatches=2 * layout.pp,
        layers_of_stage=split,
        recompute_of_stage=recomputed if layout.recompute == "full" else None,
        steps=STEPS,
        optimizer=plan.request.job.optimizer,
        adapter=plan.request.job.adapter,
        compression=small_compression(plan.request.job.gradient_compression),
    )


def small_compression(text: str | None) -> str | None:
    """The same compression, of a rank that factors narrow matrices.

    >>> small_compression("powersgd:32"), small_compression("bf16")
    ('powersgd:4', 'bf16')
    """
    how = None if text is None else parse_compression(text)
    return text if how is None or not how.factors else f"{how.kind}:{min(how.rank, SMALL_RANK)}"


def small_layout(layout: ParallelLayout, most_ranks: int, *, experts: bool) -> ParallelLayout:
    """Axes in use at degree two, as many of them as fit; sharding and experts follow.

    >>> small = small_layout(ParallelLayout(tp=8, pp=4, dp=16, zero_stage=1), 8, experts=False)
    >>> small.tp, small.pp, small.dp, small.zero_stage
    (2, 2, 2, 1)
    """
    degrees: dict[str, Any] = dict.fromkeys(KEEP_FIRST, 1)
    left = most_ranks
    for axis in KEEP_FIRST:
        if getattr(layout, axis) > 1 and left >= SMALL:
            degrees[axis], left = SMALL, left // SMALL
    block = degrees["dp"] * degrees["cp"] * degrees["tp"]
    copies = degrees["dp"] * degrees["cp"]
    ep = SMALL if experts and layout.ep > 1 and block >= SMALL else 1
    expert_tp = min(layout.expert_tp, degrees["tp"]) if block // ep >= SMALL else 1
    alone = degrees["pp"] == 1
    return replace(
        layout,
        **degrees,
        ep=ep,
        expert_tp=expert_tp,
        microbatch_size=1,
        virtual_stages=1 if alone else min(layout.virtual_stages, SMALL),
        schedule=PLAIN_SCHEDULE if alone else layout.schedule,
        shard_degree=None if layout.shard_degree is None or copies == 1 else 1,
        zero_stage=layout.zero_stage if copies > 1 else min(layout.zero_stage, 1),
    )


def pick(values: tuple[int, ...], count: int) -> tuple[int, ...]:
    """First, last and evenly spaced values between.

    >>> pick((5, 6, 6, 7), 2)
    (5, 7)
    """
    if count == 1:
        return values[:1]
    return tuple(values[round(i * (len(values) - 1) / (count - 1))] for i in range(count))


def small_split(layers_of_stage: tuple[int, ...], stages: int) -> tuple[int, ...]:
    """One layer per stage, two where the plan has more than its shortest stage.

    >>> small_split((18, 20, 20, 19), 2)
    (1, 2)
    """
    shortest = min(layers_of_stage)
    return tuple(1 + (count > shortest) for count in pick(layers_of_stage, stages))


def small_model(spec: ModelSpec, num_layers: int, layout: ParallelLayout, widened: int = 1) -> ModelSpec:
    """The same architecture with few, narrow layers and a small vocabulary; `widened` so many times."""
    num_layers = max(num_layers, 1)
    heads = 8
    kv_heads = heads if spec.num_key_value_heads == spec.num_attention_heads else heads // 2
    experts = 2 * max(2, layout.ep)
    routing = replace(spec.routing, n_group=2, topk_group=1) if spec.routing.n_group > 1 else spec.routing
    moe: dict[str, Any] = {
        "routing": routing,
        "num_experts": experts,
        "num_experts_per_token": min(spec.num_experts_per_token, 2),
        "moe_intermediate_size": 16 * widened**2,  # half of it is whole blocks
        "shared_expert_size": 16 * widened**2 if spec.shared_expert_size else 0,
    }
    latent: dict[str, Any] = {
        "q_lora_rank": 16 * widened if spec.q_lora_rank else 0,
        "kv_lora_rank": 16 * widened,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8 if widened == 1 else 16 * widened,  # rows of keys hold both
        "v_head_dim": 8,
    }
    return replace(
        with_layers(spec, num_layers, min(spec.num_dense_layers, num_layers - 1, 1)),
        unmodelled=(),
        hidden_size=32 * widened,
        intermediate_size=64 * widened,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads if spec.attention.shares_keys else heads,
        head_dim=8 * widened,
        vocab_size=64,
        max_sequence_length=SEQUENCE_LENGTH * widened,
        learned_positions=SEQUENCE_LENGTH * widened if spec.learned_positions else 0,
        sliding_window=4 if spec.sliding_window else None,
        **(moe if spec.is_moe else {}),
        **(latent if spec.attention.name == "latent" else {}),
    )
