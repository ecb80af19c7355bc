"""Shapes of hybrids and sparse attention are those that transformers builds, parameter by parameter."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from costmodel.models.hf.config import model_of_config
from costmodel.models.parameters import parameter_count
from costmodel.models.spec import layer_runs

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "qwen3_next": {
        "hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 64, "num_experts": 8,
        "num_experts_per_tok": 2, "shared_expert_intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "linear_num_key_heads": 4,
        "linear_num_value_heads": 8, "max_position_embeddings": 4096,
    },
    "qwen3_5_text": {
        "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 5, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 1000, "linear_num_key_heads": 4, "linear_num_value_heads": 12,
        "max_position_embeddings": 4096,
    },
    "nemotron_h": {
        "hidden_size": 512, "hybrid_override_pattern": "M-M*EM", "intermediate_size": 768, "mamba_num_heads": 8,
        "mamba_head_dim": 32, "ssm_state_size": 64, "n_groups": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000, "n_routed_experts": 8,
        "moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 160, "num_experts_per_tok": 2,
    },
    "nemotron_h latent": {
        "hidden_size": 512, "hybrid_override_pattern": "MEM*E", "intermediate_size": 768, "mamba_num_heads": 8,
        "mamba_head_dim": 32, "ssm_state_size": 64, "n_groups": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000, "n_routed_experts": 8,
        "moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 160, "num_experts_per_tok": 2,
        "moe_latent_size": 128,
    },
    "mamba2": {
        "hidden_size": 512, "num_heads": 16, "head_dim": 64, "state_size": 32, "n_groups": 2, "num_hidden_layers": 3,
        "vocab_size": 1000,
    },
    "kimi_linear": {
        "hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 64, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000, "num_local_experts": 8,
        "num_experts_per_tok": 2, "linear_num_heads": 4, "linear_head_dim": 64,
    },
    "minimax": {
        "hidden_size": 512, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000, "num_local_experts": 4,
        "max_position_embeddings": 4096, "num_experts_per_tok": 2,
    },
    "granitemoehybrid": {
        "hidden_size": 512, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8,
        "num_key_value_heads": 2, "vocab_size": 1000, "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 192, "layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 16,
        "mamba_n_groups": 2, "mamba_d_state": 64, "mamba_d_head": 64, "max_position_embeddings": 4096,
    },
    "glm_moe_dsa": {
        "hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 1000, "max_position_embeddings": 4096, "kv_lora_rank": 64, "q_lora_rank": 96,
        "qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "v_head_dim": 32,
    },
    "deepseek_v4": {
        "hidden_size": 512, "moe_intermediate_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 64, "q_lora_rank": 96, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 1000, "max_position_embeddings": 4096, "o_groups": 2, "o_lora_rank": 32, "index_n_heads": 4,
        "index_head_dim": 16, "index_topk": 8, "hc_mult": 3, "compress_ratios": [0, 128, 4, 128, 4, 0],
    },
    "deepseek_v4 by kinds": {
        "hidden_size": 512, "moe_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 64, "q_lora_rank": 96, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 1000, "max_position_embeddings": 4096, "o_groups": 2, "o_lora_rank": 32, "index_n_heads": 4,
        "index_head_dim": 16, "index_topk": 8,
        "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"],
        "compress_rates": {"compressed_sparse_attention": 8, "heavily_compressed_attention": 64},
    },
    "llama4_text": {
        "hidden_size": 512, "intermediate_size": 256, "intermediate_size_mlp": 640, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000,
        "num_local_experts": 4, "interleave_moe_layer_step": 2, "max_position_embeddings": 4096,
    },
    "cohere2": {
        "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096,
    },
}  # fmt: skip


@pytest.mark.parametrize("family", CONFIGS)
def test_a_family_has_the_parameters_that_transformers_gives_it(family: str) -> None:
    """The two agree exactly, but for router biases, which transformers holds as buffers."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    family, sizes = family.split(maxsplit=1)[0], CONFIGS[family]
    config = transformers.AutoConfig.for_model(family, **sizes)
    with torch.device("meta"):
        config.pad_token_id = None  # beyond so small a vocabulary
        built = transformers.AutoModelForCausalLM.from_config(config)
    parameters = {id(parameter): parameter.numel() for parameter in built.parameters()}
    spec = model_of_config({"model_type": family, **sizes}, name=family)
    assert parameter_count(replace(spec, router_bias=False)) == sum(parameters.values())
    assert sum(run.count for run in layer_runs(spec)) == spec.num_layers
