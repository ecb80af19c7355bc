"""Names of models that are served: each is priced."""

from __future__ import annotations

import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model, uncompared_note
from costmodel.models.parameters import without_tower
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import serving_stack
from costmodel.serving.step import step_times
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving
from topology.builders import default_cluster

PRICED = (
    "deepseek-v3.2", "v4-flash", "v4-pro", "glm-5", "glm-5.2", "qwen3.5-397b-a17b", "qwen3.5-35b-a3b", "qwen3.5-27b",
    "qwen3-next-80b-a3b", "qwen3-coder-next", "kimi-linear-48b-a3b", "kimi-k2", "kimi-k2.5", "kimi-k3",
    "nemotron-3-nano", "nemotron-3-super", "nemotron-3-ultra", "minimax-m2", "minimax-m2.5", "minimax-m3", "gemma-3-27b",
    "gemma-4-31b", "gemma-4-26b-a4b", "qwen3.8-27b", "qwen3-vl-32b", "mistral-large-3", "devstral-2", "devstral-small-2", "ministral-3-8b", "gpt-oss-20b", "gpt-oss-120b", "llama-4-maverick", "qwen2.5-vl-7b", "qwen3-vl-235b",
    "deepseek-r1-distill-qwen-32b", "mixtral-8x7b-instruct", "mistral-small-3.2",
    "qwen2-vl-2b", "qwen2-vl-7b", "qwen2-vl-72b", "qwen2.5-vl-3b", "qwen2.5-vl-32b", "qwen2.5-vl-72b",
    "qwen3-vl-2b", "qwen3-vl-4b", "qwen3-vl-8b", "internvl3.5-8b", "internvl3.5-14b", "internvl3.5-30b-a3b",
    "internvl3.5-38b", "internvl3.5-241b-a28b", "internvl3-8b", "internvl3-78b", "ling-mini-2.0", "ling-flash-2.0",
    "ling-1t", "hunyuan-0.5b", "hunyuan-1.8b", "hunyuan-4b", "hunyuan-7b", "ernie-4.5-0.3b", "granite-4.0-micro",
    "granite-4.0-h-micro", "granite-4.0-h-tiny", "granite-4.0-h-small", "aya-expanse-8b", "command-r-32b",
    "trinity-nano", "trinity-mini", "trinity-large", "exaone-4.0-1.2b", "exaone-4.0-32b", "solar-open-100b",
    "a.x-k1", "dots.llm1", "hy3", "mistral-small-4-119b", "apertus-8b", "minicpm4-8b",
    "starcoder2-3b", "starcoder2-7b", "falcon-180b", "reka-flash-3", "eurollm-9b", "bielik-11b", "grok-2",
    "nemotron-nano-9b-v2", "nemotron-nano-12b-v2", "granite-3.1-3b-a800m", "granite-3.1-1b-a400m", "minitron-8b",
    "mellum2-12b-a2.5b", "glm-4.1v-9b", "glm-4.5v", "pixtral-12b", "pixtral-large-124b", "iquest-coder-v1-40b",
    "glm-5.3",
    "internvl3-38b", "intern-s1", "intern-s1-mini", "kimi-vl-a3b", "afm-4.5b", "minicpm-v-4.5",
)  # fmt: skip


@pytest.mark.parametrize("name", PRICED)
def test_a_model_that_is_served_has_step_times(name: str) -> None:
    """A longer batch is no faster, and a token with a longer context neither."""
    deployment = Deployment(
        model=without_tower(model(name)),
        hierarchy=default_cluster("b200-sxm", 8).hierarchy,
        layout=ServingLayout(tp=4),
        stack=serving_stack("vllm"),
        weights="fp8",
    )
    times = step_times(
        load_calibration(),
        deployment,
        max_batch=32,
        token_budget=2048,
        input_tokens=2000,
        output_tokens=500,
    )
    assert 0 < times.graph_linear_s[1] < times.graph_linear_s[32] < 1
    fixed, slope = times.decode_attention_s, times.decode_attention_s_per_token
    single, many = (fixed[requests] + slope[requests] * requests * 2000 for requests in (1, 32))
    assert 0 < single < many
    assert min(slope) >= 0


@pytest.mark.parametrize("name", ["gemma-4-31b", "google/gemma-4-31B-it", "mistral-large-3", "gemma-3-27b"])
def test_sizes_that_were_not_compared_are_said(name: str) -> None:
    """A published count is not a config.json; of a model whose config.json was read nothing is said."""
    assert bool(uncompared_note(model(name))) == ("gemma-3" not in name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ministral-3-8b", "they sum to 8.49 B, and 8.4 B are published"),
        ("mistral-large-3", "they sum to 673.4 B, and 673 B without the vision encoder are published"),
    ],
)
def test_notes_of_one_answer_agree(name: str, said: str) -> None:
    """A configuration that nobody read says no format of weights; a sum stands beside what is published."""
    asked = understand_serving(ServeFlags(model=name, gpu="b200-sxm", gpus="8", concurrency="8"))
    (note,) = (note for note in asked.notes if "not compared" in note)
    assert note.endswith(said)
    assert "weights are fp8, as the checkpoint's model card says (--weights)" in asked.notes
