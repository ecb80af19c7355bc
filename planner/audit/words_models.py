"""Words for the sizes of a model, in the spellings of Megatron, Hugging Face and their relatives."""

from __future__ import annotations

from collections.abc import Mapping

LAYERS_OF_MODELS: Mapping[str, str] = {
    "num_layers": "model.num_layers", "encoder_num_layers": "model.num_layers", "num_hidden_layers": "model.num_layers",
    "hidden_size": "model.hidden_size", "num_attention_heads": "model.num_attention_heads",
    "num_attn_heads": "model.num_attention_heads", "num_query_groups": "model.num_key_value_heads",
    "num_key_value_heads": "model.num_key_value_heads", "ffn_hidden_size": "model.intermediate_size",
    "intermediate_size": "model.intermediate_size", "kv_channels": "model.head_dim", "head_dim": "model.head_dim",
    "vocab_size": "model.vocab_size", "num_experts": "model.num_experts", "num_moe_experts": "model.num_experts",
    "moe_router_topk": "model.num_experts_per_token", "moe_ffn_hidden_size": "model.moe_intermediate_size",
    "moe_shared_expert_intermediate_size": "model.shared_expert_size", "swiglu": "model.gated_mlp",
    "max_position_embeddings": "model.max_sequence_length", "tie_word_embeddings": "model.tie_word_embeddings",
}  # fmt: skip
