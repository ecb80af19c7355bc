"""What a server holds of a tower beside its language model: weights, and the peak of a profile run."""

from dataclasses import replace

import pytest

from costmodel.models.catalog import model
from costmodel.models.parameters import parameter_count
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import serving_stack
from costmodel.serving.memory import (
    draft_weights_bytes,
    encoder_step_bytes,
    encoder_weights_bytes,
    kv_bytes_per_token,
    step_bytes,
    weights_bytes,
)
from topology.builders import default_cluster

LARGEST_IMAGE = 16_384 * 4
"""Patches of the largest image of Qwen's towers, four a token."""
PUBLISHED = {
    # name: parameters of the whole checkpoint, module that predicts a further token left out
    "qwen3.5-27b": 27_356_728_560, "qwen2.5-vl-7b": 8_292_166_656, "qwen3-vl-30b-a3b": 31_070_754_032,
    "qwen3-vl-32b": 33_357_390_064, "qwen3.5-35b-a3b": 35_107_181_936,
}  # fmt: skip
"""metadata of safetensors at huggingface.co."""


def deployed(name: str, *, tp: int = 1, pp: int = 1, engine: str = "vllm") -> Deployment:
    """A model in bf16 on H100s."""
    return Deployment(
        model=model(name),
        hierarchy=default_cluster("h100-sxm", 8).hierarchy,
        layout=ServingLayout(tp=tp, pp=pp),
        stack=serving_stack(engine),
    )


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_a_tower_makes_a_language_model_the_whole_checkpoint(name: str, parameters: int) -> None:
    """Two bytes of each parameter that it has beside the language model."""
    alone = deployed(name)
    assert encoder_weights_bytes(alone) == 2 * (parameters - parameter_count(alone.model))
    without = replace(alone, model=replace(alone.model, encoder=None))
    assert weights_bytes(alone) - weights_bytes(without) == pytest.approx(encoder_weights_bytes(alone))


def test_ranks_split_a_tower_and_one_stage_has_it() -> None:
    """Sixteen heads over two ranks; patches and positions are on each; over five ranks nothing is split."""
    whole, halved, fifths = (encoder_weights_bytes(deployed("qwen3.5-27b", tp=tp)) for tp in (1, 2, 5))
    stem = 2 * (1536 * 1152 + 1152 + 2304 * 1152)
    assert halved == pytest.approx((whole - stem) / 2 + stem)
    assert fifths == whole
    staged = deployed("qwen3.5-27b", pp=2)
    without = replace(staged, model=replace(staged.model, encoder=None))
    assert weights_bytes(staged) - weights_bytes(without) == pytest.approx(whole)


def test_a_drafter_has_no_tower() -> None:
    """It predicts tokens."""
    drafting = replace(deployed("qwen3.5-27b"), drafter="mtp", draft_tokens=1)
    without = replace(drafting, model=replace(drafting.model, encoder=None))
    assert draft_weights_bytes(drafting) == draft_weights_bytes(without)


@pytest.mark.parametrize(("tp", "width"), [(1, 12 * 1152), (2, 3 * 1152 + 9 * 1152 // 2)])
def test_a_profile_run_sees_the_largest_image(tp: int, width: int) -> None:
    """Of 65,536 patches, however small the step; a longer step has as many patches as fill it."""
    deployment = deployed("qwen3.5-27b", tp=tp)
    assert encoder_step_bytes(deployment, 2048) == LARGEST_IMAGE * width * 2
    assert encoder_step_bytes(deployment, 32_768) == 2 * LARGEST_IMAGE * width * 2


def test_images_of_one_size_fill_a_step() -> None:
    """Of 256 tokens, sixteen patches each: 31 in a step of 8,000 tokens, one in a step of 100."""
    seen = model("qwen3.5-27b").encoder
    assert seen is not None
    tower = replace(seen, any_size=False, most_tokens=0, image_tokens=256, merge=16)
    deployment = replace(deployed("gemma-3-27b"), model=replace(model("gemma-3-27b"), encoder=tower))
    peaks = [encoder_step_bytes(deployment, tokens) for tokens in (8000, 100)]
    assert peaks == [images * 256 * 16 * 12 * 1152 * 2 for images in (31, 1)]


def test_engines_without_a_profile_of_it_count_none() -> None:
    """SGLang's activations come out of what its static share leaves."""
    assert encoder_step_bytes(deployed("qwen3.5-27b", engine="sglang"), 8192) == 0
    assert encoder_step_bytes(deployed("qwen3-32b"), 8192) == 0


@pytest.mark.parametrize(
    ("name", "tp", "width"),
    [
        ("llama-3.1-8b", 1, 3 * 4096 + 3 * 14_336),
        ("llama-3.1-70b", 8, 3 * 8192 + 3 * 28_672 // 8),
        ("qwen3-235b-a22b", 4, 3 * 4096 + 8 * 4096 + 8 * 1536 // 4),
    ],
)
def test_a_step_is_as_wide_as_its_widest_place(name: str, tp: int, width: int) -> None:
    """The 111 kB a token that vLLM issue 10517 prints of Llama-3.1-8B at 20,000 and 29,000 tokens."""
    assert step_bytes(deployed(name, tp=tp), 1000) == 1000 * width * 2


def test_gathered_ranks_keep_copies_of_each_others_tokens() -> None:
    """Eight ranks of 8,192 tokens: copies of 32,768 at once, and all of them before and after."""
    deployment = replace(deployed("qwen3-235b-a22b"), layout=ServingLayout(attention_dp=8, ep=8))
    copies = 32_768 * 8 * (4096 + 1536)
    assert step_bytes(deployment, 8192) == 2 * (8192 * 3 * 4096 + copies + 2 * 8 * 8192 * 4096)


def test_index_keys_of_grouped_attention_are_wide() -> None:
    """MiniMax-M3: 57 layers with 128 numbers of two bytes beside 60 of one head's keys and values."""
    assert kv_bytes_per_token(deployed("minimax-m3", tp=4)) == 60 * 2 * 128 * 2 + 57 * 128 * 2
