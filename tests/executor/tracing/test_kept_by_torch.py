"""What torch itself keeps of a loss and of a compiled layer is what the profiles of its engines say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn.functional import cross_entropy, linear
from torch.profiler import ProfilerActivity, profile

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.memory.layer import memory_pieces
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.switches.profile import with_switches

TOKENS, CLASSES, WIDTH = 256, 8192, 16


def most_bytes_of_a_logit(loss: Callable[[Any, Any], Any]) -> float:
    """Bytes a logit that are allocated at most by a head and its loss, in a loop that holds its logits by name."""
    hidden, weight = (
        torch.randn(rows, WIDTH, dtype=torch.bfloat16, requires_grad=True) for rows in (TOKENS, CLASSES)
    )
    wanted = torch.randint(0, CLASSES, (TOKENS,))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        logits = linear(hidden, weight)
        loss(logits, wanted).backward()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most / (TOKENS * CLASSES)


@pytest.mark.parametrize(
    ("profile_of", "loss"),
    [
        ("pytorch-plain", cross_entropy),
        (
            "pytorch",
            lambda logits, wanted: cross_entropy(logits.float(), wanted),
        ),  # transformers' loss_utils.py
    ],
)
def test_a_loss_holds_as_many_bytes_a_logit_as_torch_allocates(
    profile_of: str, loss: Callable[[Any, Any], Any]
) -> None:
    """Logits, their cast, their log-softmax and the gradients of them, until the head's backward."""
    most = most_bytes_of_a_logit(loss)
    assert stack(profile_of).memory.loss_bytes_per_logit == pytest.approx(most, rel=0.01)


def units_kept(layer: Any, hidden: Any, **beside: Any) -> float:
    """Activations that torch keeps of a compiled layer for its backward, in sizes of its input."""
    kept: dict[str, int] = {}

    def forward(graph: Any, _: object) -> Any:
        outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        for node in outputs[1:]:
            value = getattr(node, "meta", {}).get("val")
            if isinstance(value, torch.Tensor) and (node.op != "placeholder" or value.shape == hidden.shape):
                kept[node.name] = value.numel() * value.element_size()
        return graph

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=lambda graph, _: graph,
        partition_fn=min_cut_rematerialization_partition,
    )
    torch.compile(layer, backend=backend)(hidden, **beside)
    aliases = kept.keys() - {name for name in kept if name.startswith("detach")}
    return sum(kept[name] for name in aliases) / (hidden.numel() * hidden.element_size())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_layer_keeps_what_torchs_partitioner_keeps() -> None:
    """Of a Llama layer of Hugging Face: no wide norms and no activated gate beside its product."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    heads, width, inner, length, batch = 8, 512, 1408, 192, 2
    config = llama.LlamaConfig(
        hidden_size=width, intermediate_size=inner, num_attention_heads=heads, num_key_value_heads=heads,
        attn_implementation="sdpa", max_position_embeddings=length,
    )  # fmt: skip
    layer = llama.LlamaDecoderLayer(config, 0).bfloat16()
    hidden = torch.randn(batch, length, width, dtype=torch.bfloat16, requires_grad=True)
    rotated = llama.LlamaRotaryEmbedding(config)(hidden, torch.arange(length)[None])
    kept = units_kept(layer, hidden, position_embeddings=rotated, attention_mask=None)
    spec = model("llama-2-13b")
    spec = replace(
        spec, hidden_size=width, intermediate_size=inner, num_attention_heads=heads, num_key_value_heads=heads,
        head_dim=width // heads,
    )  # fmt: skip
    work = Workload(
        model=spec,
        job=TrainingJob(sequence_length=length, global_batch_size=batch),
        stack=with_switches(stack("pytorch"), {"compile": "on"}),
    )
    layout = ParallelLayout(microbatch_size=batch, recompute="none")
    saved = memory_pieces(work, layout).layers[0].saved_bytes
    assert float(saved.ravel()[0]) / (length * batch * width * 2) == pytest.approx(kept, rel=0.01)
