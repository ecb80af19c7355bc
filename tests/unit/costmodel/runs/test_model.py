"""Which model a row trained: its name decides, its sizes must agree, and another name is its columns alone."""

import pytest

from costmodel.models.catalog import model
from costmodel.models.parameters import parameter_count
from costmodel.models.spec import ModelSpec
from costmodel.runs.cells import UnsupportedRunError
from costmodel.runs.model import model_of, with_sizes
from costmodel.stack import stack

LLAMA = {
    "model": "Llama-3-8B", "num_layers": "32", "hidden_size": "4096", "intermediate_size": "14336",
    "num_attention_heads": "32", "num_key_value_heads": "8", "vocab_size": "128256", "gated_mlp": "1",
    "num_experts": "", "sequence_length": "8192",
}  # fmt: skip
DEEPSEEK = {
    "model": "DeepSeek-V3", "num_layers": "61", "hidden_size": "7168", "intermediate_size": "2048",
    "num_attention_heads": "128", "num_key_value_heads": "", "vocab_size": "129280", "gated_mlp": "1",
    "num_experts": "256", "num_experts_per_token": "8", "sequence_length": "4096",
}  # fmt: skip


def read(row: dict[str, str], **cells: str) -> ModelSpec:
    """The model of a row with other cells."""
    return model_of({**row, **cells}, stack("megatron-core"))


@pytest.mark.parametrize("name", ["Llama-3-8B", "LLAMA3_8B", "Llama3-8B (of a table)", "", "my own", "8B"])
@pytest.mark.parametrize("sequence", ["8192", "131072"])
def test_a_llama_of_any_name_and_length_attends_to_everything(name: str, sequence: str) -> None:
    """Mistral-7B v0.1 has its sizes and a window of 4,096 tokens; 8.03 billion parameters are Llama's."""
    found = read(LLAMA, model=name, sequence_length=sequence)
    assert (found.sliding_window, found.num_sliding_layers) == (None, 0)
    assert parameter_count(found) == 8_030_261_248


def test_a_dense_row_may_say_that_it_has_no_experts() -> None:
    """Tables write zero, or leave the cells empty."""
    assert not read(LLAMA, num_experts="0", num_experts_per_token="0").is_moe


def test_a_windowed_model_is_known_by_its_name() -> None:
    """Mistral-7B v0.1: 4,096 tokens on all of its 32 layers, 32,000 words (arXiv 2310.06825)."""
    found = read(LLAMA, model="mistralai/Mistral-7B-v0.1", vocab_size="32000", sequence_length="32768")
    assert (found.sliding_window, found.num_sliding_layers) == (4096, 32)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"model": "Mistral-7B-v0.1"}, "vocab_size = 128256, not 32000"),
        ({"hidden_size": "5120"}, "hidden_size = 5120, not 4096"),
        ({"num_key_value_heads": "32"}, "num_key_value_heads = 32, not 8"),
        ({"num_experts": "8", "num_experts_per_token": "2"}, "num_experts = 8, not 0"),
        ({"gated_mlp": "0"}, "gated_mlp = 0, not 1"),
        ({"num_layers": "80"}, "num_layers = 80, not 32 or fewer"),
    ],
)
def test_a_name_with_the_sizes_of_another_model_is_refused_with_both(
    cells: dict[str, str], said: str
) -> None:
    """A name and sizes that contradict each other leave open which of them ran."""
    with pytest.raises(UnsupportedRunError, match=said):
        read(LLAMA, **cells)


def test_sizes_of_a_catalogued_model_under_another_name_bring_none_of_its_details() -> None:
    """Neither latent attention, nor shared experts, nor leading dense layers: no column says so."""
    found = read(DEEPSEEK, model="ours-671B")
    assert (found.attention.name, found.shared_expert_size, found.num_dense_layers) == ("grouped", 0, 0)


@pytest.mark.parametrize(
    ("name", "layers", "dense"), [("DeepSeekV3", "61", 3), ("deepseekv3-4layers", "4", 1)]
)
def test_a_mixture_of_experts_keeps_the_details_of_its_name(name: str, layers: str, dense: int) -> None:
    """Latent attention and one shared expert (arXiv 2412.19437 section 4.2), also where layers are left out."""
    found = read(DEEPSEEK, model=name, num_layers=layers)
    assert (found.attention.name, found.shared_expert_size) == ("latent", 2048)
    assert (found.num_layers, found.num_dense_layers) == (int(layers), dense)


def test_layers_vocabulary_and_context_stay_what_the_row_says() -> None:
    """Benchmarks leave layers out, pad GPT-2's 50,257 words and train longer than the release."""
    gpt = {
        **LLAMA, "model": "GPT3-175B", "num_layers": "12", "hidden_size": "12288", "intermediate_size": "49152",
        "num_attention_heads": "96", "num_key_value_heads": "96", "gated_mlp": "0", "vocab_size": "51200",
    }  # fmt: skip
    found = read(gpt)
    assert (found.num_layers, found.vocab_size) == (12, 51200)
    assert (found.max_sequence_length, found.learned_positions) == (8192, 8192)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("Jamba-1.5-Mini", "Mamba-2"),
        ("Falcon-H1-34B", "Mamba-2"),
        ("Ring-mini-linear-2.0", "linear-attention"),
    ],
)
def test_a_hybrid_is_refused_by_the_layers_that_are_missing(name: str, layers: str) -> None:
    """Its sizes alone would make it a transformer, several times too slow or too fast."""
    with pytest.raises(
        UnsupportedRunError, match=f"has {layers} layers, a kind of layer that the cost model"
    ):
        read(LLAMA, model=name)


@pytest.mark.parametrize("name", ["Nemotron-3-Nano-30B-A3B", "Qwen3-Next-80B-A3B", "Kimi-Linear-48B-A3B"])
def test_a_catalogued_hybrid_is_what_the_catalog_says(name: str) -> None:
    """Its layers stand in no column; sizes of another model are refused."""
    known = model(name.lower())
    read_model = read(with_sizes({"model": name, "sequence_length": "8192"}))
    assert read_model.recurrence == known.recurrence
    assert parameter_count(read_model) == parameter_count(known)
    with pytest.raises(UnsupportedRunError, match="yet hidden_size = 4096"):
        read(LLAMA, model=name)


@pytest.mark.parametrize(
    "name", ["llama-3.1-70b", "deepseek-v3", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-3-175b"]
)
def test_a_name_says_the_sizes_that_a_row_does_not(name: str) -> None:
    """Of a row without any, and of no other."""
    known = model(name)
    bare = {"model": name, "sequence_length": str(known.max_sequence_length)}
    assert parameter_count(read(with_sizes(bare))) == parameter_count(known)
    assert with_sizes(bare | {"num_layers": "2"}) == bare | {"num_layers": "2"}
    assert with_sizes(bare | {"model": "ours"}) == bare | {"model": "ours"}


def test_a_column_of_a_hybrid_refuses_its_row() -> None:
    """Whatever the name: the columns say that not every layer is a transformer's."""
    with pytest.raises(UnsupportedRunError, match="mamba_num_heads = '64'"):
        read(LLAMA, model="ours", mamba_num_heads="64")
    assert read(LLAMA, model="ours", mamba_num_heads="0").hidden_size == 4096
