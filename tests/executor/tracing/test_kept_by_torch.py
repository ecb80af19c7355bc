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
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.memory.layer import memory_pieces
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.switches.profile import with_switches

TOKENS, CLASSES, WIDTH = 256, 8192, 16
HELD: list[Any] = []
"""Logits in fp32 of a loop that holds them by name through its backward."""


def _held(wide: Any) -> Any:
    """The same logits, held."""
    HELD[:] = [wide]
    return wide


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
        ("prime-rl", lambda logits, wanted: cross_entropy(_held(logits.float()), wanted)),
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


WIDE, INNER, HEADS, LENGTH, BATCH = 512, 1408, 8, 192, 2


def odd_products() -> Any:
    """Contexts of a checkpointed layer that keep attention and every odd product, as torchtitan's do."""
    seen = {False: 0, True: 0}

    def policy(context: Any, op: Any, *_: Any, **__: Any) -> Any:
        product = op is torch.ops.aten.mm.default
        seen[context.is_recompute] += product
        keeps = product and seen[context.is_recompute] % 2 == 1
        attends = op is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        return CheckpointPolicy.MUST_SAVE if keeps or attends else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def llama_layer(attention: str = "sdpa") -> tuple[Any, Any, Any]:
    """A Llama layer of Hugging Face, its input and its rotary positions."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(
        hidden_size=WIDE, intermediate_size=INNER, num_attention_heads=HEADS, num_key_value_heads=HEADS,
        attn_implementation=attention, max_position_embeddings=LENGTH,
    )  # fmt: skip
    hidden = torch.randn(BATCH, LENGTH, WIDE, dtype=torch.bfloat16, requires_grad=True)
    rotated = llama.LlamaRotaryEmbedding(config)(hidden, torch.arange(LENGTH)[None])
    return llama.LlamaDecoderLayer(config, 0).bfloat16(), hidden, rotated


def checkpointed(layer: Any, rotated: Any, contexts: Callable[[], Any]) -> Callable[[Any], Any]:
    """The layer, checkpointed under these contexts."""

    def run(hidden: Any) -> Any:
        return checkpoint(
            layer, hidden, position_embeddings=rotated, attention_mask=None,
            use_reentrant=False, context_fn=contexts,
        )  # fmt: skip

    return run


def kept_eagerly(attention: str) -> float:
    """Activations that autograd keeps of such a layer, in sizes of its input."""
    layer, hidden, rotated = llama_layer(attention)
    aside = {x.untyped_storage().data_ptr() for x in (*layer.parameters(), *rotated)}
    sizes: dict[int, int] = {}

    def seen(tensor: Any) -> Any:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    mask = torch.zeros(1, 1, LENGTH, LENGTH, dtype=torch.bfloat16) if attention == "eager" else None
    with torch.autograd.graph.saved_tensors_hooks(seen, lambda tensor: tensor):
        layer(hidden, position_embeddings=rotated, attention_mask=mask)
    kept = sum(size for place, size in sizes.items() if place not in aside)
    return kept / (hidden.numel() * hidden.element_size())


def kept_by_profile(profile_of: str, policy: str, **switches: str) -> float:
    """The same layer's activations under a profile and a recompute policy, in sizes of its input."""
    spec = replace(
        model("llama-2-13b"), hidden_size=WIDE, intermediate_size=INNER, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, head_dim=WIDE // HEADS,
    )  # fmt: skip
    work = Workload(
        model=spec,
        job=TrainingJob(sequence_length=LENGTH, global_batch_size=BATCH),
        stack=with_switches(stack(profile_of), switches),
    )
    pieces = memory_pieces(work, ParallelLayout(microbatch_size=BATCH, recompute=policy))
    return float(pieces.layers[0].saved_bytes.ravel()[0]) / (LENGTH * BATCH * WIDE * 2)


@pytest.mark.parametrize(("attention", "kernel"), [("sdpa", "sdpa"), ("eager", "unfused")])
def test_an_eager_layer_keeps_what_autograd_keeps(attention: str, kernel: str) -> None:
    """Of scores a softmax in fp32, and in sixteen bits for the product."""
    kept = kept_eagerly(attention)
    assert kept_by_profile("pytorch", "none", attention_kernel=kernel) == pytest.approx(kept, rel=0.01)


def test_selective_by_operation_keeps_what_torchs_cache_holds() -> None:
    """Eager: the odd products with the last, whose result no gradient reads, and attention."""
    layer, hidden, rotated = llama_layer()
    contexts = odd_products()
    checkpointed(layer, rotated, lambda: contexts)(hidden)
    held = [output for results in contexts[0].storage.values() for output in results.values()]
    values = [getattr(x, "val", None) for x in tree_leaves(held)]
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    kept = 1 + sum(x.numel() * x.element_size() for x in tensors) / (hidden.numel() * hidden.element_size())
    assert kept_by_profile("torchtitan", "selective-op", compile="off") == pytest.approx(kept, rel=0.01)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_selective_by_operation_keeps_what_torchs_partitioner_keeps() -> None:
    """Compiled: without the last product."""
    layer, hidden, rotated = llama_layer()
    kept = units_kept(checkpointed(layer, rotated, odd_products), hidden)
    assert kept_by_profile("torchtitan", "selective-op", compile="on") == pytest.approx(kept, rel=0.01)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_layer_keeps_what_torchs_partitioner_keeps() -> None:
    """Of a Llama layer of Hugging Face: no wide norms and no activated gate beside its product."""
    layer, hidden, rotated = llama_layer()
    kept = units_kept(layer, hidden, position_embeddings=rotated, attention_mask=None)
    assert kept_by_profile("pytorch", "none", compile="on") == pytest.approx(kept, rel=0.01)


def test_a_compiled_softmax_in_fp32_is_kept_beside_its_cast() -> None:
    """Hugging Face's eager attention: bytes of a score that a compiled layer keeps, masks left out."""
    sizes: list[int] = []

    def forward(graph: Any, _: object) -> Any:
        outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        values = [getattr(node, "meta", {}).get("val") for node in outputs[1:]]
        scores = BATCH * HEADS * LENGTH * LENGTH
        sizes.extend(
            value.element_size()
            for value in values
            if isinstance(value, torch.Tensor) and value.numel() == scores
        )
        return graph

    layer, hidden, positions = llama_layer("eager")
    mask = torch.full((1, 1, LENGTH, LENGTH), float("-inf"), dtype=torch.bfloat16).triu(1)
    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=lambda graph, _: graph,
        partition_fn=min_cut_rematerialization_partition,
    )
    torch.compile(layer, backend=backend)(hidden, position_embeddings=positions, attention_mask=mask)
    compiled = with_switches(stack("pytorch"), {"compile": "on"})
    assert sum(sizes) == compiled.memory.kept_score_bytes
