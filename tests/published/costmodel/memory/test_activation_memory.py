"""Activation bytes of a layer equal equations 1 to 4 of Korthikanti et al. 2022 (arXiv 2205.05198)."""

import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import SCHEDULES, ParallelLayout
from costmodel.memory.activations import saved_bytes
from costmodel.memory.stage import in_flight, memory_pieces
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.ops.layer import ShardShape, embedding_ops, head_ops, layer_ops
from costmodel.stack import stack

STACK = stack("megatron-lm-2021")
MODELS = [model(name) for name in ("megatron-22b", "megatron-175b", "megatron-530b", "megatron-1t")]


def layer_bytes(spec: ModelSpec, policy: str, *, b: int, s: int, t: int, sequence_parallel: bool) -> float:
    """Saved bytes of one layer on one rank."""
    shard = ShardShape(sequence_length=s, microbatch_size=b, tp=t, sequence_parallel=sequence_parallel)
    (run,) = layer_runs(spec)
    job = TrainingJob(sequence_length=s, global_batch_size=b)
    return float(
        saved_bytes(
            layer_ops(Workload(model=spec, job=job, stack=STACK), run.kind, shard),
            policy,
            shard,
            spec.hidden_size,
        )
    )


@pytest.mark.parametrize("spec", MODELS, ids=lambda spec: spec.name)
@pytest.mark.parametrize(("b", "s"), [(1, 2048), (4, 1024)])
class TestKorthikanti:
    """The four equations and the rows of table 2."""

    def test_equation_1_no_parallelism(self, spec: ModelSpec, b: int, s: int) -> None:
        """Without any parallelism: sbh(34 + 5as/h)."""
        a, h = spec.num_attention_heads, spec.hidden_size
        found = layer_bytes(spec, "none", b=b, s=s, t=1, sequence_parallel=False)
        assert found == s * b * (34 * h + 5 * a * s)

    def test_equation_2_tensor_parallel(self, spec: ModelSpec, b: int, s: int) -> None:
        """Over t ranks of tensor parallelism: sbh(10 + 24/t + 5as/(ht))."""
        a, h, t = spec.num_attention_heads, spec.hidden_size, 8
        found = layer_bytes(spec, "none", b=b, s=s, t=t, sequence_parallel=False)
        assert found == s * b * h * (10 + 24 / t + 5 * a * s / (h * t))

    def test_equation_4_tensor_and_sequence_parallel(self, spec: ModelSpec, b: int, s: int) -> None:
        """With sequence parallelism all of it is divided: sbh/t · (34 + 5as/h)."""
        a, h, t = spec.num_attention_heads, spec.hidden_size, 8
        found = layer_bytes(spec, "none", b=b, s=s, t=t, sequence_parallel=True)
        assert found == s * b / t * (34 * h + 5 * a * s)

    def test_table_2_selective_recompute(self, spec: ModelSpec, b: int, s: int) -> None:
        """Recomputing the attention core drops its term: sbh(10 + 24/t), and 34·sbh/t with sequence parallelism."""
        h, t = spec.hidden_size, 8
        found = [layer_bytes(spec, "selective", b=b, s=s, t=t, sequence_parallel=sp) for sp in (False, True)]
        assert found == [s * b * h * (10 + 24 / t), s * b * h * 34 / t]

    def test_table_2_full_recompute(self, spec: ModelSpec, b: int, s: int) -> None:
        """Full recomputation keeps the layer's input: 2·sbh."""
        found = layer_bytes(spec, "full", b=b, s=s, t=8, sequence_parallel=False)
        assert found == 2 * s * b * spec.hidden_size


def test_equation_3_all_layers_of_the_first_stage_hold_what_one_stage_would() -> None:
    """Equation 3: sbhL(10 + 24/t + 5as/(ht)): p microbatches of L/p layers in flight on the first stage."""
    spec, b, s, t, p = model("megatron-175b"), 1, 2048, 8, 8
    job = TrainingJob(sequence_length=s, global_batch_size=64)
    pieces = memory_pieces(
        Workload(model=spec, job=job, stack=STACK), ParallelLayout(tp=t, pp=p, microbatch_size=b)
    )
    held = (
        float(in_flight(SCHEDULES.index("1f1b"), p, 1, 64, 0))
        * spec.num_layers
        / p
        * float(pieces.layers[0].saved_bytes[0])
    )
    a, h, L = spec.num_attention_heads, spec.hidden_size, spec.num_layers
    assert held == s * b * h * L * (10 + 24 / t + 5 * a * s / (h * t))


def test_section_4_3_embedding_and_head_terms() -> None:
    """Embedding dropout sbh, final norm 2sbh, head input 2sbh, fp32 logits 4sbv, the last three on the last stage."""
    spec, job = model("megatron-22b"), TrainingJob(sequence_length=2048, global_batch_size=1)
    shard = ShardShape(sequence_length=2048)
    b, s, h, v = 1, 2048, spec.hidden_size, spec.vocab_size
    embedding = sum(op.saved_bytes for op in embedding_ops(Workload(model=spec, job=job, stack=STACK), shard))
    head = sum(op.saved_bytes for op in head_ops(spec, STACK, shard))
    assert (embedding, head) == (s * b * h, 2 * s * b * h + 2 * s * b * h + 4 * s * b * v)


@pytest.mark.parametrize(("name", "share"), [("megatron-175b", 0.70), ("megatron-530b", 0.65)])
def test_selective_recompute_saves_the_papers_share(name: str, share: float) -> None:
    """Korthikanti §5: 5as/h is 80 for GPT-3 and 64 for MT-NLG; selective saves 70 % and 65 % of the bytes."""
    none, selective = (
        layer_bytes(model(name), policy, b=1, s=2048, t=8, sequence_parallel=True)
        for policy in ("none", "selective")
    )
    assert round(1 - selective / none, 2) == share


def test_fused_attention_keeps_queries_keys_values_and_one_number_per_row() -> None:
    """FlashAttention (arXiv 2205.14135): the S² term is replaced by 4 bytes per head and token.

    Llama-3.1-8B, one sequence: norms' inputs 2·2H, projections' inputs 2·2H, q, k, v 2(H + 2·1024), lse 4·32,
    attention output 2H, SwiGLU in and out 6F.
    """
    spec = model("llama-3.1-8b")
    shard = ShardShape(sequence_length=8192)
    job = TrainingJob(sequence_length=8192, global_batch_size=1)
    (run,) = layer_runs(spec)
    H, F = 4096, 14336
    per_token = 4 * H + 4 * H + 2 * (H + 2 * 1024) + 4 * 32 + 2 * H + 6 * F
    ops = layer_ops(Workload(model=spec, job=job, stack=stack("megatron-core")), run.kind, shard)
    assert saved_bytes(ops, "none", shard, H) == 8192 * per_token
