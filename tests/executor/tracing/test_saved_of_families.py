"""Of every family a table keeps what autograd keeps of a real forward pass of the same small model."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch._subclasses.fake_tensor import FakeTensorMode

from examples import diffusion
from examples.diffusion import DiT
from executor.tracing.of_transformers import of_configuration
from executor.tracing.trace import example_inputs, trace_module
from tests.counts import IS_NIGHTLY

TEXT = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
QUIET = {
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "attention_dropout": 0.0, "dropout": 0.0,
    "dropout_rate": 0.0, "activation_dropout": 0.0, "drop_path_rate": 0.0,
}  # fmt: skip
WORDS = {"vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
READS = {**TEXT, **WORDS, "max_position_embeddings": 16}
SEES = {**TEXT, "image_size": 32, "patch_size": 8}
T5 = {"d_model": 64, "d_ff": 128, "num_layers": 3, "num_heads": 4, "d_kv": 16, **WORDS}
WHISPER = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_source_positions": 50,
    "max_target_positions": 20, "decoder_start_token_id": 1, **WORDS,
}  # fmt: skip
CONVNEXT = {"hidden_sizes": [16, 32, 64, 128], "depths": [2, 2, 2, 2], "image_size": 64}
SWIN = {
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "image_size": 32,
    "window_size": 4,
    "patch_size": 4,
}
MAMBA2 = {
    "hidden_size": 64, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "num_hidden_layers": 2,
    "chunk_size": 8, **WORDS,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", READS),
    "roberta": ("RobertaModel", {**READS, "max_position_embeddings": 514, "vocab_size": 600}),
    "modernbert": ("ModernBertModel", {**READS, "max_position_embeddings": 64}),
    "t5": ("T5Model", T5),
    "whisper": ("WhisperModel", WHISPER),
    "vit": ("ViTForImageClassification", SEES),
    "clip": ("CLIPModel", {"text_config": READS, "vision_config": SEES}),
    "siglip": ("SiglipModel", {"text_config": READS, "vision_config": SEES}),
    "convnext": ("ConvNextForImageClassification", CONVNEXT),
    "swin": ("SwinForImageClassification", SWIN),
    "llama": ("LlamaModel", {**READS, "num_key_value_heads": 2}),
    "mamba": ("MambaModel", {"hidden_size": 64, "state_size": 16, "num_hidden_layers": 2, **WORDS}),
    "mamba2": ("Mamba2Model", MAMBA2),
}
"""Small, without a loss but that of CLIP, whose logarithms are in bf16."""


def kept_by_autograd(module: Any, inputs: list[Any]) -> int:
    """Bytes of all storages that are saved, parameters and inputs left out.

    A processor keeps mean and deviation of a norm in bf16, a GPU and the trace in fp32: two bytes more each.
    """
    kept: dict[int, int] = {}
    alive: list[Any] = []
    wider: list[int] = []

    def count(norm: Any, _: Any, out: Any) -> None:
        wider.append(2 * 2 * out.numel() // norm.normalized_shape[0])

    for norm in module.modules():
        if isinstance(norm, torch.nn.LayerNorm):
            norm.register_forward_hook(count)
    known = {p.untyped_storage().data_ptr() for p in (*module.parameters(), *inputs)}

    def keep(tensor: Any) -> Any:
        alive.append(tensor)
        if tensor.untyped_storage().data_ptr() not in known:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        alive.append(module(*inputs))
    return sum(kept.values()) + sum(wider)


def kept_by_table(module: Any, inputs: list[Any]) -> float:
    """Bytes of a trace: of its blocks and ends, and the logarithms of its loss."""
    found = trace_module(module, inputs)
    parts = [(1, found.stem), *zip(found.counts, found.kinds, strict=True), (1, found.head)]
    return float(inputs[0].shape[0] * sum(n * (part.saved_bytes + 2 * part.logits) for n, part in parts))


def real(tensor: Any) -> Any:
    """Numbers in the place of sizes; tokens are small."""
    if tensor.is_floating_point():
        return torch.randn(tensor.shape).bfloat16()
    return torch.randint(3, 100, tensor.shape)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_keeps_what_autograd_keeps(family: str) -> None:
    """Attention written out, so that the processor and the trace run the same operations."""
    kind, sizes = FAMILIES[family]
    written = {} if family.startswith("mamba") else {**QUIET, "attn_implementation": "eager"}
    config = transformers.AutoConfig.for_model(family, **written, **sizes)
    config.architectures = [kind]
    module, usual = of_configuration(config)
    inputs = [real(one) for one in example_inputs(usual.replace("x512:", "x32:"))]
    expected = kept_by_autograd(module.bfloat16().train(), inputs)
    assert kept_by_table(module, inputs) == pytest.approx(expected, rel=1e-9)


def test_a_diffusion_transformer_keeps_what_autograd_keeps() -> None:
    """Fused attention: the kernel of a GPU keeps the state of its random numbers too, 24 bytes a layer."""
    module = DiT(64, 3, 4)
    inputs = [real(one) for one in example_inputs("2x4x32x32,2,2:long")]
    expected = kept_by_autograd(module.bfloat16(), inputs) + 3 * 24
    assert kept_by_table(module, inputs) == pytest.approx(expected, rel=1e-9)


RANDOM_STATE = 24  # bytes that the fused attention of a GPU keeps, and that of a processor does not


def attentions(module: Any) -> int:
    """Attentions of a denoiser."""
    return sum(isinstance(part, diffusion.Attention) for part in module.modules())


def test_a_small_u_net_keeps_what_autograd_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions, group norms, skips and cross-attention, with numbers."""
    sizes = {"WIDTHS": (32, 64, 128), "HEAD": 16, "GROUPS": 8, "TEXT": 48, "TIME": 64, "ADDED": 40}
    for name, size in sizes.items():
        monkeypatch.setattr(diffusion, name, size)
    module = diffusion.sdxl_unet().bfloat16()
    inputs = [real(one) for one in example_inputs("2x4x32x32,2,2x7x48,2x40")]
    expected = kept_by_autograd(module, inputs) + RANDOM_STATE * attentions(module)
    assert kept_by_table(module, inputs) == pytest.approx(expected, rel=1e-9)


@pytest.mark.skipif(not IS_NIGHTLY, reason="of the nightly run: the small U-Net has the same operations")
def test_the_u_net_of_sdxl_keeps_what_autograd_keeps() -> None:
    """At its published size and 1,024 x 1,024 pixels, on fake tensors of a processor: 13.8 GB of two images."""
    kept: dict[int, int] = {}
    alive: list[Any] = []
    rows: list[int] = []
    words = "2x4x128x128,2,2x77x2048,2x2816"
    fake, before = FakeTensorMode(), torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        with fake:
            module = diffusion.sdxl_unet()
            inputs = [torch.zeros(one.shape, dtype=one.dtype) for one in example_inputs(words)]
    finally:
        torch.set_default_dtype(before)
    known = {one.untyped_storage()._cdata for one in (*module.parameters(), *inputs)}
    for norm in module.modules():
        if isinstance(norm, torch.nn.LayerNorm):
            norm.register_forward_hook(
                lambda one, _, out: rows.append(out.numel() // one.normalized_shape[0])
            )

    def keep(tensor: Any) -> Any:
        alive.append(tensor)
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with fake, torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        alive.append(module(*inputs))
    wider = 2 * 2 * sum(rows)  # mean and deviation of a norm, in fp32 on a GPU
    with torch.device("meta"):
        traced = diffusion.sdxl_unet()
    expected = sum(kept.values()) + wider + RANDOM_STATE * attentions(traced)
    assert kept_by_table(traced, example_inputs(words)) == pytest.approx(expected, rel=1e-9)
