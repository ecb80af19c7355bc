"""Names resolve leniently, and never guess between two."""

import difflib

import pytest

from topology.base.errors import UnknownNameError
from topology.base.names import matches, normalize, resolve, suggest

MODELS = ("llama-3.1-70b", "llama-3-70b", "llama-3.1-405b", "qwen2.5-72b", "gpt-3-175b")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LLAMA_3.1 70B", "llama-3.1-70b"),
        ("405b", "llama-3.1-405b"),
        ("qwen 72b", "qwen2.5-72b"),
        ("175", "gpt-3-175b"),
    ],
)
def test_case_punctuation_and_parts_are_enough(name: str, meant: str) -> None:
    """Whole words first, then parts of the name."""
    assert resolve(name, MODELS, "model") == meant


def test_an_ambiguous_name_lists_its_candidates() -> None:
    """Two candidates are never chosen between."""
    with pytest.raises(UnknownNameError) as caught:
        resolve("70b", MODELS, "model")
    assert caught.value.suggestions == ("llama-3-70b", "llama-3.1-70b")


def test_an_alias_decides_between_candidates() -> None:
    """An alias is what the short name means."""
    assert resolve("70B", MODELS, "model", {"70b": "llama-3.1-70b"}) == "llama-3.1-70b"


def test_a_typing_mistake_is_answered_with_suggestions() -> None:
    """The closest names come first."""
    with pytest.raises(UnknownNameError) as caught:
        resolve("lamma-3.1-405", MODELS, "model")
    assert caught.value.suggestions[0] == "llama-3.1-405b"


@pytest.mark.parametrize("name", ["", "---", "zzzz"])
def test_a_name_that_is_nothing_matches_nothing(name: str) -> None:
    """An empty name is not a part of every name."""
    assert (matches(name, MODELS), suggest(name, MODELS)) == ([], ())


@pytest.mark.parametrize(("count", "least"), [(5, 0.4), (10, 0.4), (3, 0.6)])
def test_fewer_comparisons_suggest_the_same(count: int, least: float) -> None:
    """What the library's own search of close matches suggests, whatever is cut from a name or put into it."""
    by_key = {normalize(name): name for name in MODELS}
    for name in MODELS:
        for spelled in (name[2:], name[::2], f"x{name}", name.replace("l", "7"), name[:3] + name):
            close = difflib.get_close_matches(normalize(spelled), by_key, n=count, cutoff=least)
            assert suggest(spelled, MODELS, count, least) == tuple(by_key[key] for key in close)
