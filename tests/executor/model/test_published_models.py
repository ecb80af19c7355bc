"""Published models compute what they were published to compute.

The oracle is Hugging Face's own implementation: a small model of each family with random weights is saved as
publishers do (config.json and safetensors), read here from these files alone, and must give the same logits.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file

from costmodel.models.hf.config import read_config
from costmodel.models.parameters import parameter_count
from costmodel.models.rotary import Rotary
from costmodel.models.spec import ModelSpec
from executor.model.attention.kernels import flex_on_cpu
from executor.model.hf_config import published_config
from executor.model.hf_publish import targets
from executor.model.pretrained import read_state_dict
from executor.model.transformer import build_model
from executor.parallel.weights import load_state_dict

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers, the oracle, is not installed"
)
CPU = torch.device("cpu")
TOLERANCE = 1e-5  # of the largest logit, in fp32
LENGTH = 48  # beyond every window and every original length below

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    **SIZES,
    **EXPERTS,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
DEEPSEEK_YARN = {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2": ("Llama", {**SIZES, "num_key_value_heads": 4, "rms_norm_eps": 1e-3}),
    "llama-3": ("Llama", {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "llama-3.1": ("Llama", {**SIZES, "rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True}),
    "llama-linear": (
        "Llama",
        {**SIZES, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "llama-biased": ("Llama", {**SIZES, "attention_bias": True, "mlp_bias": True, "head_dim": 8}),
    "mistral": ("Mistral", {**SIZES, "sliding_window": 7}),
    "mistral-full": ("Mistral", {**SIZES, "sliding_window": None, "head_dim": 32}),
    "mixtral": ("Mixtral", {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2.5": ("Qwen2", SIZES),
    "qwen2.5-windows": (
        "Qwen2",
        {**SIZES, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen2.5-yarn": ("Qwen2", {**SIZES, "rope_parameters": YARN}),
    "qwen3": ("Qwen3", {**SIZES, "head_dim": 32}),
    "qwen3-moe": (
        "Qwen3Moe",
        {**SIZES, **EXPERTS, "num_experts": 8, "norm_topk_prob": True, "head_dim": 32, "mlp_only_layers": [0]},
    ),
    "qwen3-moe-unnormalised": ("Qwen3Moe", {**SIZES, **EXPERTS, "num_experts": 8, "norm_topk_prob": False}),
    "deepseek-v2-lite": (
        "DeepseekV2",
        {**LATENT, "q_lora_rank": None, "topk_method": "greedy", "rope_parameters": DEEPSEEK_YARN},
    ),
    "deepseek-v2": (
        "DeepseekV2",
        {**LATENT, "q_lora_rank": 24, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
         "routed_scaling_factor": 16.0, "rope_parameters": DEEPSEEK_YARN},
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {**LATENT, "q_lora_rank": 24, "n_group": 4, "topk_group": 2, "rope_parameters": DEEPSEEK_YARN},
    ),
    "deepseek-v3-plain-pairs": (
        "DeepseekV3",
        {**LATENT, "q_lora_rank": 24, "n_group": 1, "topk_group": 1, "rope_interleave": False},
    ),
    "glm-4.5": (
        "Glm4Moe",
        {**SIZES, **EXPERTS, "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
         "attention_bias": True, "use_qk_norm": True, "head_dim": 16, "routed_scaling_factor": 2.5},
    ),
    "gpt-oss": (
        "GptOss",
        {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 5,
         "num_hidden_layers": 4, "swiglu_limit": 0.5, "intermediate_size": 64},
    ),
    "gemma-2": (
        "Gemma2",
        {**SIZES, "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24,
         "attn_logit_softcapping": 1.0, "final_logit_softcapping": 20.0},
    ),
    "gemma-3": (
        "Gemma3",
        {**SIZES, "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24, "num_hidden_layers": 7,
         "rope_parameters": {
             "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
             "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    ),
    "nemotron-4": ("Nemotron", {**SIZES, "head_dim": 16, "norm_eps": 1e-3}),
    "gpt-2": ("GPT2", {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}),
}  # fmt: skip


def published(name: str, folder: Path) -> Any:
    """A small model of a family with random weights, none left at a value that would hide it, on disk."""
    import transformers  # takes seconds, which workers that run other tests need not spend

    prefix, sizes = FAMILIES[name]
    config = {"Gemma3": "Gemma3TextConfig"}.get(prefix, f"{prefix}Config")
    head = {"GPT2": "GPT2LMHeadModel"}.get(prefix, f"{prefix}ForCausalLM")
    torch.manual_seed(0)
    options = {"attn_implementation": "eager"}
    model = getattr(transformers, head)._from_config(getattr(transformers, config)(**sizes), **options)
    with torch.no_grad():
        for key, value in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in key or "ln_" in key or key.endswith(("bias", "sinks", "bias_proj")):
                value.add_(0.3 * torch.randn_like(value))
            elif "inv_freq" not in key and "embed_scale" not in key:
                value.copy_(torch.randn_like(value) * 0.15)
    model.save_pretrained(folder)
    return model.eval()


def logits_of(spec: ModelSpec, folder: Path) -> Any:
    """Logits of the weights in a folder under a specification, for tokens that are always the same."""
    model = build_model(spec)
    load_state_dict(model, None, read_state_dict(folder), device=CPU)
    with torch.no_grad():
        return model(tokens_of(spec))


def tokens_of(spec: ModelSpec) -> Any:
    """Two sequences."""
    return torch.randint(0, spec.vocab_size, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def error(actual: Any, expected: Any) -> float:
    """Largest difference over the largest logit."""
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_published_code(name: str, tmp_path: Path) -> None:
    """From the files alone: the configuration decides the model, the names decide where weights go."""
    oracle = published(name, tmp_path)
    spec = read_config(tmp_path)
    with torch.no_grad():
        expected = oracle(tokens_of(spec)).logits
    assert error(logits_of(spec, tmp_path), expected) <= TOLERANCE
    assert sum(p.numel() for p in build_model(spec).parameters()) == parameter_count(spec)


@pytest.mark.parametrize("name", ["gpt-oss", "gemma-2", "gemma-3", "mistral", "qwen2.5-windows"])
def test_logits_are_the_same_through_what_a_gpu_runs(name: str, tmp_path: Path) -> None:
    """Windows, sinks and soft caps by FlexAttention, as torch defines its operators on a CPU."""
    oracle = published(name, tmp_path)
    spec = read_config(tmp_path)
    with torch.no_grad(), flex_on_cpu():
        assert error(logits_of(spec, tmp_path), oracle(tokens_of(spec)).logits) <= TOLERANCE


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_published_here_computes_the_same_there(name: str, tmp_path: Path) -> None:
    """Written anew from our parameters, the published code loads every tensor and gives its own logits."""
    import transformers

    oracle = published(name, tmp_path / "theirs")
    spec = read_config(tmp_path / "theirs")
    model = build_model(spec)
    load_state_dict(model, None, read_state_dict(tmp_path / "theirs"), device=CPU)
    family, config = published_config(spec)
    ours = {key: value.detach() for key, value in model.named_parameters()}
    state: dict[str, Any] = {}
    for target in targets(family, tuple(ours)):
        state |= target.publish([ours[key] for key in target.parameters])
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}))
    save_file({key: value.contiguous() for key, value in state.items()}, folder / "model.safetensors")
    written = replace(spec, num_nextn_predict_layers=0)  # it has no weights for them
    assert replace(read_config(folder), name=spec.name, source=spec.source) == written
    again, loading = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        expected = oracle(tokens_of(spec)).logits
        assert error(again.eval()(tokens_of(spec)).logits, expected) <= TOLERANCE


def changed(spec: ModelSpec, path: str, value: Any) -> ModelSpec:
    """The same model with one setting changed, named with dots."""
    head, _, rest = path.partition(".")
    return replace(spec, **{head: changed(getattr(spec, head), rest, value) if rest else value})


SETTINGS = [
    ("llama-2", "norm_epsilon", 1e-5),
    ("llama-3", "rotary.theta", 1e4),
    ("llama-3.1", "rotary.scaling", None),
    ("llama-3.1", "rotary.scaling.original_max_position_embeddings", 64),
    ("llama-linear", "rotary.scaling.factor", 2.0),
    ("mistral", "sliding_window", 8),
    ("qwen2.5-windows", "num_sliding_layers", 3),
    ("qwen2.5-yarn", "rotary.scaling.beta_slow", 0.1),
    ("qwen3-moe-unnormalised", "routing.norm_topk_prob", True),
    ("deepseek-v2", "routing.topk_group", 4),
    ("deepseek-v2", "rotary.scaling.mscale_all_dim", 0.7),
    ("deepseek-v3", "routing.routed_scaling_factor", 1.0),
    ("deepseek-v3", "rotary.interleaved", False),
    ("gpt-oss", "swiglu_limit", 7.0),
    ("gpt-oss", "sliding_window_pattern", 4),
    ("gpt-oss", "rotary.scaling.truncate", True),
    ("gpt-oss", "rotary.scaling.beta_fast", 4.0),
    ("gemma-2", "attn_logit_softcapping", None),
    ("gemma-2", "final_logit_softcapping", None),
    ("gemma-2", "query_pre_attn_scalar", None),
    ("gemma-2", "scale_embeddings", False),
    ("gemma-2", "norm", "rmsnorm"),
    ("gemma-2", "activation", "gelu"),
    ("gemma-3", "rotary.sliding_theta", None),
    ("nemotron-4", "rotary", Rotary()),
    ("nemotron-4", "activation", "gelu_tanh"),
]


@pytest.mark.parametrize(("name", "path", "value"), SETTINGS)
def test_each_setting_is_seen_in_the_logits(name: str, path: str, value: Any, tmp_path: Path) -> None:
    """The comparison above would fail if any of these were read wrong."""
    published(name, tmp_path)
    spec = read_config(tmp_path)
    assert error(logits_of(changed(spec, path, value), tmp_path), logits_of(spec, tmp_path)) > TOLERANCE
