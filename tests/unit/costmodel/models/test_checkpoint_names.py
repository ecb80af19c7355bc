"""The name of a checkpoint is the shape of its base and a format of weights, or of no model here."""

import re

import pytest

from costmodel.models import catalog
from costmodel.models.catalog import exact_model, listed_model, model, model_names
from costmodel.models.names import count_of_size, stated_sizes
from costmodel.models.parameters import parameter_count
from tests.counts import tries
from topology.base.errors import InputError, UnknownNameError

SHAPES = {
    "CohereLabs/c4ai-command-r-plus": ("command-r-plus-104b", ""),
    "command-r+": ("command-r-plus-104b", ""),
    "meta-llama/Meta-Llama-3-8B-Instruct": ("llama-3-8b", ""),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama-3.1-8b", ""),
    "nvidia/Llama-3.1-8B-Instruct-FP8": ("llama-3.1-8b", "fp8"),
    "meta-llama/Llama-3.2-3B-Instruct": ("llama-3.2-3b", ""),
    "meta-llama/Llama-2-70b-chat-hf": ("llama-2-70b", ""),
    "RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16": ("llama-3.1-70b", "int4"),
    "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": ("llama-3.3-70b", "fp8"),
    "nvidia/Llama-3.3-70B-Instruct-FP4": ("llama-3.3-70b", "fp4"),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": ("llama-4-scout", ""),
    "Llama3.1-8B (MLPerf v5.1, NVIDIA)": ("llama-3.1-8b", ""),
    "Qwen/Qwen2.5-32B-Instruct": ("qwen2.5-32b", ""),
    "Qwen/Qwen2.5-Coder-32B-Instruct": ("qwen2.5-32b", ""),
    "Qwen/Qwen2.5-32B-Instruct-AWQ": ("qwen2.5-32b", "int4"),
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4": ("qwen2.5-72b", "int4"),
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8": ("qwen2.5-72b", "int8"),
    "unsloth/Qwen2.5-7B-Instruct-bnb-4bit": ("qwen2.5-7b", "int4"),
    "Qwen/Qwen2-7B-Instruct": ("qwen2.5-7b", ""),
    "Qwen/Qwen1.5-7B-Chat": ("qwen1.5-7b", ""),
    "Qwen/QwQ-32B": ("qwen2.5-32b", ""),
    "Qwen/Qwen3-4B": ("qwen3-4b", ""),
    "Qwen/Qwen3-4B-Thinking-2507": ("qwen3-4b", ""),
    "Qwen/Qwen3-4B-Instruct-2507-FP8": ("qwen3-4b", "fp8"),
    "Qwen/Qwen3-235B-A22B-Thinking-2507-FP8": ("qwen3-235b-a22b", "fp8"),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": ("qwen3-30b-a3b", ""),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8": ("qwen3-coder-480b-a35b", "fp8"),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": ("qwen3-next-80b-a3b", ""),
    "Qwen/Qwen3-Coder-Next": ("qwen3-next-80b-a3b", ""),
    "qwen3.6-27b-autoround-int4": ("qwen3.5-27b", "int4"),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": ("qwen2.5-32b", ""),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": ("llama-3.3-70b", ""),
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": ("qwen3-8b", ""),
    "deepseek-ai/DeepSeek-R1-0528": ("deepseek-r1", ""),
    "nvidia/DeepSeek-R1-0528-FP4-v2": ("deepseek-r1", "fp4"),
    "deepseek-ai/DeepSeek-V3-0324": ("deepseek-v3", ""),
    "deepseek-ai/DeepSeek-V3.1-Terminus": ("deepseek-v3", ""),
    "deepseek-ai/DeepSeek-V4-Flash-0731": ("deepseek-v4-flash", ""),
    "deepseek-ai/DeepSeek-Coder-V2-Instruct": ("deepseek-v2", ""),
    "deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct": ("deepseek-v2-lite", ""),
    "deepseek-ai/DeepSeek-Coder-V2-Lite-Base": ("deepseek-v2-lite", ""),
    "huggyllama/llama-7b": ("llama-2-7b", ""),
    "deepseek-ai/deepseek-coder-6.7b-instruct": ("deepseek-coder-6.7b", ""),
    "deepseek-ai/deepseek-llm-7b-chat": ("deepseek-llm-7b", ""),
    "DeepSeek-V3-671B": ("deepseek-v3", ""),
    "mistralai/Mistral-7B-Instruct-v0.1": ("mistral-7b-v0.1", ""),
    "mistralai/Mistral-7B-Instruct-v0.2": ("mistral-7b-v0.2", ""),
    "mistralai/Mistral-7B-Instruct-v0.3": ("mistral-7b", ""),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("mixtral-8x7b", ""),
    "mistralai/Mistral-Small-24B-Instruct-2501": ("mistral-small-24b", ""),
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": ("mistral-small-3.1-24b", ""),
    "mistralai/Mistral-Small-Instruct-2409": ("mistral-small-22b", ""),
    "mistralai/Mistral-Large-Instruct-2411": ("mistral-large-123b", ""),
    "mistralai/Devstral-Small-2507": ("mistral-small-3.1-24b", ""),
    "google/gemma-3-27b-it": ("gemma-3-27b", ""),
    "google/gemma-2b-it": ("gemma-2b", ""),
    "openai/gpt-oss-120b": ("gpt-oss-120b", ""),
    "unsloth/gpt-oss-20b-BF16": ("gpt-oss-20b", "bf16"),
    "gpt2-124M": ("gpt-2", ""),
    "zai-org/GLM-4.6-FP8": ("glm-4.6", "fp8"),
    "zai-org/GLM-4.7": ("glm-4.6", ""),
    "nvidia/GLM-5.2-NVFP4": ("glm-5.2", "fp4"),
    "zai-org/GLM-4.7-Flash": ("glm-4.7-flash", ""),
    "moonshotai/Kimi-K2-Instruct-0905": ("kimi-k2", ""),
    "moonshotai/Kimi-K2-Thinking": ("kimi-k2-thinking", "int4"),
    "moonshotai/Kimi-K2.5": ("kimi-k2.5", "int4"),
    "MiniMaxAI/MiniMax-M2.7": ("minimax-m2", ""),
    "microsoft/Phi-4-mini-instruct": ("phi-4-mini", ""),
    "microsoft/Phi-3.5-mini-instruct": ("phi-3-mini-128k", ""),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("nemotron-3-nano-30b-a3b", ""),
    "mistralai/Mistral-Large-3-675B-Instruct-2512": ("mistral-large-3-675b", "fp8"),
    "mistralai/Devstral-2-123B-Instruct-2512": ("devstral-2-123b", "fp8"),
    "mistralai/Ministral-3-8B-Instruct-2512": ("ministral-3-8b", "fp8"),
    "mistralai/Ministral-3-8B-Instruct-2512-BF16": ("ministral-3-8b", "bf16"),
    "mistralai/Ministral-3-3B-Base-2512": ("ministral-3-3b", "bf16"),
    "mistralai/Ministral-3-14B-Reasoning-2512": ("ministral-3-14b", "bf16"),
    "ministral-3-14b": ("ministral-3-14b", "fp8"),
    "mistralai/Mistral-Large-3-675B-Base-2512": ("mistral-large-3-675b", "bf16"),
    "mistralai/Devstral-Small-2-24B-Instruct-2512": ("devstral-small-2-24b", "fp8"),
    "devstral-small-2": ("devstral-small-2-24b", "fp8"),
    "google/gemma-4-31b-it": ("gemma-4-31b", ""),
    "google/gemma-4-26B-A4B-it": ("gemma-4-26b-a4b", ""), "Qwen/Qwen3.8-27B-FP8": ("qwen3.5-27b", "fp8"),
    "zai-org/GLM-5.3": ("glm-5.3", "fp8"), "zai-org/GLM-5.3-BF16": ("glm-5.3", "bf16"),
    "moonshotai/Kimi-K2.7-Code": ("kimi-k2.5", "int4"), "inclusionAI/Ring-1T-FP8": ("ling-1t", "fp8"), "OpenGVLab/InternVL3_5-8B": ("internvl3.5-8b", ""),
    "deepseek-ai/DeepSeek-Math-V2": ("deepseek-v3.2", ""), "CohereLabs/c4ai-command-r-plus-08-2024": ("command-r-plus-104b", ""),
    "openai/gpt-oss-safeguard-120b": ("gpt-oss-120b", ""), "mistralai/Mistral-Small-4-119B-2603": ("mistral-small-4-119b", "fp8"),
    "Qwen/Qwen3-VL-32B-Instruct": ("qwen3-vl-32b", ""),
    "70b": ("llama-3.1-70b", ""), "Llama-3 405B": ("llama-3.1-405b", ""), "qwen2_5-7b": ("qwen2.5-7b", ""),
    "Qwen3-235B": ("qwen3-235b-a22b", ""), "GPT3-13B": ("gpt-3-13b", ""), "gpt-3-1.3b": ("gpt-3-1.3b", ""),
}  # fmt: skip
"""What people and the hub call a model, its shape, and what its weights are stored in."""
REFUSED = {
    "Llama-3.2-8B": "llama-3.2-3b", "Qwen3-34B": "qwen3-4b", "Qwen-34B": "qwen3-4b", "GPT-7.5B": "gpt-3-175b",
    "GPT3-5B": "gpt-3-175b", "Qwen3-VL-34B-Instruct": "qwen3-vl-30b-a3b", "DeepSeek-V5": "deepseek-v3",
    "DeepSeek-0324": "deepseek-v3", "Mistral-Small-Instruct-2603": "mistral-small-24b",
    "Kimi-K4": "kimi-k3", "mistralai/Mistral-Large-4-Instruct-2612": "mistral-large-123b", "Mixtral-8x7B-v0.2": "mixtral-8x7b",
    "Mistral-7B-Instruct-v0.4": "mistral-7b", "EAGLE3-LLaMA3.1-Instruct-8B": "llama-3.1-8b",
    "gemma-3-27b-it-qat-q4_0-gguf": "gemma-3-27b", "Llama-3.1-8B-Instruct-GGUF": "llama-3.1-8b",
    "Llama-3_3-Nemotron-Super-49B-v1": "nemotron-h-47b", "Qwen/Qwen3.9-27B-FP8": "qwen3.5-27b",
    "nvidia/GLM-5.4-NVFP4": "glm-5", "DeepSeek-V3 16B": "deepseek-v3", "deepseek-coder-7b": "deepseek-coder-1.3b",
    "DeepSeek-Math-V3": "deepseek-v3", "Qwen3-VL-9B": "qwen3-vl-8b",
}  # fmt: skip
"""Models that are not here, and one that is proposed in their place."""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is looked for at the hub."""

    def refuse(name: str) -> str:
        raise InputError(f"{name} was looked for", "no network", "none")

    monkeypatch.setattr(catalog, "_download", refuse)


@pytest.mark.parametrize(("name", "shape"), SHAPES.items())
def test_a_name_is_its_shape_and_its_format(name: str, shape: tuple[str, str]) -> None:
    """With its organisation or without, in any case; the shape's own name means itself."""
    spec = model(name)
    assert (spec.name, spec.weight_format) == shape
    assert listed_model(name.lower()).name == listed_model(name.replace("-", "_").upper()).name == spec.name
    assert model(spec.name).name == spec.name


@pytest.mark.parametrize("name", [name for name in SHAPES if "/" in name])
def test_a_repository_stays_the_source_of_its_checkpoint(name: str) -> None:
    """Commands serve what the user named, not the base."""
    assert model(name).source.lower().endswith(name.lower())


@pytest.mark.parametrize(("name", "near"), REFUSED.items())
def test_a_model_that_is_not_here_is_refused_with_near_names(name: str, near: str) -> None:
    """No word is dropped that may change a shape, no size and no version is left out."""
    with pytest.raises(UnknownNameError) as refused:
        listed_model(name)
    assert near in refused.value.suggestions
    with pytest.raises(InputError):
        model(name)


@pytest.mark.parametrize("name", ["qwen", "qwen-1.5b", "Qwen 1.5B", "mamba"])
def test_a_family_is_its_versions_alike(name: str) -> None:
    """A version behind the family is no other word than one that stands apart."""
    with pytest.raises(UnknownNameError, match="ambiguous"):
        listed_model(name)


WORDS = (
    "Instruct",
    "Chat",
    "it",
    "Base",
    "Thinking",
    "hf",
    "FP8",
    "AWQ",
    "GPTQ-Int4",
    "NVFP4",
    "FP8-dynamic",
)
FORMATS = {"FP8": "fp8", "AWQ": "int4", "GPTQ-Int4": "int4", "NVFP4": "fp4", "FP8-dynamic": "fp8"}

WIDE = {
    "mistral-large-3-675b": {"Base"}, "ministral-3-3b": {"Base", "Reasoning"},
    "ministral-3-8b": {"Base", "Reasoning"}, "ministral-3-14b": {"Base", "Reasoning"},
}  # fmt: skip
"""Words of checkpoints in bf16, of models whose usual one is quantised (their pages at huggingface.co)."""


@pytest.mark.parametrize("name", model_names())
def test_words_of_tuning_and_format_leave_every_model_its_shape(name: str) -> None:
    """Of each of the catalog, under any organisation."""
    for word in WORDS:
        if f"{name}-{word}".lower() in model_names():
            continue
        spec = model(f"somebody/{name}-{word}")
        usual = "bf16" if word in WIDE.get(name, ()) else model(name).weight_format
        assert (spec.name, spec.weight_format) == (name, FORMATS.get(word, usual))


SIZED = [name for name in model_names() if stated_sizes(name)]
SIZES = ("1b", "2b", "3b", "4b", "5b", "7b", "8b", "9b", "13b", "15b", "30b", "34b", "70b", "75b", "1t")
APART = tries(12, 1)
"""Every so manyth size is put into a name; the next name has the next ones, so that each is in many names."""


@pytest.mark.parametrize("name", SIZED)
def test_no_name_crosses_sizes(name: str) -> None:
    """A size that is not the model's gives another model of that size, or none."""
    for size in SIZES[SIZED.index(name) % APART :: APART]:
        other = re.sub(r"(?<![\da-z.])\d+(?:\.\d+)?(?:x\d+)?[bmt](?![a-z0-9])", size, name, count=1)
        if other == name:
            continue
        glued = re.sub(r"(?<!\d)-|-(?!\d)", "", other)
        for spelling in (other, glued, other.replace("-", " ") + " chat"):
            try:
                spec = listed_model(spelling)
            except UnknownNameError:
                continue
            stated = count_of_size(size)
            assert stated is not None
            assert size in stated_sizes(spec.name) or abs(parameter_count(spec) / stated - 1) < 0.03, spelling


@pytest.mark.parametrize("name", model_names())
def test_a_name_without_separators_is_itself_or_none(name: str) -> None:
    """Never a neighbour whose letters and digits are the same."""
    exact = exact_model(name.replace("-", ""))
    assert exact is None or exact[0].name == name
