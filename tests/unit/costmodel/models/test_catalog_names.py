"""A name in a file is that of the model it says: versions are not left out of published names."""

import pytest

from costmodel.models import catalog
from costmodel.models.catalog import listed_model, model_names, published_model
from topology.base.errors import InputError, UnknownNameError


@pytest.mark.parametrize("name", model_names())
def test_every_model_is_found_by_its_own_name(name: str) -> None:
    """In any case; a point in it counts."""
    assert listed_model(name).name == published_model(name.upper()).name == name


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gemma-9b", "gemma-2-9b"),
        ("Qwen-235B-A22B", "qwen3-235b-a22b"),
        ("gemma-270m", "gemma-3-270m"),
        ("InternLM-20B", "internlm2-20b"),
    ],
)
def test_another_version_of_a_family_is_another_model(name: str, near: str) -> None:
    """What a person may mean by a short name, a file does not; the error names the nearest."""
    with pytest.raises(UnknownNameError, match="another version") as refused:
        published_model(name)
    assert refused.value.suggestions == (near,)


@pytest.mark.parametrize(
    "name", ["SmolLM-1.7B", "HuggingFaceTB/SmolLM-360M-Instruct", "internlm-7b", "OLMo-1B"]
)
def test_a_first_release_is_not_the_later_one_of_its_size(name: str) -> None:
    """Nor by the short name of a command line: its shape is another, and the error names the near one."""
    for find in (listed_model, published_model):
        with pytest.raises(UnknownNameError, match="known by its name alone") as refused:
            find(name)
        assert "is another model" in refused.value.cause


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5-FP8", "feed-forwards differ in width"),
        ("tiiuae/Falcon-H1-34B-Instruct", "beside each other in one layer"),
        ("LiquidAI/LFM2-8B-A1B", "short convolutions"), ("google/gemma-4-E4B-it", "embeddings of each layer"),
        ("inclusionAI/Ling-2.6-1T", "its config.json"),
    ],
)  # fmt: skip
def test_a_model_that_is_served_and_not_priced_says_what_is_missing(
    name: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its short name, and by that of its repository where the hub does not answer."""

    def refuse(name: str) -> str:
        raise InputError(f"{name} was looked for", "no network", "none")

    monkeypatch.setattr(catalog, "_download", refuse)
    for find, asked in ((listed_model, name.rpartition("/")[2]), (catalog.model, name)):
        with pytest.raises(UnknownNameError, match="known by its name alone") as refused:
            find(asked)
        assert missing in refused.value.cause
        assert ("config.json" in refused.value.fix) == ("config.json" in missing)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("qwen2_5-7b", "qwen2.5-7b"), ("qwen25-7b", "qwen2.5-7b"), ("Llama3_1-8B", "llama-3.1-8b"),
        ("Qwen3-30B", "qwen3-30b-a3b"), ("kimi-k2.6", "kimi-k2.5"), ("Kimi_K2", "kimi-k2"),
    ],
)  # fmt: skip
def test_spellings_of_a_version_are_one(name: str, meant: str) -> None:
    """With a point, an underscore or nothing between its numbers, and without what follows the size."""
    assert published_model(name).name == meant
