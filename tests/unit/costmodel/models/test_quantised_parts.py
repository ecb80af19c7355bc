"""Parts of a quantised checkpoint that its configuration leaves as they are, by forms of published files."""

from __future__ import annotations

import time
from typing import Any

import pytest

from costmodel.models.catalog import listed_model
from costmodel.models.hf.config import model_of_config
from costmodel.models.hf.quantised import stored_parts
from costmodel.models.stored import AS_NAMED, StoredParts

LAYERS = 8
FBGEMM = [f"model.layers.{i}.self_attn.{m}_proj" for i in range(LAYERS) for m in "qkvo"] + [
    f"model.layers.{i}.mlp.{m}_proj" for i in (0, LAYERS - 1) for m in ("gate", "up", "down")
]
FORMS = [
    # quantization_config, what is stored otherwise
    ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": FBGEMM}, StoredParts(attention="bf16", edge_layers=1)),
    (
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
        AS_NAMED,
    ),
    ({"quant_method": "mxfp4", "modules_to_not_convert": ["self_attn", "lm_head"]}, StoredParts(attention="bf16")),
    (
        {
            "quant_method": "compressed-tensors",
            "ignore": [
                "lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
            ],
        },
        StoredParts(attention="bf16", mlp="bf16", shared="bf16"),
    ),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["*self_attn*"]}, StoredParts(attention="bf16")),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, StoredParts(block=128)),
    ({"quant_method": "fp8", "weight_block_size": [1, 128]}, AS_NAMED),
    ({"quant_method": "fp8", "weight_block_size": "128"}, AS_NAMED),
    ({"quant_method": "compressed-tensors", "ignore": ["lm_head"]}, AS_NAMED),
]  # fmt: skip


@pytest.mark.parametrize(("stated", "stored"), FORMS)
def test_a_part_is_wide_where_most_of_its_layers_are_named(
    stated: dict[str, Any], stored: StoredParts
) -> None:
    """Whole names, runs of their words, stars, and expressions."""
    assert stored_parts({"quantization_config": stated}, LAYERS) == stored


def test_a_pattern_that_backtracks_takes_no_time() -> None:
    """An expression of another form leaves nothing out."""
    hostile = ["re:(a+)+$", "re:" + "(a|b)" * 40, "*" * 90, "re:" + ".*a" * 60, *("x*y" for _ in range(5000))]
    before = time.process_time()
    assert stored_parts({"quantization_config": {"ignore": hostile}}, 1024) == AS_NAMED
    assert time.process_time() - before < 2


def test_a_configuration_states_its_parts() -> None:
    """A reader of ``config.json`` keeps them beside the format."""
    config = {
        "model_type": "llama", "num_hidden_layers": LAYERS, "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 128,
        "quantization_config": FORMS[0][0],
    }  # fmt: skip
    model = model_of_config(config, name="small", source="")
    assert (model.weight_format, model.stored) == ("fp8", FORMS[0][1])


def test_a_name_of_a_known_checkpoint_has_its_parts() -> None:
    """405B in fp8 by Meta: attention in bf16, and 16 heads of keys as it was released."""
    released, since = (
        listed_model(f"meta-llama/{name}-405B-Instruct-FP8") for name in ("Meta-Llama-3.1", "Llama-3.1")
    )
    assert released.stored == since.stored == StoredParts(attention="bf16", edge_layers=1)
    assert (released.num_key_value_heads, since.num_key_value_heads) == (16, 8)
    assert listed_model("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8").stored == AS_NAMED
