"""`plan memory` says the bytes that published configurations give by hand."""

import json
import math

import pytest

from costmodel.models.catalog import model
from costmodel.models.parameters import parameter_count
from tests.cli.commands import plan

BF16 = 2


def memory_of(*words: str) -> dict:
    """The document of an answer."""
    return json.loads(plan("memory", *words, "--json").stdout)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("70b", 2 * 8 * 128 * 80),  # keys and values of 8 groups of 128 in 80 layers
        ("8b", 2 * 8 * 128 * 32),
        ("deepseek-v3", (512 + 64) * 61),  # a latent and a rotary key in 61 layers
    ],
)
def test_a_cached_token_is_what_the_configuration_says(name, numbers):
    """Grouped keys and values, or a latent, of two bytes each."""
    cache = memory_of(name)["cache"]
    assert cache == {"engine": "vllm", "fixed_bytes": 0, "bytes_per_further_token": BF16 * numbers}


@pytest.mark.parametrize("length", ["1k", "256k"])
def test_a_request_of_a_recurrent_model_keeps_its_states_however_long_it_is(length):
    """Qwen3.5-27B: every fourth of 64 layers has keys and values of 4 groups of 256.

    A state of the others (48 heads of 128 by 128 in fp32, and 3 columns of a convolution over 10,240) fills
    a page of 784 tokens. vLLM gives every group of 16 layers one such page.
    """
    token = BF16 * 2 * 4 * 256
    state = 4 * 48 * 128 * 128 + BF16 * 3 * (2 * 16 + 48) * 128
    page = math.ceil(state / token / 16) * 16 * token
    cache = memory_of("qwen3.5-27b", "--sequence-length", length)["cache"]
    assert cache == {"engine": "vllm", "fixed_bytes": 48 * page, "bytes_per_further_token": 16 * token}


def test_an_adapter_is_all_that_is_trained():
    """Of Llama 3.1 8B: r·(inputs + outputs) of four projections of attention and three of the feed-forward."""
    trained = 32 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    answer, whole = memory_of("8b", "--adapter", "lora:r=16"), memory_of("8b")
    assert (answer["gradients_bytes"], answer["optimizer_bytes"]) == (4 * trained, 12 * trained)
    assert answer["weights_bytes"] == whole["weights_bytes"] + BF16 * trained
    assert answer["cache"] == whole["cache"]


def test_full_windows_are_a_part_of_every_request():
    """Gemma 3 27B: 52 of 62 layers see 1,024 tokens, all have keys and values of 16 groups of 128."""
    layer = BF16 * 2 * 16 * 128
    cache = memory_of("gemma-3-27b")["cache"]
    assert cache["fixed_bytes"] == pytest.approx(52 * 1024 * layer)
    assert cache["bytes_per_further_token"] == pytest.approx(10 * layer)


@pytest.mark.parametrize("name", ["8b", "70b", "mixtral-8x7b"])
def test_the_state_is_eighteen_bytes_a_parameter(name):
    """Of mixed precision with Adam and fp32 gradients (Rajbhandari et al. 2020, section 3.1, with fp32 gradients)."""
    answer, parameters = memory_of(name), parameter_count(model(name))
    assert answer["weights_bytes"] == pytest.approx(2 * parameters, rel=1e-3)
    assert answer["state_bytes"] == pytest.approx(18 * parameters, rel=1e-3)
    parts = ("weights_bytes", "gradients_bytes", "optimizer_bytes")
    assert answer["state_bytes"] == sum(answer[part] for part in parts)


def test_a_recomputed_layer_keeps_its_input_alone():
    """Two bytes of each of the 4,096 numbers of a token of 8B."""
    (layer,) = memory_of("8b")["layers"]
    assert layer["activations_bytes_per_token_recomputed"] == BF16 * 4096
    assert layer["activations_bytes_per_token"] > layer["activations_bytes_per_token_recomputed"]


@pytest.mark.parametrize("stack", ["pytorch", "megatron-core", "deepspeed"])
@pytest.mark.parametrize("length", ["1024", "8192"])
def test_a_recomputed_layer_keeps_its_input(stack: str, length: str) -> None:
    """4,096 numbers in sixteen bits a token, whatever the length, and whatever gradients would replace."""
    done = plan("memory", "llama-3.1-8b", "--stack", stack, "-s", length, "--json")
    (layer,) = json.loads(done.stdout)["layers"]
    assert layer["activations_bytes_per_token_recomputed"] == 2 * 4096


def test_a_model_is_named_beside_the_command_or_after_its_flag():
    """`plan memory 70b` is `plan memory --model 70b`, as every other command has it."""
    assert memory_of("--model", "8b") == memory_of("8b") == memory_of("8b", "-m", "8b")


@pytest.mark.parametrize("words", [(), ("8b", "--model", "70b")])
def test_no_model_and_two_models_are_refused_in_three_lines(words):
    """Neither is guessed."""
    refused = plan("memory", *words)
    assert refused.returncode == 2
    assert [line.partition(":")[0] for line in refused.stderr.splitlines()] == ["error", "cause", "help"]
