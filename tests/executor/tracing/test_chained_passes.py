"""Accesses of the chains that transformers runs, against what its own modules dispatch."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.case import Workload

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from costmodel.job import TrainingJob
from costmodel.models.catalog import model
from costmodel.models.spec import layer_runs
from costmodel.ops.layer import layer_ops
from costmodel.ops.op import ShardShape
from costmodel.ops.passes import LOSS_CHAIN_BYTES, NORM_CHAIN, ROTARY_CHAIN
from costmodel.stack import stack
from executor.tracing.ops import pass_of
from executor.tracing.record import record_forward

TOKENS, WIDTH, CLASSES = 4096, 4096, 32768


def moved(module: Any, *inputs: Any) -> float:
    """Bytes that the kernels of a module read and write, one after the other."""
    return pass_of(record_forward(module, inputs).events, set(), 1).eager_bytes


def test_a_norm_is_eighteen_accesses() -> None:
    """LlamaRMSNorm, and Qwen3's, which is the same."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    x = torch.empty(1, TOKENS, WIDTH, dtype=torch.bfloat16, device="meta")
    for kind in (LlamaRMSNorm, Qwen3RMSNorm):
        norm = kind(WIDTH).to(device="meta", dtype=torch.bfloat16)
        assert moved(norm, x) == pytest.approx(NORM_CHAIN * 2 * TOKENS * WIDTH, rel=0.002)


def test_norms_of_latent_attention_are_chains_too() -> None:
    """DeepSeek-V3's are of its queries' and keys' ranks; a described layer reads and writes as often."""
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm

    spec = model("deepseek-v3")
    job = TrainingJob(sequence_length=TOKENS, global_batch_size=1)
    ops = layer_ops(
        Workload(model=spec, job=job, stack=stack("pytorch")),
        layer_runs(spec)[0].kind,
        ShardShape(sequence_length=float(TOKENS)),
    )
    for name, rank in (("query_norm", 1536), ("kv_norm", 512)):
        [norm] = [op for op in ops if op.name == name]
        built = DeepseekV3RMSNorm(rank).to(device="meta", dtype=torch.bfloat16)
        x = torch.empty(1, TOKENS, rank, dtype=torch.bfloat16, device="meta")
        assert norm.bytes == pytest.approx(moved(built, x), rel=0.002)


def test_a_layer_norm_is_two_accesses() -> None:
    """One kernel of torch."""
    x = torch.empty(1, TOKENS, WIDTH, dtype=torch.bfloat16, device="meta")
    norm = torch.nn.LayerNorm(WIDTH, device="meta", dtype=torch.bfloat16)
    assert moved(norm, x) == pytest.approx(2 * 2 * TOKENS * WIDTH, rel=0.002)


def test_rotary_positions_are_ten_accesses_of_queries_and_keys() -> None:
    """The tables of cosines and sines are shared by all heads."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    class Rotary(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        """Turns queries and keys."""

        def forward(self, q: Any, k: Any, cos: Any, sin: Any) -> Any:
            return apply_rotary_pos_emb(q, k, cos, sin)

    heads, size = 64, 128
    q, k = (torch.empty(1, heads, TOKENS, size, dtype=torch.bfloat16, device="meta") for _ in range(2))
    cos, sin = (torch.empty(1, TOKENS, size, dtype=torch.bfloat16, device="meta") for _ in range(2))
    assert moved(Rotary(), q, k, cos, sin) == pytest.approx(
        ROTARY_CHAIN * 2 * 2 * TOKENS * heads * size, rel=0.01
    )


def test_a_loss_moves_fourteen_bytes_a_logit() -> None:
    """It reads one logarithm of each row, not all of them."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    class Loss(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        """Of logits and what comes next."""

        def forward(self, logits: Any, labels: Any) -> Any:
            return ForCausalLMLoss(logits, labels, CLASSES)

    logits = torch.empty(1, TOKENS, CLASSES, dtype=torch.bfloat16, device="meta")
    labels = torch.empty(1, TOKENS, dtype=torch.long, device="meta")
    assert moved(Loss(), logits, labels) == pytest.approx(LOSS_CHAIN_BYTES * TOKENS * CLASSES, rel=0.002)
