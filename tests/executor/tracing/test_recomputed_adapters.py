"""What torch allocates while it recomputes a layer with peft's adapters, against what is counted of it.

A layer of transformers on a CPU, where live bytes are exact. Masks of dropout have a byte, as on a GPU.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
llama = pytest.importorskip("transformers.models.llama.modeling_llama")
peft = pytest.importorskip("peft")

from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.memory.layer import memory_pieces
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.updates.adapters import parse_adapter

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning"
)  # transformers names an attribute of its own anew
WIDTH, INNER, HEADS, KEY_HEADS, LENGTH, BATCH = 64, 224, 4, 1, 64, 64
UNIT = 2 * WIDTH * LENGTH * BATCH
"""Bytes of a hidden state in sixteen bits."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
ADAPTER = "lora:r=2,targets=attention"


class _Dropped(torch.autograd.Function):  # type: ignore[misc,name-defined,unused-ignore]
    """Dropout with a mask of a byte; torch's own for CPUs has one of the input's type."""

    @staticmethod
    def forward(ctx: Any, values: Any) -> Any:
        """Keep the mask."""
        mask = (torch.rand(values.shape) < 0.9).to(torch.uint8)
        ctx.save_for_backward(mask)
        return values * mask

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Drop the same."""
        return gradients[0] * ctx.saved_tensors[0]


class _Dropout(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
    """`_Dropped` as a module."""

    def forward(self, values: Any) -> Any:
        """Drop some."""
        return _Dropped.apply(values)


def layer_of(adapter: str) -> tuple[Any, Any, Any]:
    """A Llama layer in sixteen bits with adapters, its input and its rotary positions."""
    config = llama.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=INNER, num_attention_heads=HEADS, vocab_size=8,
        num_key_value_heads=KEY_HEADS, num_hidden_layers=1, max_position_embeddings=LENGTH,
        attn_implementation="sdpa",
    )  # fmt: skip
    whole = llama.LlamaModel(config).to(torch.bfloat16)
    if adapter:
        lora = peft.LoraConfig(
            r=2, target_modules=list(PROJECTIONS), lora_dropout=0.1 * ("dropout" in adapter)
        )
        whole = peft.get_peft_model(whole, lora, autocast_adapter_dtype=False).base_model.model
        for module in whole.modules():
            if "dropout" in adapter and hasattr(module, "lora_dropout"):
                module.lora_dropout["default"] = _Dropout()
    hidden = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    return whole.train().layers[0], hidden, whole.rotary_emb(hidden, torch.arange(LENGTH)[None])


def most_units(adapter: str) -> float:
    """Hidden states that exist at most in the backward of the recomputed layer, beside its input and output."""
    layer, hidden, positions = layer_of(adapter)

    def run(values: Any) -> Any:
        result = layer(values, position_embeddings=positions, attention_mask=None)
        return result[0] if isinstance(result, tuple) else result

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        output = checkpoint(run, hidden, use_reentrant=False)
        output.backward(torch.ones_like(output))
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most / UNIT - 1  # the output, which the next layer keeps


def counted_units(adapter: str) -> float:
    """The same, counted."""
    spec = replace(
        model("llama-2-7b"), name="one layer", num_layers=1, hidden_size=WIDTH, intermediate_size=INNER,
        num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, head_dim=WIDTH // HEADS,
        vocab_size=8, max_sequence_length=LENGTH,
    )  # fmt: skip
    job = TrainingJob(
        sequence_length=LENGTH, global_batch_size=BATCH, adapter=parse_adapter(adapter) if adapter else None
    )
    layout = ParallelLayout(microbatch_size=BATCH, recompute="full")
    pieces = memory_pieces(Workload(model=spec, job=job, stack=stack("pytorch")), layout)
    return float(np.ravel(pieces.working_bytes + pieces.recompute_working_bytes)[0]) / UNIT


@pytest.mark.parametrize("adapter", ["", ADAPTER, f"{ADAPTER},dropout=0.1"])
def test_a_recomputed_layer_takes_what_torch_allocates(adapter: str) -> None:
    """With all weights trained, with adapters, and with adapters whose input is dropped out."""
    assert counted_units(adapter) == pytest.approx(most_units(adapter), rel=0.03)
