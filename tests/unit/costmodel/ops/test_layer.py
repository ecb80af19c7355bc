"""The per-layer table agrees with closed forms: parameters, FLOPs and collective bytes."""

from dataclasses import replace

import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import CP_KINDS
from costmodel.models.catalog import model, model_names
from costmodel.models.parameters import active_parameter_count, embedding_parameters, parameter_count
from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.ops.layer import (
    ShardShape,
    embedding_ops,
    forward_flop,
    head_ops,
    layer_ops,
    model_flop_per_step,
)
from costmodel.ops.op import Op, OpKind
from costmodel.stack import stack
from costmodel.switches.profile import with_switches

S = 4096
JOB = TrainingJob(sequence_length=S, global_batch_size=8)


def ops_of(
    spec: ModelSpec, *, job: TrainingJob = JOB, name: str = "megatron-core", **degrees: float
) -> list[Op]:
    """Every operation of the whole model, layers repeated."""
    shard, profile = ShardShape(sequence_length=float(job.sequence_length), **degrees), stack(name)
    ops = [
        *embedding_ops(Workload(model=spec, job=job, stack=profile), shard),
        *head_ops(spec, profile, shard),
    ]
    for run in layer_runs(spec):
        ops += run.count * list(layer_ops(Workload(model=spec, job=job, stack=profile), run.kind, shard))
    return ops


def collective_bytes(ops: list[Op], axis: str) -> dict[str, float]:
    """Bytes by collective and phase over one axis, those that move nothing left out."""
    found: dict[str, float] = {}
    for op in ops:
        if op.axis == axis and op.collective_bytes:
            key = f"{op.collective} {op.phase}"
            found[key] = found.get(key, 0.0) + float(op.collective_bytes)
    return found


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("profile", ["megatron-core", "megatron-lm-2021"])
def test_parameters_of_the_operations_sum_to_the_models(name: str, profile: str) -> None:
    """The table and the parameter count are two views of one description."""
    total = sum(op.parameters for op in ops_of(model(name), name=profile))
    assert total == pytest.approx(parameter_count(model(name)), rel=1e-14)  # shares of indexers are fractions


def test_tensor_parallel_shards_sum_to_the_layer_but_for_replicated_parts() -> None:
    """Over 8 ranks the matrices add up; norms are held by each."""
    spec = model("llama-3.1-70b")
    (run,) = layer_runs(spec)
    whole, shard = (
        sum(
            op.parameters
            for op in layer_ops(
                Workload(model=spec, job=JOB, stack=stack("ideal")),
                run.kind,
                ShardShape(sequence_length=S, tp=tp),
            )
        )
        for tp in (1, 8)
    )
    assert 8 * shard - whole == 7 * 2 * spec.hidden_size


def test_expert_parallel_shards_sum_to_the_experts() -> None:
    """Experts over ep 16 and expert_tp 2 are cut 32 ways."""
    spec = model("mixtral-8x7b")
    (run,) = layer_runs(spec)
    whole, shard = (
        sum(
            op.parameters
            for op in layer_ops(
                Workload(model=spec, job=JOB, stack=stack("ideal")),
                run.kind,
                ShardShape(sequence_length=S, ep=ep, expert_tp=etp),
            )
            if op.kind is OpKind.GROUPED_GEMM
        )
        for ep, etp in ((1, 1), (8, 2))
    )
    assert whole == 16 * shard


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "gpt-3-175b", "gemma-2-2b"])
def test_forward_flop_is_two_per_active_matrix_parameter_plus_attention(name: str) -> None:
    """Forward = 2·tokens·(active parameters that multiply) + 2·layers·a·(d + d)·S²/2 for causal attention.

    Gemma 2's window is as long as the sequence here, so that all of its layers are full.
    """
    spec = model(name)
    biases_and_norms = sum(
        op.parameters - op.n * op.k * max(op.experts, 1) for op in ops_of(spec) if op.parameters
    )
    tied = spec.vocab_size * spec.hidden_size * spec.tie_word_embeddings
    multiplied = active_parameter_count(spec) - biases_and_norms + tied
    attention = 2 * spec.num_layers * spec.num_attention_heads * 2 * spec.head_dim * (S * S / 2)
    assert forward_flop(ops_of(spec)) == pytest.approx(2 * S * multiplied + attention, rel=1e-12)


def test_latent_attention_flop_uses_both_head_sizes() -> None:
    """DeepSeek-V3 scores 192-wide queries and mixes 128-wide values."""
    spec = model("deepseek-v3")
    attention = [op for op in ops_of(spec) if op.kind is OpKind.ATTENTION]
    assert sum(float(op.flop) for op in attention) == 61 * 2 * 128 * (192 + 128) * S * S / 2


def test_a_window_limits_the_pairs_of_windowed_layers_only() -> None:
    """gpt-oss: half of the layers see 128 tokens back, the others all."""
    spec = model("gpt-oss-20b")
    (run,) = layer_runs(spec)
    (attention,) = [
        op
        for op in layer_ops(
            Workload(model=spec, job=JOB, stack=stack("ideal")), run.kind, ShardShape(sequence_length=S)
        )
        if op.kind is OpKind.ATTENTION
    ]
    windowed, full = S * 128 - 128 * 128 / 2, S * S / 2
    assert attention.flop == 2 * 64 * 128 * (windowed + full) / 2


def test_unfused_attention_computes_the_masked_half_too() -> None:
    """Batched matmuls before FlashAttention cover all S² scores."""
    spec = model("megatron-22b")
    fused, unfused = (
        sum(op.flop for op in ops_of(spec, name=name) if op.kind is OpKind.ATTENTION)
        for name in ("ideal", "megatron-lm-2021")
    )
    assert unfused == 2 * fused


def test_all_degrees_divide_the_work_of_dense_layers() -> None:
    """Cut by tp 4 and cp 2, each rank has one eighth of the FLOPs."""
    spec = model("llama-3.1-70b")
    assert forward_flop(ops_of(spec, tp=4, cp=2)) * 8 == pytest.approx(forward_flop(ops_of(spec)), rel=1e-12)


def test_expert_work_per_rank_depends_on_tokens_not_on_expert_parallelism() -> None:
    """With balanced routing every rank computes K experts per token of its own, wherever they live."""
    spec = model("qwen3-30b-a3b")
    works = [
        sum(op.flop for op in ops_of(spec, ep=ep, expert_tp=etp) if op.kind is OpKind.GROUPED_GEMM)
        for ep, etp in ((1, 1), (8, 1), (4, 2))
    ]
    per_token = 2 * 3 * spec.hidden_size * spec.moe_intermediate_size * 8
    assert works == [48 * S * per_token] * 3


def test_tensor_parallel_layer_reduces_twice_forward_and_twice_backward() -> None:
    """Without sequence parallelism: all-reduces of 2·T·H bytes (Shoeybi et al. 2019, figure 4)."""
    spec = model("megatron-22b")
    (run,) = layer_runs(spec)
    ops = list(
        layer_ops(
            Workload(model=spec, job=JOB, stack=stack("ideal")), run.kind, ShardShape(sequence_length=S, tp=8)
        )
    )
    message = 2 * S * spec.hidden_size
    assert collective_bytes(ops, "tp") == {
        "all_reduce forward": 2 * message,
        "all_reduce backward": 2 * message,
    }


def test_sequence_parallel_layer_gathers_and_scatters_the_same_bytes() -> None:
    """With it: two gathers and two scatters each way, and two more gathers for the weight gradients."""
    spec = model("megatron-22b")
    (run,) = layer_runs(spec)
    shard = ShardShape(sequence_length=S, tp=8, sequence_parallel=True)
    message = 2 * S * spec.hidden_size
    assert collective_bytes(
        list(layer_ops(Workload(model=spec, job=JOB, stack=stack("ideal")), run.kind, shard)), "tp"
    ) == {
        "all_gather forward": 2 * message,
        "reduce_scatter forward": 2 * message,
        "reduce_scatter backward": 2 * message,
        "all_gather backward": 4 * message,
    }


def test_one_rank_communicates_nothing() -> None:
    """Without a parallel axis no bytes move."""
    assert sum(float(op.collective_bytes) for op in ops_of(model("deepseek-v3"))) == 0


def test_ring_and_ulysses_exchange_what_their_papers_say() -> None:
    """Ring: all keys and values, twice more backward. Ulysses: q, k, v and the output of each rank, both ways."""
    spec = model("llama-3.1-8b")
    (run,) = layer_runs(spec)
    kv, q = 2 * S * 2 * 1024, 2 * S * 2 * 4096
    seen = {}
    for kind in ("ring", "ulysses"):
        shard = ShardShape(sequence_length=S, cp=4, cp_kind=CP_KINDS.index(kind))
        seen[kind] = collective_bytes(
            list(layer_ops(Workload(model=spec, job=JOB, stack=stack("ideal")), run.kind, shard)), "cp"
        )
    assert seen == {
        "ring": {"all_gather forward": kv, "all_gather backward": kv, "reduce_scatter backward": kv},
        "ulysses": {"all_to_all forward": (kv + q) / 4, "all_to_all backward": (kv + q) / 4},
    }


def test_experts_are_dispatched_and_combined_once_each_way() -> None:
    """Each rank sends K copies of its tokens, 2·T·K·H bytes, four times per layer."""
    spec = model("deepseek-v3")
    moe = layer_runs(spec)[1].kind
    ops = list(
        layer_ops(
            Workload(model=spec, job=JOB, stack=stack("ideal")), moe, ShardShape(sequence_length=S, ep=64)
        )
    )
    sent = 2 * S * 8 * 7168
    assert collective_bytes(ops, "ep") == {"all_to_all forward": 2 * sent, "all_to_all backward": 2 * sent}


def test_eight_bit_training_multiplies_linears_in_eight_bits_only() -> None:
    """Attention, router and head stay in sixteen; the casts appear as passes over memory."""
    job = TrainingJob(sequence_length=S, global_batch_size=8, precision="fp8")
    kinds = {op.name: op.dtype for op in ops_of(model("deepseek-v3"), job=job)}
    chosen = ("kv_up", "expert_up", "mlp_down", "router", "attention", "head")
    assert [kinds[name] for name in chosen] == ["training_fp8"] * 3 + ["bf16"] * 3
    assert {"attention_cast", "mlp_cast"} <= set(kinds)


def test_every_copy_of_a_token_is_cast_for_its_expert() -> None:
    """Qwen3-30B: 8 copies into experts of 768; DeepSeek-V3: its shared expert beside them, dense layers alike."""
    job = TrainingJob(sequence_length=S, global_batch_size=8, precision="fp8")

    def cast_bytes(name: str, run: int) -> float:
        kind, shard = layer_runs(model(name))[run].kind, ShardShape(sequence_length=float(S), ep=8)
        ops = layer_ops(Workload(model=model(name), job=job, stack=stack("megatron-core")), kind, shard)
        return sum(float(op.bytes) for op in ops if op.name == "mlp_cast")

    assert cast_bytes("qwen3-30b-a3b", 0) == 4 * S * 8 * (2048 + 768)
    assert cast_bytes("deepseek-v3", 0) == 4 * S * (7168 + 18432)
    assert cast_bytes("deepseek-v3", 1) == 4 * S * (8 + 1) * (7168 + 2048)


@pytest.mark.parametrize(
    ("precision", "scaling", "forward", "backward"),
    [
        ("fp8", "rowwise", 5, (5, 10)),
        ("mxfp8", "rowwise", 3, (3, 6)),
        ("fp8", "tensorwise", 5, (5 + 2, 5 + 2)),
    ],
)
def test_torchao_casts_every_operand_of_every_product(
    precision: str, scaling: str, forward: int, backward: tuple[int, int]
) -> None:
    """Bytes per element of input and weights forward; of both, and of the gradient, backward."""
    spec, job = model("llama-3-8b"), replace(JOB, precision=precision)
    profile = with_switches(stack("torchtitan"), {"fp8_scaling": scaling})
    work = Workload(model=spec, job=job, stack=profile)
    ops = layer_ops(work, layer_runs(spec)[0].kind, ShardShape(sequence_length=float(S)))
    products = [op for op in ops if op.kind is OpKind.GEMM]
    operands = sum(op.m * op.k + op.n * op.k for op in products)
    gradients = sum(op.m * op.n for op in products)
    casts = {
        phase: sum(float(op.bytes) for op in ops if op.kind is OpKind.CAST and op.phase == phase)
        for phase in ("forward", "backward")
    }
    assert casts == {
        "forward": forward * operands,
        "backward": backward[0] * operands + backward[1] * gradients,
    }


def test_one_scale_lets_operands_be_cast_before_they_are_gathered() -> None:
    """Over tp 8 an input of full width is cast by parts, unless its rows have scales."""
    spec = model("llama-3-8b")
    job, shard = (
        replace(JOB, precision="fp8"),
        ShardShape(sequence_length=float(S), tp=8, sequence_parallel=1),
    )
    bytes_of = {}
    for scaling in ("rowwise", "tensorwise"):
        profile = with_switches(stack("torchtitan"), {"fp8_scaling": scaling})
        ops = layer_ops(Workload(model=spec, job=job, stack=profile), layer_runs(spec)[0].kind, shard)
        bytes_of[scaling] = next(float(op.bytes) for op in ops if op.name == "qkv_cast")
    weights = 5 * 4096 * (4096 + 2 * 1024) / 8
    assert bytes_of == {"rowwise": 5 * S * 4096 + weights, "tensorwise": 5 * S * 4096 / 8 + weights}


def test_model_flop_follow_the_narayanan_formula() -> None:
    """Narayanan et al. 2021 appendix, less its recomputation: 72·B·s·l·h²(1 + s/(6h) + V/(12·l·h)), s/(12h) causal."""
    spec = model("megatron-1t")
    job = TrainingJob(sequence_length=2048, global_batch_size=3072)
    B, s, l, h, V = 3072, 2048, 128, 25600, 51200  # noqa: E741
    causal = 72 * B * s * l * h**2 * (1 + s / (12 * h) + V / (12 * l * h))
    assert model_flop_per_step(spec, job) == pytest.approx(causal, rel=1e-12)


def test_the_embedding_of_a_rank_is_its_vocabulary_shard() -> None:
    """A lookup holds V/tp rows and all positions."""
    spec = model("gpt-3-175b")
    (lookup, *_) = embedding_ops(
        Workload(model=spec, job=JOB, stack=stack("ideal")), ShardShape(sequence_length=S, tp=4)
    )
    assert lookup.parameters == spec.vocab_size * 12288 / 4 + 2048 * 12288
    assert embedding_parameters(spec) == (spec.vocab_size + 2048) * 12288
