"""What tensor parallelism leaves a rank of a traced module is what a module with cut weights has."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from costmodel.models.traced import TracedModule
from costmodel.ops.op import OpKind, ShardShape
from costmodel.ops.traced import traced_ops
from costmodel.stack import stack
from executor.tracing.of_transformers import of_configuration
from executor.tracing.trace import example_inputs, trace_module

from .test_saved_of_families import QUIET, READS, SEES, T5, kept_by_autograd, real

GPT = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 16, "vocab_size": 300, "bos_token_id": 1}
DROPS = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaModel", {**READS, "num_key_value_heads": 4}),
    "qwen3": ("Qwen3Model", {**READS, "num_key_value_heads": 4, "head_dim": 16, "layer_types": None}),
    "bert": ("BertModel", READS),
    "vit": ("ViTForImageClassification", SEES),
    "t5": ("T5EncoderModel", T5),
    "gpt2": ("GPT2Model", {**GPT, **DROPS, "eos_token_id": 2}),
}
"""Small; heads and key/value heads are four."""
COLUMNS = {
    "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "query", "key", "value", "intermediate.dense", "fc1",
    "SelfAttention.q", "SelfAttention.k", "SelfAttention.v", "wi", "c_attn", "c_fc",
}  # fmt: skip
ROWS = {
    "o_proj", "down_proj", "output.dense", "fc2", "SelfAttention.o", "wo", "c_proj",
}  # fmt: skip
HEADS = ("num_attention_heads", "num_heads", "n_heads")
WIDTHS = ("all_head_size", "inner_dim", "split_size", "embed_dim")


def of(family: str) -> tuple[nn.Module, list[Any]]:
    """A small model of a family in bf16, and its usual inputs with numbers."""
    kind, sizes = FAMILIES[family]
    config = transformers.AutoConfig.for_model(family, **{**QUIET, **sizes}, attn_implementation="eager")
    config.architectures = [kind]
    module, usual = of_configuration(config)
    return module.bfloat16().train(), [real(one) for one in example_inputs(usual.replace("x512:", "x32:"))]


def cut(module: nn.Module, tp: int) -> None:
    """Give a model the weights that one of `tp` ranks has of its layers: as Megatron-LM cuts, by hand."""
    for path, part in list(module.named_modules()):
        tail = path.rpartition(".")[2]
        two = ".".join(path.split(".")[-2:])
        if not any(digit.isdigit() for digit in path.split(".")):
            continue
        if tail == "relative_attention_bias":  # every rank has the table, and takes its own heads
            part.register_forward_hook(lambda _, __, out: out[..., : out.shape[-1] // tp])
        for name in (*HEADS, *WIDTHS):
            if isinstance(getattr(part, name, None), int) and hasattr(part, "forward"):
                setattr(part, name, getattr(part, name) // tp)
        wide = {tail, two} & COLUMNS
        long = {tail, two} & ROWS
        if isinstance(part, nn.Linear) and (wide or long):
            n, k = part.weight.shape
            n, k = (n // tp, k) if wide else (n, k // tp)
            part.weight = nn.Parameter(torch.randn(n, k).bfloat16())
            if part.bias is not None and wide:
                part.bias = nn.Parameter(torch.randn(n).bfloat16())
        elif type(part).__name__ == "Conv1D":
            k, n = part.weight.shape
            n, k = (n // tp, k) if wide else (n, k // tp)
            part.weight, part.nf = nn.Parameter(torch.randn(k, n).bfloat16()), n
            part.bias = nn.Parameter(torch.randn(n).bfloat16()) if wide else part.bias


def of_a_rank(table: TracedModule, tp: int, samples: int) -> tuple[float, float, float]:
    """Parameters, FLOP and saved bytes of blocks and ends on one rank of an eager engine."""
    shard = ShardShape(sequence_length=1, microbatch_size=samples, tp=tp)
    parts = [(1, table.stem), *zip(table.counts, table.kinds, strict=True), (1, table.head)]
    ops = [(n, op) for n, part in parts for op in traced_ops(part, stack("pytorch"), shard)]
    parameters = sum(n * op.parameters for n, op in ops)
    flop = sum(n * op.flop for n, op in ops if op.kind is not OpKind.ELEMENTWISE)
    return parameters, flop, sum(n * op.saved_bytes for n, op in ops)


def of_table_rows(table: TracedModule, tp: int) -> float:
    """Parameters of a divided table of the stem, which the cut module has whole."""
    return table.stem.cut_parameters * (1 - 1 / tp)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_rank_has_what_a_cut_module_has(family: str, tp: int) -> None:
    """Parameters, FLOP and what autograd saves, each exactly."""
    module, inputs = of(family)
    table = trace_module(module, inputs)
    assert table.units == 4
    cut(module, tp)
    with FlopCounterMode(display=False) as counter:
        module(*inputs)
    parameters, flop, saved = of_a_rank(table, tp, inputs[0].shape[0])
    held = sum(p.numel() for p in module.parameters())
    assert parameters + of_table_rows(table, tp) == pytest.approx(held, rel=1e-12)
    assert flop == pytest.approx(counter.get_total_flops(), rel=1e-9)
    assert saved == pytest.approx(kept_by_autograd(module, inputs), rel=1e-9)
