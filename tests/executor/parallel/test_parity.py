"""Every layout computes what one process computes: losses of three optimizer steps and every gradient, in fp32."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from costmodel.layout import ParallelLayout
from costmodel.models.rotary import RopeScaling, Rotary
from costmodel.models.routing import Routing
from costmodel.models.spec import ModelSpec

pytest.importorskip("torch")

from executor.training.optimizer import OptimizerSettings
from executor.validation.reference import Outcome, ReferenceJob, outcome_difference, run_layout, run_reference
from tests.counts import cases_of_run

TOLERANCE = 1e-5
SETTINGS = OptimizerSettings(learning_rate=1e-2, warmup_steps=2, total_steps=10)

DENSE = ModelSpec(
    name="tiny-dense",
    num_layers=4,
    hidden_size=32,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=61,
    max_sequence_length=64,
)
WIDE = dataclasses.replace(
    DENSE, name="tiny-wide", num_attention_heads=8, num_key_value_heads=4, num_layers=8
)
TIED = dataclasses.replace(DENSE, name="tiny-tied", tie_word_embeddings=True)
EXPERTS = {"num_experts": 4, "num_experts_per_token": 2, "moe_intermediate_size": 32}
MOE = dataclasses.replace(
    DENSE, name="tiny-moe", **EXPERTS, shared_expert_size=32, num_dense_layers=1, router_aux_loss_coef=0.1
)
MLA = dataclasses.replace(
    DENSE,
    name="tiny-mla",
    num_key_value_heads=4,
    kv_lora_rank=16,
    q_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=8,
    v_head_dim=6,
)
GPT = dataclasses.replace(
    TIED,
    name="tiny-gpt",
    norm="layernorm",
    learned_positions=64,
    gated_mlp=False,
    activation="gelu_tanh",
    qkv_bias=True,
    attention_output_bias=True,
    mlp_bias=True,
)
GPT_OSS = dataclasses.replace(
    DENSE,
    name="tiny-gpt-oss",
    **EXPERTS,
    qkv_bias=True,
    attention_output_bias=True,
    mlp_bias=True,
    router_bias=True,
    attention_sinks=True,
    swiglu_limit=0.05,
    sliding_window=4,
    num_sliding_layers=2,
    sliding_window_pattern=2,
)
NEMOTRON = dataclasses.replace(
    DENSE,
    name="tiny-nemotron",
    norm="layernorm1p",
    gated_mlp=False,
    activation="relu2",
    rotary=Rotary(fraction=0.5),
)
LLAMA_31 = dataclasses.replace(
    DENSE,
    name="tiny-llama-3.1",
    rotary=Rotary(
        theta=500.0, scaling=RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=16)
    ),
)
GEMMA = dataclasses.replace(
    TIED,
    name="tiny-gemma",
    norm="rmsnorm1p",
    norms_per_layer=4,
    scale_embeddings=True,
    activation="gelu_tanh",
    qk_norm=True,
    query_pre_attn_scalar=5.0,
    attn_logit_softcapping=0.5,
    final_logit_softcapping=0.1,
    sliding_window=5,
    num_sliding_layers=2,
    sliding_window_pattern=2,
    rotary=Rotary(theta=100.0, sliding_theta=10.0, scaling=RopeScaling(kind="linear", factor=4.0)),
)
DEEPSEEK = dataclasses.replace(
    MLA,
    name="tiny-deepseek",
    num_experts=8,
    num_experts_per_token=2,
    moe_intermediate_size=16,
    shared_expert_size=16,
    num_dense_layers=1,
    router_bias=True,
    router_aux_loss_coef=0.1,
    routing=Routing(
        scoring_func="sigmoid", routed_scaling_factor=2.5, n_group=4, topk_group=2, bias_selects=True
    ),
    rotary=Rotary(
        interleaved=True,
        scaling=RopeScaling(
            kind="yarn", factor=4.0, original_max_position_embeddings=8, mscale=0.7, mscale_all_dim=1.0
        ),
    ),
)


def layout(**fields: object) -> ParallelLayout:
    """Layout whose sequence parallelism is on with tp unless said otherwise."""
    fields.setdefault("sequence_parallel", int(fields.get("tp", 1)) > 1)  # type: ignore[call-overload]
    return ParallelLayout(**fields)  # type: ignore[arg-type]


CASES = {
    # one axis at a time
    "single": ReferenceJob(spec=DENSE, layout=layout()),
    "tp2-without-sequence-parallel": ReferenceJob(spec=DENSE, layout=layout(tp=2, sequence_parallel=False)),
    "tp4": ReferenceJob(spec=WIDE, layout=layout(tp=4)),
    "dp2-zero0": ReferenceJob(spec=DENSE, layout=layout(dp=2)),
    "dp2-zero1": ReferenceJob(spec=DENSE, layout=layout(dp=2, zero_stage=1)),
    "dp2-zero2": ReferenceJob(spec=DENSE, layout=layout(dp=2, zero_stage=2)),
    "dp3-zero3": ReferenceJob(spec=DENSE, layout=layout(dp=3, zero_stage=3)),
    "hsdp-2x2": ReferenceJob(spec=DENSE, layout=layout(dp=4, zero_stage=3, shard_degree=2)),
    "cp2-ring": ReferenceJob(spec=DENSE, layout=layout(cp=2)),
    "cp4-ring": ReferenceJob(spec=DENSE, layout=layout(cp=4)),
    "cp2-ulysses": ReferenceJob(spec=DENSE, layout=layout(cp=2, cp_kind="ulysses")),
    "cp2-allgather": ReferenceJob(spec=DENSE, layout=layout(cp=2, cp_kind="allgather")),
    "ep2": ReferenceJob(spec=MOE, layout=layout(dp=2, ep=2)),
    "expert-tp2": ReferenceJob(spec=MOE, layout=layout(tp=2, expert_tp=2)),
    # every schedule, uneven stages, recomputation
    "gpipe": ReferenceJob(spec=DENSE, layout=layout(pp=2, schedule="gpipe")),
    "1f1b-uneven": ReferenceJob(spec=DENSE, layout=layout(pp=2, microbatch_size=2), layers_of_stage=(3, 1)),
    "1f1b-fewer-microbatches-than-stages": ReferenceJob(spec=DENSE, layout=layout(pp=4), num_microbatches=2),
    "interleaved": ReferenceJob(
        spec=WIDE,
        layout=layout(pp=2, virtual_stages=2, schedule="interleaved"),
        layers_of_stage=(3, 2, 2, 1),
    ),
    "interleaved-three-chunks": ReferenceJob(
        spec=WIDE, layout=layout(pp=2, virtual_stages=3, schedule="interleaved")
    ),
    "zb-h1": ReferenceJob(spec=DENSE, layout=layout(pp=4, schedule="zb-h1"), num_microbatches=8),
    "zb-h1-tp2": ReferenceJob(spec=DENSE, layout=layout(tp=2, pp=2, schedule="zb-h1")),
    "v-half": ReferenceJob(spec=DENSE, layout=layout(pp=2, virtual_stages=2, schedule="v-half")),
    "zbv": ReferenceJob(spec=DENSE, layout=layout(pp=2, virtual_stages=2, schedule="zbv")),
    "dualpipev": ReferenceJob(
        spec=WIDE, layout=layout(pp=2, virtual_stages=2, schedule="dualpipev"), num_microbatches=6
    ),
    "recompute-full": ReferenceJob(
        spec=DENSE, layout=layout(pp=2, recompute="full"), recompute_of_stage=(2, 1)
    ),
    "recompute-full-split-backward": ReferenceJob(
        spec=DENSE, layout=layout(pp=2, recompute="full", schedule="zb-h1")
    ),
    "recompute-selective": ReferenceJob(spec=DENSE, layout=layout(tp=2, recompute="selective")),
    "recompute-selective-op": ReferenceJob(
        spec=DENSE, layout=layout(dp=2, zero_stage=3, recompute="selective-op")
    ),
    "ep2-recompute-selective-op": ReferenceJob(
        spec=MOE, layout=layout(dp=2, ep=2, zero_stage=3, recompute="selective-op")
    ),
    # axes together
    "tp2-dp2-zero3": ReferenceJob(spec=DENSE, layout=layout(tp=2, dp=2, zero_stage=3)),
    "tp2-hsdp-2x2": ReferenceJob(
        spec=DENSE, layout=layout(tp=2, dp=4, zero_stage=3, shard_degree=2), num_microbatches=1
    ),
    "tp2-cp2": ReferenceJob(spec=DENSE, layout=layout(tp=2, cp=2)),
    "tp2-cp2-ulysses": ReferenceJob(spec=WIDE, layout=layout(tp=2, cp=2, cp_kind="ulysses")),
    "tp2-pp2": ReferenceJob(spec=DENSE, layout=layout(tp=2, pp=2)),
    "tp2-pp2-dp2": ReferenceJob(spec=DENSE, layout=layout(tp=2, pp=2, dp=2, zero_stage=1)),
    "pp2-dp2-zero3": ReferenceJob(spec=DENSE, layout=layout(pp=2, dp=2, zero_stage=3)),
    "pp2-dp2-zbv": ReferenceJob(
        spec=DENSE, layout=layout(pp=2, dp=2, zero_stage=1, virtual_stages=2, schedule="zbv")
    ),
    "cp2-pp2": ReferenceJob(spec=DENSE, layout=layout(cp=2, pp=2)),
    "ep2-tp2-dp2": ReferenceJob(spec=MOE, layout=layout(ep=2, tp=2, dp=2, zero_stage=1)),
    "ep2-hsdp-2x2": ReferenceJob(
        spec=MOE, layout=layout(ep=2, dp=4, zero_stage=1, shard_degree=2), num_microbatches=1
    ),
    "ep2-zero3": ReferenceJob(spec=MOE, layout=layout(ep=2, dp=4, zero_stage=3), num_microbatches=2),
    "ep2-expert-tp2-dp2": ReferenceJob(spec=MOE, layout=layout(ep=2, expert_tp=2, tp=2, dp=2, zero_stage=2)),
    "ep2-expert-tp2-few-rows": ReferenceJob(
        spec=dataclasses.replace(MOE, num_experts=16, num_experts_per_token=1),
        layout=layout(ep=2, expert_tp=2, tp=2, dp=2),
        sequence_length=4,
    ),  # some ranks receive none
    "expert-tp4-over-context": ReferenceJob(spec=MOE, layout=layout(expert_tp=4, tp=2, cp=2)),
    "ep2-pp2-zb-h1": ReferenceJob(spec=MOE, layout=layout(ep=2, dp=2, pp=2, schedule="zb-h1")),
    "ep2-cp2": ReferenceJob(spec=MOE, layout=layout(ep=2, cp=2)),
    "other-axis-order": ReferenceJob(
        spec=DENSE, layout=layout(tp=2, pp=2, axis_order=("dp", "tp", "cp", "pp"))
    ),
    "other-axis-order-of-three": ReferenceJob(
        spec=DENSE, layout=layout(tp=2, pp=2, dp=2, axis_order=("dp", "tp", "cp", "pp"))
    ),
    # other families
    "mla-tp2": ReferenceJob(spec=MLA, layout=layout(tp=2)),
    "mla-cp2": ReferenceJob(spec=MLA, layout=layout(cp=2)),
    "gpt-tp2-cp2": ReferenceJob(spec=GPT, layout=layout(tp=2, cp=2)),
    "gpt-oss-cp2-ep2": ReferenceJob(spec=GPT_OSS, layout=layout(cp=2, ep=2)),
    "gpt-oss-ulysses": ReferenceJob(spec=GPT_OSS, layout=layout(cp=2, cp_kind="ulysses")),
    "gpt-oss-cp2-allgather": ReferenceJob(spec=GPT_OSS, layout=layout(cp=2, cp_kind="allgather")),
    "gpt-oss-pp2-zb-h1": ReferenceJob(spec=GPT_OSS, layout=layout(pp=2, schedule="zb-h1")),
    "gpt-oss-tp2": ReferenceJob(spec=GPT_OSS, layout=layout(tp=2, ep=2)),
    "nemotron-tp2": ReferenceJob(spec=NEMOTRON, layout=layout(tp=2)),
    "llama-3.1-cp2-ring": ReferenceJob(spec=LLAMA_31, layout=layout(cp=2)),
    "llama-3.1-tp2-pp2": ReferenceJob(spec=LLAMA_31, layout=layout(tp=2, pp=2)),
    "gemma-tp2": ReferenceJob(spec=GEMMA, layout=layout(tp=2)),
    "gemma-cp2-gathers-keys": ReferenceJob(spec=GEMMA, layout=layout(cp=2)),
    "gemma-ulysses": ReferenceJob(spec=GEMMA, layout=layout(cp=2, cp_kind="ulysses")),
    "gemma-tp2-pp2-dp2": ReferenceJob(
        spec=GEMMA, layout=layout(tp=2, pp=2, dp=2, zero_stage=1), num_microbatches=2
    ),
    "gemma-recompute-selective-op": ReferenceJob(
        spec=GEMMA, layout=layout(dp=2, zero_stage=3, recompute="selective-op")
    ),
    "deepseek-ep2-zero3": ReferenceJob(spec=DEEPSEEK, layout=layout(ep=2, dp=2, zero_stage=3)),
    "deepseek-ep2-tp2-dp2": ReferenceJob(spec=DEEPSEEK, layout=layout(ep=2, tp=2, dp=2, zero_stage=1)),
    "deepseek-ep2-cp2": ReferenceJob(spec=DEEPSEEK, layout=layout(ep=2, cp=2)),
    "deepseek-ep2-pp2-zb-h1": ReferenceJob(spec=DEEPSEEK, layout=layout(ep=2, dp=2, pp=2, schedule="zb-h1")),
    "tied-tp2": ReferenceJob(spec=TIED, layout=layout(tp=2)),
    "tied-tp2-pp2-dp2": ReferenceJob(
        spec=TIED, layout=layout(tp=2, pp=2, dp=2, zero_stage=1), num_microbatches=2
    ),
    "tied-zbv": ReferenceJob(spec=TIED, layout=layout(pp=2, virtual_stages=2, schedule="zbv")),
}


def shallow(case: ReferenceJob) -> ReferenceJob:
    """Without stages, two layers and two microbatches show all there is."""
    if case.layout.pp > 1:
        return case
    spec = dataclasses.replace(case.spec, num_layers=2, num_sliding_layers=case.spec.num_sliding_layers // 2)
    return dataclasses.replace(case, spec=spec, num_microbatches=min(2, case.num_microbatches))


COMBINED = (
    "cp2-allgather", "1f1b-uneven", "interleaved-three-chunks", "ep2-zero3", "tp2-dp2-zero3",
    "tp2-cp2-ulysses", "tp2-pp2-dp2", "pp2-dp2-zbv", "ep2-expert-tp2-dp2", "ep2-cp2", "gpt-oss-pp2-zb-h1", "gpt-oss-ulysses", "gemma-ulysses", "gemma-tp2-pp2-dp2",
    "gemma-recompute-selective-op", "llama-3.1-tp2-pp2", "deepseek-ep2-tp2-dp2", "deepseek-ep2-pp2-zb-h1",
    "tied-tp2-pp2-dp2", "mla-cp2", "other-axis-order-of-three", "tp2-pp2", "hsdp-2x2", "gpt-oss-cp2-ep2", "zb-h1",
    "ep2-tp2-dp2", "tp2-cp2", "gemma-tp2", "zbv", "recompute-full",
)  # fmt: skip
"""Of the nightly run: axes, schedules and families together that the suite has apart, or others together."""


def traits(name: str) -> set[frozenset[str]]:
    """Axes of a case and their pairs, and what only a degree above two shows."""
    of = CASES[name].layout
    degrees = {"tp": of.tp, "pp": of.pp, "dp": of.dp, "cp": of.cp, "ep": of.ep, "expert tp": of.expert_tp}
    axes = {axis for axis, degree in degrees.items() if degree > 1}
    axes |= {"hsdp"} if of.shard_degree and 1 < of.shard_degree < of.dp else set()
    axes |= {"zero-3"} if of.zero_stage == 3 else set()
    axes |= {"split backward"} if of.schedule in {"zb-h1", "zbv"} else set()
    axes |= {"recompute"} if of.recompute != "none" else set()
    more = {frozenset([f"{axis} > 2"]) for axis in ("tp", "cp", "pp") if degrees[axis] > 2}
    return more | {frozenset(pair) for pair in itertools.product(axes, axes)}


def test_the_suite_has_every_axis_and_pair_of_axes() -> None:
    """What the nightly run has alone is like a case of the suite, axis by axis and two by two."""
    every = set[frozenset[str]]().union(*map(traits, CASES))
    suite = set[frozenset[str]]().union(*(traits(name) for name in CASES if name not in COMBINED))
    assert every - suite == set()
    assert {frozenset(["tp > 2"]), frozenset(["hsdp"]), frozenset(["cp", "pp"])} <= suite


@pytest.mark.parametrize("name", cases_of_run(CASES, COMBINED))
def test_layout_computes_what_one_process_computes(name: str) -> None:
    """Loss within 1e-5 relative over three optimizer steps, and every gradient of the first."""
    case = dataclasses.replace(shallow(CASES[name]), steps=3)
    reference, outcome = run_reference(case, SETTINGS), run_layout(case, SETTINGS)
    difference = outcome_difference(reference, outcome)
    assert (difference.loss <= TOLERANCE, difference.gradient <= TOLERANCE) == (True, True), difference
    assert outcome.gradients.keys() == reference.gradients.keys()


def test_training_changes_the_loss() -> None:
    """Parity is of a model that learns, not of one that stands still."""
    losses = run_reference(dataclasses.replace(CASES["single"], steps=3), SETTINGS).losses
    assert abs(losses[2] - losses[0]) > 100 * TOLERANCE


def test_comparison_sees_one_wrong_gradient() -> None:
    """A single parameter off by a thousandth is found and named."""
    reference = run_reference(CASES["single"], SETTINGS)
    wrong = {
        name: value * (1.001 if name == "model.norm.weight" else 1)
        for name, value in reference.gradients.items()
    }
    difference = outcome_difference(reference, Outcome(losses=reference.losses, gradients=wrong))
    assert difference.worst == "model.norm.weight"
    assert difference.gradient == pytest.approx(1e-3, rel=1e-2)
