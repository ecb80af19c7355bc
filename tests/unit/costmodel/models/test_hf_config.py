"""A config.json of each family becomes the catalogued model; a broken one is answered in three lines."""

import dataclasses
import json
import sys
import types
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel.models.catalog import model
from costmodel.models.hf.config import model_of_config, read_config
from costmodel.models.parameters import mixer_parameters, parameter_count, without_tower
from costmodel.models.spec import ModelSpec, is_sliding, layer_runs
from planner.questions.flags import Flags
from planner.questions.training import understand
from topology.base.errors import InputError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
DEEPSEEK_YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
    "type": "yarn",
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": DEEPSEEK_YARN,
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
DEEPSEEK_V2_LITE = {
    **DEEPSEEK_V3,
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": None,
    "rope_scaling": {**DEEPSEEK_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_group": 1,
    "topk_method": "greedy",
    "vocab_size": 102400,
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": LLAMA,
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v2-lite": DEEPSEEK_V2_LITE,
    "gpt-oss-20b": GPT_OSS_20B,
    "qwen3-30b-a3b": QWEN3_MOE,
    "gpt-2-xl": {
        "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024,
        "vocab_size": 50257,
    },
    "mistral-7b-v0.1": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "vocab_size": 32000,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_local_experts": 8, "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 32000,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072,
        "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "sliding_window": 131072, "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 152064,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    },
    "qwen3-8b": {
        "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_size": 4096,
        "intermediate_size": 12288, "max_position_embeddings": 40960, "num_attention_heads": 32,
        "num_hidden_layers": 36, "num_key_value_heads": 8, "tie_word_embeddings": False, "vocab_size": 151936,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000,
    },
    "gemma-2-9b": {
        "model_type": "gemma2", "head_dim": 256, "hidden_size": 3584, "intermediate_size": 14336,
        "max_position_embeddings": 8192, "num_attention_heads": 16, "num_hidden_layers": 42,
        "num_key_value_heads": 8, "sliding_window": 4096, "vocab_size": 256000, "hidden_act": "gelu_pytorch_tanh",
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    },
    "gemma-3-4b": {  # the published file leaves the rest to the defaults of its class
        "model_type": "gemma3", "mm_tokens_per_image": 256, "vision_config": {"hidden_size": 1152},
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
    },
    "nemotron-4-15b": {
        "model_type": "nemotron", "attention_bias": False, "hidden_act": "relu2", "hidden_size": 6144,
        "intermediate_size": 24576, "max_position_embeddings": 4096, "mlp_bias": False, "num_attention_heads": 48,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "tie_word_embeddings": False, "vocab_size": 256000,
        "norm_eps": 1e-05, "partial_rotary_factor": 0.5, "rope_theta": 10000,
    },
    "phi-4": {
        "model_type": "phi3", "attention_bias": False, "hidden_act": "silu", "hidden_size": 5120,
        "intermediate_size": 17920, "max_position_embeddings": 16384, "num_attention_heads": 40,
        "num_hidden_layers": 40, "num_key_value_heads": 10, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 250000, "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 100352,
    },
    "smollm3-3b": {
        "model_type": "smollm3", "attention_bias": False, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 11008, "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65536,
        "mlp_bias": False, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
        "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_theta": 5000000.0, "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 128256,
    },
    "olmo-2-13b": {
        "model_type": "olmo2", "attention_bias": False, "hidden_act": "silu", "hidden_size": 5120,
        "intermediate_size": 13824, "max_position_embeddings": 4096, "num_attention_heads": 40,
        "num_hidden_layers": 40, "num_key_value_heads": 40, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 500000, "tie_word_embeddings": False, "vocab_size": 100352,
    },
    "olmo-3-32b": {
        "model_type": "olmo3", "attention_bias": False, "hidden_act": "silu", "hidden_size": 5120,
        "intermediate_size": 27648, "max_position_embeddings": 65536, "num_attention_heads": 40,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 16,
        "num_hidden_layers": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "sliding_window": 4096,
        "rope_scaling": {
            "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
            "original_max_position_embeddings": 8192, "rope_type": "yarn",
        },
        "rope_theta": 500000, "tie_word_embeddings": False, "vocab_size": 100278,
    },
    "minimax-m2": {
        "model_type": "minimax_m2", "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072,
        "intermediate_size": 1536, "max_position_embeddings": 196608, "num_attention_heads": 48,
        "num_experts_per_tok": 8, "num_hidden_layers": 62, "num_key_value_heads": 8, "num_local_experts": 256,
        "rms_norm_eps": 1e-06, "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid",
        "shared_intermediate_size": 0, "tie_word_embeddings": False, "use_qk_norm": True,
        "use_routing_bias": True, "vocab_size": 200064,
    },
    "qwen3-next-80b-a3b": {
        "model_type": "qwen3_next", "attention_bias": False, "decoder_sparse_step": 1, "full_attention_interval": 4,
        "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5120,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
        "mlp_only_layers": [], "moe_intermediate_size": 512, "norm_topk_prob": True, "num_attention_heads": 16,
        "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2,
        "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000000,
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512, "tie_word_embeddings": False,
        "vocab_size": 151936,
    },
    "qwen3.5-397b-a17b": {
        "model_type": "qwen3_5_moe", "vision_config": {"hidden_size": 1152}, "tie_word_embeddings": False,
        "text_config": {
            "attention_bias": False, "attn_output_gate": True, "full_attention_interval": 4, "head_dim": 256,
            "hidden_act": "silu", "hidden_size": 4096,
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 15,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 64, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
            "mlp_only_layers": [], "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 1024,
            "num_attention_heads": 32, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 60,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001,
            "shared_expert_intermediate_size": 1024, "vocab_size": 248320,
        },
    },
    "nemotron-3-nano-30b-a3b": {
        "model_type": "nemotron_h", "attention_bias": False, "chunk_size": 128, "conv_kernel": 4, "head_dim": 128,
        "hidden_size": 2688, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "intermediate_size": 1856, "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_num_heads": 64,
        "max_position_embeddings": 262144, "mlp_hidden_act": "relu2", "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8, "n_routed_experts": 128,
        "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts_per_tok": 6,
        "num_hidden_layers": 52, "num_key_value_heads": 2, "routed_scaling_factor": 2.5, "ssm_state_size": 128,
        "tie_word_embeddings": False, "topk_group": 1, "use_bias": False, "use_conv_bias": True,
        "vocab_size": 131072,
    },
    "kimi-linear-48b-a3b": {
        "model_type": "kimi_linear", "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2304,
        "intermediate_size": 9216, "kv_lora_rank": 512, "moe_intermediate_size": 1024, "moe_layer_freq": 1,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
            "kda_layers": [n for n in range(1, 27) if n % 4], "short_conv_kernel_size": 4,
        },
        "num_attention_heads": 32, "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27,
        "num_key_value_heads": 32, "num_shared_experts": 1, "q_lora_rank": None, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "routed_scaling_factor": 2.446,
        "tie_word_embeddings": False, "v_head_dim": 128, "vocab_size": 163840,
    },
    "glm-5": {
        "num_nextn_predict_layers": 1,
        "model_type": "glm_moe_dsa", "first_k_dense_replace": 3, "hidden_size": 6144, "index_head_dim": 128,
        "index_n_heads": 32, "index_topk": 2048, "intermediate_size": 12288, "kv_lora_rank": 512,
        "max_position_embeddings": 202752, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 78,
        "num_key_value_heads": 64, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "routed_scaling_factor": 2.5, "tie_word_embeddings": False, "v_head_dim": 256, "vocab_size": 154880,
    },
    "llama-4-maverick": {
        "model_type": "llama4", "vision_config": {"hidden_size": 1408},
        "text_config": {
            "model_type": "llama4_text", "attention_bias": False, "head_dim": 128, "hidden_size": 5120,
            "interleave_moe_layer_step": 2, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "max_position_embeddings": 1048576, "num_attention_heads": 40, "num_experts_per_tok": 1,
            "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 128, "rms_norm_eps": 1e-05,
            "rope_theta": 500000.0, "use_qk_norm": False, "vocab_size": 202048,
        },
    },
    "kimi-k2": {  # the text part of Kimi-K2.5, which also sees
        "model_type": "kimi_k25", "vision_config": {"hidden_size": 1152},
        "text_config": {
            "model_type": "kimi_k2", "attention_bias": False, "first_k_dense_replace": 1, "hidden_act": "silu",
            "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "q_lora_rank": 1536,
            "max_position_embeddings": 131072, "moe_intermediate_size": 2048, "n_group": 1, "topk_group": 1,
            "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 64,
            "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_theta": 50000.0,
            "rope_scaling": {
                "type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0,
                "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            },
            "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "tie_word_embeddings": False,
            "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 163840,
        },
    },
}  # fmt: skip
SEEING = {
    "kimi-k3": {
        "model_type": "kimi_k3", "vision_config": {}, "text_config": {
            "model_type": "kimi_linear", "first_k_dense_replace": 1, "hidden_act": "situ", "hidden_size": 7168,
            "intermediate_size": 33792, "kv_lora_rank": 512, "moe_intermediate_size": 3072, "moe_layer_freq": 1,
            "linear_attn_config": {
                "full_attn_layers": [*range(4, 93, 4), 93], "head_dim": 128, "num_heads": 96,
                "short_conv_kernel_size": 4, "use_full_rank_gate": True, "gate_lower_bound": -5.0,
            },
            "attn_res_block_size": 12, "mla_use_nope": True, "mla_use_output_gate": True,
            "max_position_embeddings": 1048576, "num_attention_heads": 96, "num_experts": 896,
            "num_experts_per_token": 16, "num_hidden_layers": 93, "num_key_value_heads": 96,
            "num_shared_experts": 2, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "rms_norm_eps": 1e-05, "routed_expert_hidden_size": 3584, "routed_scaling_factor": 1.0,
            "tie_word_embeddings": False, "v_head_dim": 128, "vocab_size": 163840,
        },
    },
    "minimax-m3": {
        "model_type": "minimax_m3_vl", "vision_config": {}, "text_config": {
            "dense_intermediate_size": 12288, "head_dim": 128, "hidden_act": "swigluoai", "hidden_size": 6144,
            "intermediate_size": 3072, "max_position_embeddings": 1048576, "moe_layer_freq": [0] * 3 + [1] * 57,
            "num_mtp_modules": 1,
            "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 60,
            "num_key_value_heads": 4, "num_local_experts": 128, "rms_norm_eps": 1e-06, "rope_theta": 5000000,
            "rotary_dim": 64, "routed_scaling_factor": 2.0, "scoring_func": "sigmoid",
            "shared_intermediate_size": 3072, "swiglu_limit": 7.0, "tie_word_embeddings": False,
            "use_qk_norm": True, "use_routing_bias": True, "vocab_size": 200064,
            "sparse_attention_config": {
                "use_sparse_attention": True, "sparse_index_dim": 128, "sparse_num_index_heads": 4,
                "sparse_topk_blocks": 16, "sparse_block_size": 128,
                "sparse_attention_freq": [0] * 3 + [1] * 57,
            },
        },
    },
}  # fmt: skip
"""Published configurations of catalogued language models that lie beside a tower."""
CONFIGS["glm-5.2"] = {
    **CONFIGS["glm-5"],
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "max_position_embeddings": 1048576,
}


@pytest.mark.parametrize(
    "words",
    [
        {"index_topk_freq": 4, "index_skip_topk_offset": 2},
        {"index_topk_pattern": "FFF" + "SSSF" * 18 + "SSS"},
        {"indexer_types": ["full"] * 3 + ["shared", "shared", "shared", "full"] * 18 + ["shared"] * 3},
    ],
)
def test_layers_that_reuse_a_choice_are_counted_however_they_are_named(words: dict[str, Any]) -> None:
    """21 of 78, as TensorRT-LLM's tests have GLM-5.2's schedule."""
    assert model_of_config({**CONFIGS["glm-5"], **words}, name="glm").index_layers == 21


def sizes(spec: ModelSpec) -> ModelSpec:
    """A model without its name and source."""
    return dataclasses.replace(spec, name="", source="", as_of="")


@pytest.mark.parametrize("name", SEEING)
def test_a_language_model_beside_a_tower_is_the_catalogued_one(name: str) -> None:
    """What its checkpoint stores apart: that is in its ``quantization_config``."""
    told, known = model_of_config(SEEING[name], name=name), model(name)
    apart = {"left_out": "", "weight_format": "", "stored": told.stored}
    assert sizes(replace(told, left_out="")) == sizes(replace(known, **apart))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_becomes_the_catalogued_model(name: str) -> None:
    """Reading the published file and naming the model are the same thing, and so are towers that both have."""
    told, known = without_tower(model_of_config(CONFIGS[name], name=name)), model(name)
    seen = told.encoder if known.encoder is not None else None
    assert sizes(replace(told, left_out="", encoder=seen)) == sizes(known)


HYBRID = CONFIGS["nemotron-3-nano-30b-a3b"]


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        ({**HYBRID, "mlp_bias": True}, "mlp_bias"),
        ({**HYBRID, "hybrid_override_pattern": "MEX"}, "hybrid_override_pattern"),
        ({**HYBRID, "use_bias": True}, "use_bias"),
        ({**CONFIGS["qwen3-next-80b-a3b"], "mlp_only_layers": [0]}, "mlp_only_layers"),
        ({**CONFIGS["qwen3-next-80b-a3b"], "layer_types": ["linear_attention"] * 4}, "names 4 layers"),
        ({**CONFIGS["glm-5"], "indexer_types": ["full", "shared"] * 3}, "does not name every layer"),
    ],
)
def test_what_changes_shapes_and_is_not_understood_is_refused(config: dict[str, Any], cause: str) -> None:
    """A hybrid's key that no size stands for is named, and nothing is planned in its place."""
    with pytest.raises(InputError, match=cause):
        model_of_config(config, name="hybrid")


def test_a_file_and_a_folder_are_read_alike(tmp_path: Path) -> None:
    """A checkout of a model is a folder with a config.json in it."""
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert (model(str(folder)), read_config(folder / "config.json").name) == (read_config(folder), "my-llama")


def test_a_constant_that_python_writes_is_no_number(tmp_path: Path) -> None:
    """Configurations of Mamba-2 hold an infinite limit of time steps; where a size is one, it is refused."""
    file = tmp_path / "config.json"
    sizes = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    told = {"model_type": "gpt2", "time_step_limit": [0.0, float("inf")], **sizes}
    file.write_text(json.dumps(told), encoding="utf-8")
    assert "Infinity" in file.read_text(encoding="utf-8")
    assert read_config(file).num_layers == 12
    file.write_text(json.dumps({**told, "n_layer": float("inf")}), encoding="utf-8")
    with pytest.raises(InputError, match="n_layer"):
        read_config(file)


def test_biases_of_a_llama_variant_are_counted() -> None:
    """attention_bias adds q, k, v and o biases; mlp_bias adds those of the three matrices."""
    biased = model_of_config({**LLAMA, "attention_bias": True, "mlp_bias": True}, name="biased")
    plain = model_of_config(LLAMA, name="plain")
    per_layer = 4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096
    assert parameter_count(biased) - parameter_count(plain) == 32 * per_layer


def test_every_missing_key_is_reported_at_once() -> None:
    """The user edits the file once, not once per key."""
    config = {key: value for key, value in LLAMA.items() if key not in ("hidden_size", "vocab_size")}
    with pytest.raises(InputError) as error:
        model_of_config(config, name="broken")
    assert error.value.cause == "missing key hidden_size; missing key vocab_size"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"hidden_size": "4096"}, "hidden_size = '4096' is not an integer between 1 and 100000000"),
        ({"hidden_size": 4096.5}, "hidden_size = 4096.5 is not an integer between 1 and 100000000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0 is not an integer between 1 and 100000000"),
        ({"num_hidden_layers": -3}, "num_hidden_layers = -3 is not an integer between 1 and 100000000"),
        ({"vocab_size": True}, "vocab_size = True is not an integer between 1 and 100000000"),
        ({"vocab_size": 10**30}, f"vocab_size = {10**30} is not an integer between 1 and 100000000"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings = 'no' is neither true nor false"),
        ({"num_key_value_heads": 5}, "num_attention_heads 32 is not a multiple of num_key_value_heads 5"),
        (
            {"model_type": "mamba", "state_size": 16},
            "model_type 'mamba' has no name here; no block that is known here has state_size",
        ),
        ({"model_type": ["llama"]}, "model_type ['llama'] is not known"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, Any], cause: str) -> None:
    """The error prints the key and the value that was found."""
    with pytest.raises(InputError) as error:
        model_of_config({**LLAMA, **change}, name="broken")
    assert error.value.cause == cause


def test_rotary_positions_are_read_in_the_old_words_and_the_new() -> None:
    """Version 5 of transformers keeps the base and the stretching in one object."""
    new = {key: value for key, value in LLAMA.items() if key not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {**LLAMA["rope_scaling"], "rope_theta": 500000.0}
    assert model_of_config(new, name="new") == model_of_config(LLAMA, name="new")


def test_rotary_positions_by_kind_of_layer_are_read_in_both() -> None:
    """Gemma 3: windowed layers have a base of their own and are not stretched."""
    text = CONFIGS["gemma-3-4b"]["text_config"]
    new = {key: value for key, value in text.items() if key != "rope_scaling"}
    new["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    assert model_of_config(new, name="new").rotary == model("gemma-3-4b").rotary


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type = 'dynamic'"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "rope_type = ['yarn']"),
        ({"hidden_act": "tanh"}, "hidden_act = 'tanh'"),
    ],
)
def test_a_setting_without_a_field_is_kept_by_name(change: dict[str, Any], named: str) -> None:
    """It costs nothing, so such a model is planned; whoever computes it can refuse."""
    read = model_of_config({**LLAMA, **change}, name="unusual")
    assert (read.unmodelled, parameter_count(read)) == ((named,), parameter_count(model("llama-3.1-8b")))


@pytest.mark.parametrize(
    ("kinds", "pattern", "windowed"),
    [("ssssf" * 2, 5, [0, 1, 2, 3, 5, 6, 7, 8]), ("ffffffssss", 0, [6, 7, 8, 9])],
)
def test_windows_are_those_of_the_stated_layers(kinds: str, pattern: int, windowed: list[int]) -> None:
    """A period, or a run at the end."""
    names = {"s": "sliding_attention", "f": "full_attention"}
    stated = {**GPT_OSS_20B, "num_hidden_layers": 10, "layer_types": [names[kind] for kind in kinds]}
    read = model_of_config(stated, name="windows")
    assert [layer for layer in range(10) if is_sliding(read, layer)] == windowed
    assert (read.sliding_window_pattern, read.num_sliding_layers) == (pattern, len(windowed))


@pytest.mark.parametrize(("change", "window"), [({}, 128), ({"sliding_window": None}, None)])
def test_an_unstated_window_is_the_one_of_the_family(change: dict[str, Any], window: int | None) -> None:
    """Without the key the family's default holds, as in its published code; null is no window."""
    unstated = {key: value for key, value in GPT_OSS_20B.items() if key != "sliding_window"}
    assert model_of_config({**unstated, **change}, name="windows").sliding_window == window


QUANTISED: list[tuple[object, str]] = [
    ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, "fp8"),
    ({"quant_method": "fbgemm_fp8"}, "fp8"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4"),
    ({"quant_method": "gptq", "bits": 8}, "int8"),
    ({"quant_method": "awq", "bits": 4, "version": "gemm"}, "int4"),
    ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, "fp4"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4"),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
    (
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}},
        "int4",
    ),
    (
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}},
        "fp8",
    ),
    (
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float"}}}},
        "fp4",
    ),
    ({"quant_method": "gptq", "bits": 3}, "other"),
    ({"quant_method": "aqlm"}, "other"),
    ({"quant_method": ["fp8"], "bits": [4]}, "other"),
    ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": []}}}, "other"),
    ({}, "other"),
    ([], "other"),
    (None, ""),
]  # fmt: skip


@pytest.mark.parametrize(("stated", "expected"), QUANTISED)
def test_the_format_of_a_quantised_checkpoint_is_read(stated: object, expected: str) -> None:
    """As the quantisers write it; what is not known is said to be so, and changes nothing else."""
    read = model_of_config({**LLAMA, "quantization_config": stated}, name="quantised")
    assert read.weight_format == expected
    block = 128 if isinstance(stated, dict) and "weight_block_size" in stated else 0
    assert read.stored.block == block
    assert read.stored.group == (stated.get("group_size", 0) if isinstance(stated, dict) else 0)
    stored = dataclasses.replace(read.stored, block=0, group=0)
    plain = dataclasses.replace(read, weight_format="", stored=stored)
    assert plain == model_of_config(LLAMA, name="quantised")


def test_windows_without_a_rule_are_kept_by_name() -> None:
    """Neither a period nor a run: counted for costs, not placed."""
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    read = model_of_config({**GPT_OSS_20B, "num_hidden_layers": 4, "layer_types": kinds}, name="windows")
    assert (read.num_sliding_layers, len(read.unmodelled)) == (2, 1)


def test_layers_that_are_not_uniform_are_refused_rather_than_guessed() -> None:
    """Dense layers between expert layers are not among the catalogued families."""
    with pytest.raises(InputError, match="decoder_sparse_step"):
        model_of_config({**QWEN3_MOE, "decoder_sparse_step": 2}, name="mixed")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b'{"model_type": "llama", "hidden_size": 40', "is not valid JSON"),
        (b"\xff\xfe\x00", "is not a text file"),
        (b"[1, 2]", "is not a model configuration"),
        (b"{}", "describes no model"),
        (b"", "is not valid JSON"),
    ],
)
def test_a_broken_file_is_answered_in_three_lines(tmp_path: Path, content: bytes, what: str) -> None:
    """Truncated, binary, empty or wrong: what, cause and help."""
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError) as error:
        model(str(file))
    assert (what in error.value.what, len(str(error.value).splitlines())) == (True, 3)


def test_a_missing_file_and_a_folder_without_config_are_errors(tmp_path: Path) -> None:
    """Neither is mistaken for a model name."""
    with pytest.raises(InputError, match="does not exist"):
        model(str(tmp_path / "nowhere" / "config.json"))
    with pytest.raises(InputError, match="directory"):
        model(str(tmp_path))


def test_a_catalogued_repository_name_needs_no_network() -> None:
    """Names as the hub writes them find the catalogued model."""
    assert model("deepseek-ai/DeepSeek-V3") == model("deepseek-v3")


def _hub(monkeypatch: pytest.MonkeyPatch, download: Any) -> None:
    """Put a stand-in for huggingface_hub where it will be imported from."""
    module = types.ModuleType("huggingface_hub")
    vars(module)["hf_hub_download"] = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


def test_an_unknown_repository_is_read_from_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its config.json is fetched and read like any other."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    _hub(monkeypatch, lambda _repository, file, **_: tmp_path / file)
    assert (model("acme/rocket").name, sizes(model("acme/rocket"))) == (
        "acme/rocket",
        sizes(model("llama-3.1-8b")),
    )


def test_a_repository_that_cannot_be_fetched_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection, or no such repository: three lines."""

    def refuse(repository: str, file: str, **_: object) -> str:
        raise OSError("404: Repository Not Found")

    _hub(monkeypatch, refuse)
    with pytest.raises(InputError) as error:
        model("acme/rocket")
    assert error.value.cause == "404: Repository Not Found"


def test_without_the_hub_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core install reads files and the catalog only."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"meshplan\[hub\]"):
        model("acme/rocket")


def test_a_model_whose_tower_is_not_described_says_that_it_is_left_out():
    """Its language model alone is described; the tower of CLIP-L/14 has 0.3 B parameters."""
    vision = {"num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 4096}
    text = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 32064, "max_position_embeddings": 4096,
    }  # fmt: skip
    seeing = model_of_config(
        {"model_type": "flamingo", "text_config": text, "vision_config": vision}, name="llava"
    )
    alone = model_of_config(text, name="llava")
    assert seeing.left_out == "a vision tower of 24 layers (0.3 B parameters) and what joins it"
    assert replace(seeing, left_out="") == alone
    for odd in ({"num_hidden_layers": True}, {"depth": -1}, {}, {**vision, "hidden_size": "1024"}):
        told = model_of_config(
            {"model_type": "flamingo", "text_config": text, "vision_config": odd}, name="llava"
        )
        assert told.left_out == "a vision tower and what joins it"
    both = {"text_config": text, "vision_config": vision, "audio_config": {}}
    assert "and an audio tower and what joins them" in model_of_config(both, name="omni").left_out
    understood = understand(Flags(model="x", gpus="8"), model=seeing)
    assert any("without a vision tower" in note for note in understood.notes)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen2_5_vl_text"])
def test_the_language_model_of_qwen_vl_is_qwens(family):
    """Qwen2.5-VL-7B without its tower is Qwen2.5-7B; its rotary positions in three parts cost nothing."""
    text = {
        "model_type": family, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
        "max_position_embeddings": 128000, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    }  # fmt: skip
    told = model_of_config({**text, "vision_config": {"depth": 32, "hidden_size": 1280}}, name="vl")
    alone = without_tower(told)
    assert parameter_count(alone) == parameter_count(model("qwen2.5-7b")) == 7_615_616_512
    described = family != "qwen2_5_vl_text"
    assert (told.tower is not None) == described
    assert alone.left_out.startswith(f"a vision tower{' of 32 layers' * described} and what joins it")


V4: dict[str, Any] = {
    "model_type": "deepseek_v4", "hidden_size": 512, "moe_intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 8, "head_dim": 64, "q_lora_rank": 96, "n_routed_experts": 8, "vocab_size": 1000,
    "max_position_embeddings": 4096, "o_groups": 2, "o_lora_rank": 32, "index_n_heads": 4, "index_head_dim": 16,
    "qk_rope_head_dim": 16, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"mlp_bias": True}, "mlp_bias"),
        ({"n_shared_experts": 2}, "n_shared_experts other than 1"),
        ({"hc_mult": 1}, "hc_mult = 1"),
        ({"qk_rope_head_dim": 640}, "640 of 64 dimensions"),
        ({"qk_rope_head_dim": 7}, "7 of 64 dimensions"),
        ({"o_groups": 3}, "8 heads x 64 numbers in 3 groups"),
        ({"compress_ratios": [4]}, "does not name 3 layers"),
        ({"compress_ratios": [4, 5, 128]}, "5 is not one of 0, 4, 128"),
        ({"layer_types": "x"}, "does not name 3 layers"),
    ],
)
def test_a_deepseek_v4_that_cannot_be_is_refused(change: dict[str, Any], cause: str) -> None:
    """Sizes that transformers would not build, or builds otherwise than is counted here."""
    with pytest.raises(InputError) as raised:
        model_of_config({**V4, **change}, name="v4")
    assert cause in raised.value.cause


def test_a_rate_of_its_own_wins_over_the_table() -> None:
    """As transformers folds legacy words in."""
    both = {"compress_rates": {"compressed_sparse_attention": 16}, "compress_rate_csa": 8}
    spec = model_of_config({**V4, **both}, name="v4")
    assert spec.compression is not None
    assert spec.compression.sparse_rate == 8


GEMMA_4: dict[str, Any] = {
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text", "vocab_size": 262144, "hidden_size": 5376, "intermediate_size": 21504,
        "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256,
        "global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": True,
        "sliding_window": 1024, "max_position_embeddings": 262144, "final_logit_softcapping": 30.0,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10, "rms_norm_eps": 1e-6,
    },
}  # fmt: skip


def test_heads_of_two_sizes_are_those_of_the_layers_with_a_window_and_without() -> None:
    """Gemma 4 31B: a global layer has 32 x 512 queries and outputs, and 4 x 512 keys that are values too."""
    found, known = model_of_config(GEMMA_4, name="gemma-4-31b"), model("gemma-4-31b")
    local, wide = layer_runs(found)
    assert (local.count, wide.count) == (50, 10)
    hidden = 5376
    assert mixer_parameters(found, wide.kind) == hidden * (2 * 32 * 512 + 4 * 512) + 2 * 512
    assert mixer_parameters(found, local.kind) == hidden * (2 * 32 + 2 * 16) * 256 + 2 * 256
    assert replace(found, source=known.source, as_of=known.as_of) == known


def test_experts_beside_a_feed_forward_are_those_of_shared_experts() -> None:
    """Gemma 4 26B-A4B, whose tokens pass a feed-forward of 2,112 and eight experts of 704."""
    text = {
        **GEMMA_4["text_config"], "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30,
        "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5, "enable_moe_block": True,
        "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
    }  # fmt: skip
    found = model_of_config({**GEMMA_4, "text_config": text}, name="gemma-4-26b-a4b")
    known = model("gemma-4-26b-a4b")
    same = {"source": known.source, "as_of": known.as_of, "left_out": known.left_out}
    assert replace(found, **same) == known


@pytest.mark.parametrize("more", [{"hidden_size_per_layer_input": 256}, {"num_kv_shared_layers": 18}])
def test_a_smaller_gemma_4_is_refused_by_what_is_not_priced(more: Mapping[str, object]) -> None:
    """A wrong shape is worse than a refusal."""
    config = {**GEMMA_4, "text_config": {**GEMMA_4["text_config"], **more}}
    with pytest.raises(InputError) as refused:
        model_of_config(config, name="m")
    assert next(iter(more)) in refused.value.cause


@pytest.mark.parametrize("name", CONFIGS)
def test_a_family_without_a_name_is_read_by_its_blocks_or_refused_by_a_key(name: str) -> None:
    """The same file under a name that nobody knows: nearly the same parameters, or the key that is in the way."""
    config, text = CONFIGS[name], CONFIGS[name].get("text_config")
    unnamed = (
        config | {"model_type": "acme"} | ({"text_config": text | {"model_type": "acme"}} if text else {})
    )
    known = model_of_config(config, name=name)
    try:
        read = model_of_config(unnamed, name=name)
    except InputError as problem:
        refused = problem.what
    else:
        refused = ""
    if refused:
        assert "blocks that are not known" in refused or "is not a complete" in refused
        return
    assert any("read by its keys as" in setting for setting in read.unmodelled)
    assert parameter_count(read) == pytest.approx(parameter_count(known), rel=0.01)


PLAIN = {
    "model_type": "acme", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
    "max_position_embeddings": 40960, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        ({}, ""),
        ({"layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 6, "sliding_window": 1024}, ""),
        (
            {
                "layer_types": (["chunked_attention"] * 3 + ["full_attention"]) * 9,
                "attention_chunk_size": 8192,
            },
            "",
        ),
        ({"layer_types": ["quantum_attention"] * 36}, "quantum_attention"),
        ({"use_retention": True, "retention_heads": 16}, "retention_heads, use_retention"),
    ],
)
def test_an_unknown_family_is_priced_by_known_blocks_alone(keys: dict[str, Any], refused: str) -> None:
    """Windows and chunks are read from the kinds of layers; a block without a reader is named, not its family."""
    if refused:
        with pytest.raises(InputError, match="blocks that are not known") as problem:
            model_of_config({**PLAIN, **keys}, name="acme")
        assert refused in problem.value.cause
        return
    read = model_of_config({**PLAIN, **keys}, name="acme")
    assert parameter_count(read) == 8_190_726_144
    windows = [kind for kind in keys.get("layer_types", []) if kind != "full_attention"]
    assert sum(is_sliding(read, layer) for layer in range(36)) == len(windows)
