"""What the cost model says a rank computes, sends and stores equals what the executor does, number by number."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from costmodel.layout import ParallelLayout
from costmodel.models.routing import Routing
from costmodel.models.spec import ModelSpec
from costmodel.updates.adapters import parse_adapter

pytest.importorskip("torch")

from executor.model.products.formats import EightBits
from executor.validation.expected_counts import compare_counts
from executor.validation.fake_rank import RankTask
from tests.counts import cases_of_run

DENSE = ModelSpec(
    name="dense",
    num_layers=4,
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=8,
    vocab_size=256,
    max_sequence_length=64,
)
MOE = dataclasses.replace(
    DENSE,
    name="moe",
    num_experts=4,
    num_experts_per_token=2,
    moe_intermediate_size=32,
    num_dense_layers=1,
    shared_expert_size=32,
)
SELECTING = dataclasses.replace(
    MOE,
    name="selecting",
    router_bias=True,
    routing=Routing(scoring_func="sigmoid", n_group=2, topk_group=1, bias_selects=True),
)
LATENT = dataclasses.replace(
    DENSE,
    name="latent",
    num_key_value_heads=8,
    kv_lora_rank=32,
    q_lora_rank=32,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=8,
    head_dim=12,
)
DEEPSEEK = dataclasses.replace(
    LATENT,
    name="latent with experts",
    num_experts=4,
    num_experts_per_token=2,
    moe_intermediate_size=32,
    num_dense_layers=1,
    shared_expert_size=32,
    router_bias=True,
    routing=SELECTING.routing,
)
TIED = dataclasses.replace(DENSE, name="tied", tie_word_embeddings=True)
ODD = dataclasses.replace(DENSE, name="odd", vocab_size=252, intermediate_size=120)

WINDOWS = dataclasses.replace(
    DENSE,
    name="windows",
    attention_sinks=True,
    sliding_window=8,
    num_sliding_layers=2,
    sliding_window_pattern=2,
)

CAPPED = dataclasses.replace(
    WINDOWS, name="capped", attention_sinks=False, attn_logit_softcapping=5.0, final_logit_softcapping=5.0
)
FULL = dataclasses.replace(CAPPED, name="full", sliding_window=None, num_sliding_layers=0)

SP = {"sequence_parallel": True}
CASES: dict[str, tuple[ModelSpec, ParallelLayout, int]] = {
    "one GPU": (DENSE, ParallelLayout(), 0),
    "tensor parallel": (DENSE, ParallelLayout(tp=4), 0),
    "sequence parallel": (DENSE, ParallelLayout(tp=4, **SP), 0),
    "replicas": (DENSE, ParallelLayout(dp=4), 0),
    "ZeRO-1": (DENSE, ParallelLayout(dp=4, zero_stage=1), 0),
    "ZeRO-2": (DENSE, ParallelLayout(dp=4, zero_stage=2), 0),
    "ZeRO-3": (DENSE, ParallelLayout(dp=4, zero_stage=3), 0),
    "shards that do not divide": (ODD, ParallelLayout(dp=8, zero_stage=3), 0),
    "hybrid shards": (DENSE, ParallelLayout(dp=4, zero_stage=3, shard_degree=2), 0),
    "hybrid shards of the optimizer": (DENSE, ParallelLayout(dp=4, zero_stage=1, shard_degree=2), 0),
    "hybrid shards of experts": (MOE, ParallelLayout(dp=8, ep=2, zero_stage=3, shard_degree=4), 0),
    "latent attention": (LATENT, ParallelLayout(tp=2, **SP), 0),
    "latent attention over a ring": (LATENT, ParallelLayout(cp=2), 0),
    "whole experts, sharded": (MOE, ParallelLayout(dp=4, zero_stage=3), 0),
    "first stage": (DENSE, ParallelLayout(pp=2, tp=2, dp=2, zero_stage=1, **SP), 0),
    "last stage": (DENSE, ParallelLayout(pp=2, tp=2, dp=2, zero_stage=1, **SP), 1),
    "tied embeddings": (TIED, ParallelLayout(dp=2, zero_stage=1), 0),
    "experts": (MOE, ParallelLayout(dp=4, ep=4, zero_stage=1), 0),
    "experts with tensor parallelism": (MOE, ParallelLayout(dp=4, tp=2, ep=4, zero_stage=3, **SP), 0),
    "ZeRO-3 in a pipeline": (DENSE, ParallelLayout(pp=2, dp=4, zero_stage=3), 0),
    "whole experts in a pipeline": (MOE, ParallelLayout(pp=2, dp=2, zero_stage=1), 0),
    "experts over tensor ranks": (MOE, ParallelLayout(tp=2, dp=2, ep=2, zero_stage=1, **SP), 0),
    "experts cut and spread": (MOE, ParallelLayout(tp=2, dp=2, ep=2, expert_tp=2, zero_stage=1, **SP), 0),
    "experts cut over fewer ranks": (
        MOE,
        ParallelLayout(tp=4, dp=2, ep=4, expert_tp=2, zero_stage=3, **SP),
        0,
    ),
    "experts cut over all ranks": (MOE, ParallelLayout(tp=2, cp=2, expert_tp=4, **SP), 0),
    "experts cut beside latent attention": (DEEPSEEK, ParallelLayout(tp=2, expert_tp=2, **SP), 0),
    "cut experts in a pipeline": (
        MOE,
        ParallelLayout(pp=2, tp=2, dp=2, ep=2, expert_tp=2, zero_stage=1, **SP),
        1,
    ),
    "experts in a pipeline": (MOE, ParallelLayout(pp=2, dp=4, ep=2, zero_stage=1), 1),
    "a bias that only selects": (SELECTING, ParallelLayout(pp=2, dp=4, ep=2, zero_stage=3), 1),
    "Ulysses": (DENSE, ParallelLayout(cp=2, dp=2, cp_kind="ulysses", zero_stage=1), 0),
    "ring": (DENSE, ParallelLayout(cp=4), 0),
    "gathered keys": (DENSE, ParallelLayout(cp=2, dp=2, cp_kind="allgather", zero_stage=1), 0),
    "soft caps over gathered keys": (FULL, ParallelLayout(cp=2, cp_kind="allgather"), 0),
    "windows and sinks by heads": (WINDOWS, ParallelLayout(cp=2, cp_kind="ulysses"), 0),
    "soft caps": (CAPPED, ParallelLayout(tp=2, dp=2, zero_stage=3, **SP), 0),
    "windows and sinks": (WINDOWS, ParallelLayout(tp=2, dp=2, zero_stage=3, **SP), 0),
    "ring with tensor parallelism": (DENSE, ParallelLayout(cp=2, tp=2, dp=2, zero_stage=2, **SP), 0),
}


ALIKE = (
    "tensor parallel", "replicas", "ZeRO-1", "hybrid shards of the optimizer", "latent attention over a ring",
    "whole experts, sharded", "first stage", "ZeRO-3 in a pipeline", "whole experts in a pipeline",
    "experts over tensor ranks", "experts cut over fewer ranks", "cut experts in a pipeline", "experts in a pipeline",
    "gathered keys", "windows and sinks by heads", "soft caps", "ring",
)  # fmt: skip
"""Of the nightly run: cases whose ways the suite goes in others."""


@pytest.mark.parametrize("name", cases_of_run(CASES, ALIKE))
def test_every_count_equals_the_cost_model(name: str) -> None:
    """FLOPs, messages and bytes by part, phase and axis, and parameters: equal, not close."""
    spec, layout, stage = CASES[name]
    if layout.pp == 1:  # two layers show all that a stage repeats, and one of each kind
        spec = dataclasses.replace(spec, num_layers=2, num_sliding_layers=spec.num_sliding_layers // 2)
    task = RankTask(
        spec=spec,
        layout=layout,
        sequence_length=32,
        num_microbatches=2,
        layers_of_stage=tuple(spec.num_layers // layout.pp for _ in range(layout.pp)),
        recompute_of_stage=(0,) * layout.pp,
        stage=stage,
    )
    terms = compare_counts(task)
    assert {term.name: term.measured for term in terms} == {term.name: term.expected for term in terms}
    assert sum(term.measured > 0 for term in terms) == len(terms) >= 9


@pytest.mark.parametrize(
    ("eight_bits", "recompute"), [("fp8", "none"), ("fp8", "selective-op"), ("mxfp8", "none")]
)
def test_products_in_eight_bits_are_counted_alike(eight_bits: EightBits, recompute: str) -> None:
    """They are as many, and messages stay in sixteen bits."""
    task = RankTask(
        spec=dataclasses.replace(DENSE, head_dim=16),
        layout=ParallelLayout(tp=2, dp=2, pp=2, zero_stage=1, recompute=recompute, **SP),  # type: ignore[arg-type]
        sequence_length=32,
        num_microbatches=2,
        layers_of_stage=(2, 2),
        recompute_of_stage=(0, 0),
        stage=1,
        eight_bits=eight_bits,
    )
    terms = compare_counts(task)
    assert {term.name: term.measured for term in terms} == {term.name: term.expected for term in terms}


EXPERTS_IN_EIGHT_BITS: dict[str, dict[str, Any]] = {
    "spread": {"dp": 2, "ep": 2},
    "sharded": {"dp": 4, "tp": 2, "ep": 4, "zero_stage": 3, **SP},
    "cut": {"dp": 2, "tp": 2, "ep": 2, "expert_tp": 2, "zero_stage": 1, **SP},
}
NARROW = [(name, eight_bits) for name in EXPERTS_IN_EIGHT_BITS for eight_bits in ("fp8", "mxfp8")]


@pytest.mark.parametrize(
    ("name", "eight_bits"),
    cases_of_run(NARROW, [("spread", "fp8"), ("spread", "mxfp8"), ("sharded", "fp8"), ("cut", "mxfp8")]),
)
def test_experts_in_eight_bits_are_counted_alike(name: str, eight_bits: EightBits) -> None:
    """Rows that pad a group to whole units are no products."""
    task = RankTask(
        spec=dataclasses.replace(MOE, moe_intermediate_size=64, shared_expert_size=64, head_dim=16),
        layout=ParallelLayout(**EXPERTS_IN_EIGHT_BITS[name]),
        sequence_length=32,
        num_microbatches=2,
        layers_of_stage=(MOE.num_layers,),
        recompute_of_stage=(0,),
        stage=0,
        eight_bits=eight_bits,
    )
    terms = compare_counts(task)
    assert {term.name: term.measured for term in terms} == {term.name: term.expected for term in terms}


LORA, ATTENTION, MLP = "lora:r=4", "lora:r=4,targets=attention", "lora:r=4,targets=mlp"
ADAPTED: dict[str, tuple[ModelSpec, dict[str, Any], str, int]] = {
    "one GPU": (DENSE, {}, LORA, 0),
    "tensor parallel": (DENSE, {"tp": 2}, LORA, 0),
    "sequence parallel": (DENSE, {"tp": 4, **SP}, LORA, 0),
    "of attention": (DENSE, {"tp": 2, **SP}, ATTENTION, 0),
    "of feed-forward": (DENSE, {"tp": 2, **SP}, MLP, 0),
    "replicas": (DENSE, {"dp": 4}, LORA, 0),
    "ZeRO-1": (DENSE, {"dp": 4, "zero_stage": 1}, LORA, 0),
    "ZeRO-3": (DENSE, {"dp": 4, "zero_stage": 3}, LORA, 0),
    "hybrid shards": (DENSE, {"dp": 4, "zero_stage": 3, "shard_degree": 2}, LORA, 0),
    "tied embeddings": (TIED, {"dp": 2, "zero_stage": 3}, LORA, 0),
    "first stage": (DENSE, {"pp": 2, "tp": 2, "dp": 2, "zero_stage": 1, **SP}, LORA, 0),
    "last stage": (TIED, {"pp": 2, "tp": 2, "dp": 2, "zero_stage": 1, **SP}, LORA, 1),
    "ZeRO-3 in a pipeline": (ODD, {"pp": 2, "dp": 4, "zero_stage": 3}, MLP, 0),
    "ring": (DENSE, {"cp": 2, "tp": 2, "dp": 2, "zero_stage": 2, **SP}, LORA, 0),
    "latent attention": (LATENT, {"tp": 2, **SP}, LORA, 0),
    "beside experts": (MOE, {"tp": 2, "dp": 2, "ep": 2, "expert_tp": 2, "zero_stage": 3, **SP}, ATTENTION, 0),
    "beside a bias that only selects": (SELECTING, {"pp": 2, "dp": 4, "ep": 2, "zero_stage": 3}, ATTENTION, 1),
}  # fmt: skip


ADAPTED_ALIKE = (
    "tensor parallel", "of attention", "replicas", "ZeRO-1", "first stage", "ZeRO-3 in a pipeline", "ring",
    "one GPU", "of feed-forward", "hybrid shards", "tied embeddings",
)  # fmt: skip


@pytest.mark.parametrize("name", cases_of_run(ADAPTED, ADAPTED_ALIKE))
def test_adapters_are_counted_alike(name: str) -> None:
    """Gradients of frozen weights are neither computed nor sent, nor anything below the first adapter."""
    spec, fields, words, stage = ADAPTED[name]
    layout = ParallelLayout(**fields)
    task = RankTask(
        spec=spec,
        layout=layout,
        sequence_length=32,
        num_microbatches=2,
        layers_of_stage=(spec.num_layers // layout.pp,) * layout.pp,
        recompute_of_stage=(0,) * layout.pp,
        stage=stage,
        adapter=parse_adapter(words),
    )
    terms = compare_counts(task)
    assert {term.name: term.measured for term in terms} == {term.name: term.expected for term in terms}
    assert sum(term.measured > 0 for term in terms) == len(terms) >= 9


def test_a_difference_is_named() -> None:
    """A wrong expectation is reported by part, phase, axis and kind."""
    from collections import Counter

    from executor.validation.counts import CountKey
    from executor.validation.expected_counts import terms_of

    key = CountKey(part="layer", phase="forward", kind="all_gather", axis="tp")
    (term,) = terms_of("message_bytes", "B", Counter({key: 8}), Counter({key: 16}))
    assert (term.name, term.equal) == ("layer forward tp all_gather message bytes", False)
