"""What a ModelSpec accepts, and how its layers are grouped."""

import dataclasses
from pathlib import Path

import pytest

import costmodel
from costmodel.models.catalog import model, models
from costmodel.models.parameters import layer_parameters
from costmodel.models.routing import Routing
from costmodel.models.spec import LayerKind, LayerRun, ModelSpec, layer_runs
from topology.base.decode import read_toml, toml_tables, toml_value
from topology.base.errors import InputError, UnknownNameError


def test_a_dense_model_is_one_run_of_layers() -> None:
    """All layers of a dense model are alike."""
    assert layer_runs(model("llama-3.1-8b")) == (
        LayerRun(kind=LayerKind(attention="full", mlp="dense"), count=32),
    )


def test_deepseek_v3_leads_with_three_dense_layers() -> None:
    """Leading dense layers are their own run."""
    kinds = [(run.kind.attention, run.kind.mlp, run.count) for run in layer_runs(model("deepseek-v3"))]
    assert kinds == [("mla", "dense", 3), ("mla", "moe", 58)]


def test_alternating_windows_are_one_run_with_a_share() -> None:
    """Gemma 3 has five windowed layers to a full one; together they are one kind."""
    (run,) = layer_runs(model("gemma-3-12b"))
    assert (run.kind.attention, run.kind.sliding_share, run.count) == ("sliding", 40 / 48, 48)


def test_a_model_without_dense_layers_has_only_the_expert_run() -> None:
    """Mixtral's layers are all routed."""
    assert [(run.kind.mlp, run.count) for run in layer_runs(model("mixtral-8x7b"))] == [("moe", 32)]


def test_layer_parameters_of_llama_are_the_sum_of_its_matrices() -> None:
    """q, k, v, o, three feed-forward matrices and two norms."""
    H, F, g = 4096, 14336, 1024
    (run,) = layer_runs(model("llama-3.1-8b"))
    assert layer_parameters(model("llama-3.1-8b"), run.kind) == 2 * H * H + 2 * H * g + 3 * H * F + 2 * H


@pytest.mark.parametrize(
    ("spoken", "meant"),
    [
        ("70b", "llama-3.1-70b"),
        ("Llama 3.1 405B", "llama-3.1-405b"),
        ("405b", "llama-3.1-405b"),
        ("DeepSeek_V3", "deepseek-v3"),
        ("gpt-3", "gpt-3-175b"),
        ("gpt-3-13b", "gpt-3-13b"),
        ("mixtral", "mixtral-8x7b"),
        ("1T", "megatron-1t"),
    ],
)
def test_names_are_lenient(spoken: str, meant: str) -> None:
    """A user may write a name the way they say it."""
    assert model(spoken).name == meant


def test_an_unknown_model_is_answered_with_suggestions() -> None:
    """A typo is met with the names that look like it."""
    with pytest.raises(UnknownNameError) as error:
        model("lamma-3.1-8b")
    assert "llama-3.1-8b" in error.value.suggestions


def test_an_ambiguous_name_lists_what_it_could_mean() -> None:
    """Several 7B models exist; none is chosen silently."""
    with pytest.raises(UnknownNameError) as error:
        model("7b")
    assert {"llama-2-7b", "mistral-7b", "qwen2.5-7b"} <= set(error.value.suggestions)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"num_layers": 0}, "num_layers = 0"),
        ({"num_layers": 10**8}, "num_layers = 100000000"),
        ({"num_experts": -8}, "num_experts = -8"),
        ({"learned_positions": -1}, "learned_positions = -1"),
        ({"q_lora_rank": 10**12}, "q_lora_rank = 1000000000000"),
        ({"sliding_window": 0}, "sliding_window = 0"),
        ({"routing": Routing(n_group=0)}, "0 experts in 0 groups, 1 of them chosen"),
        ({"hidden_size": -1}, "hidden_size = -1"),
        ({"vocab_size": 10**12}, "vocab_size = 1000000000000"),
        ({"num_key_value_heads": 7}, "num_attention_heads 32 is not a multiple of num_key_value_heads 7"),
        ({"num_experts": 8}, "num_experts_per_token = 0"),
        (
            {"num_experts": 2, "num_experts_per_token": 3, "moe_intermediate_size": 8},
            "num_experts_per_token 3 is above num_experts 2",
        ),
        ({"num_dense_layers": 33}, "num_dense_layers 33 of num_layers 32"),
        ({"kv_lora_rank": 512}, "qk_nope_head_dim = 0"),
    ],
)
def test_sizes_that_no_model_has_are_refused(change: dict[str, int], cause: str) -> None:
    """The error names the number that is wrong."""
    with pytest.raises(InputError) as error:
        dataclasses.replace(model("llama-3.1-8b"), **change)
    assert error.value.cause == cause


def test_every_catalogued_model_says_where_its_sizes_come_from() -> None:
    """No size without a source and a date."""
    assert [spec.name for spec in models().values() if not (spec.source and spec.as_of)] == []


def test_specs_are_values() -> None:
    """Equal sizes are equal models, and a replaced field is the what-if verb."""
    spec: ModelSpec = model("llama-3.1-8b")
    assert dataclasses.replace(spec, num_layers=16) != spec
    assert dataclasses.replace(dataclasses.replace(spec, num_layers=16), num_layers=32) == spec


def test_a_table_parsed_alone_says_what_the_whole_file_says() -> None:
    """No line of a value of the catalog looks like a header, and no table stands twice."""
    path = Path(costmodel.__file__).parent / "data" / "models.toml"
    apart: dict[str, dict[str, object]] = {}
    for text in toml_tables(path.read_text()).values():
        for kind, entries in toml_value(text, path.name).items():
            apart.setdefault(kind, {}).update(entries)
    assert apart == read_toml(path)
