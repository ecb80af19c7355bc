"""Positions are a checkpoint's, not its shape's: what a model was tuned for may change them."""

import pytest

from costmodel.models.catalog import knows_positions, listed_model, model_names
from costmodel.models.positions import content, positions_of, siblings_alike


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("Qwen/Qwen2.5-7B", 131_072),
        ("Qwen/Qwen2.5-7B-Instruct", 32_768),  # vllm issue 16757
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", 32_768),  # vllm issue 8793
        ("Qwen/Qwen2.5-3B-Instruct", 32_768),
        ("Qwen/Qwen3-30B-A3B-FP8", 40_960),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 262_144),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", 262_144),
        ("Qwen/QwQ-32B", 40_960),  # QwQ issue 26
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", 131_072),  # vllm issue 13061
        ("moonshotai/Kimi-K2-Instruct-0905", 262_144),
        ("meta-llama/Llama-3.1-8B-Instruct", 131_072),
    ],
)
def test_a_checkpoint_has_its_own_positions(name: str, tokens: int) -> None:
    """And they are known."""
    spec = listed_model(name)
    assert spec.max_sequence_length == tokens
    assert knows_positions(name, spec)


@pytest.mark.parametrize(
    "name", ["codellama/CodeLlama-70b-Instruct-hf", "ours/Qwen2.5-7B-Chat", "x/Qwen3-8B-SFT"]
)
def test_positions_of_a_sibling_are_not_known(name: str) -> None:
    """A word of tuning was left out, no row has the name, and its maker's siblings differ."""
    assert not knows_positions(name, listed_model(name))


def test_rows_are_of_models_and_have_a_source() -> None:
    """Every name is read as a model here, once, and none with siblings alike has other positions than they."""
    rows = content()["checkpoints"]
    names = [name for row in rows for name in row["names"]]
    assert len(names) == len(set(names))
    assert all(row["source"] and row["as_of"] for row in (*rows, content()["siblings"]))
    assert siblings_alike() <= set(model_names())
    assert all(listed_model(name).max_sequence_length == positions_of(name) for name in names)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("Qwen/Qwen2.5-14B-Instruct-1M", 1_010_000), ("moonshotai/Kimi-K2.7-Code", 262_144),
        ("zai-org/GLM-4.6V", 131_072), ("zai-org/GLM-4.5V", 65_536), ("Qwen/Qwen2.5-VL-72B-Instruct", 128_000),
        ("zai-org/GLM-5.3", 1_048_576),
        ("Qwen/QVQ-72B-Preview", 128_000), ("Qwen/Qwen3Guard-Gen-8B", 32_768), ("CohereLabs/aya-expanse-32b", 8_192),
        ("inclusionAI/Ring-1T", 65_536), ("inclusionAI/Ling-1T", 32_768), ("tencent/Hy3-preview", 262_144),
        ("arcee-ai/Trinity-Large-Thinking", 262_144), ("arcee-ai/Trinity-Mini", 131_072), ("skt/A.X-K1", 131_072),
    ],
)  # fmt: skip
def test_a_tune_of_a_shape_has_its_own_positions(name: str, tokens: int) -> None:
    """A name that is another's shape may reach further, and its requests with it."""
    assert listed_model(name.rpartition("/")[2]).max_sequence_length == tokens
