"""The model that the name of a file, or of a recipe in it, means: where nothing that it says names one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from costmodel.models.catalog import exact_model, model_names, published_model
from costmodel.models.names import stated_sizes
from costmodel.models.spec import ModelSpec
from topology.base.errors import InputError

_SPLIT = re.compile(r"[-_. ]+")
_PLAIN = re.compile(r"[^a-z0-9]+")
MOST_WORDS = 24
"""Of a name; longer ones are not read to their end."""


def model_of_names(paths: Iterable[str]) -> tuple[ModelSpec, str] | None:
    """A catalogued model whose whole name, with its size where it has sizes, stands in the name of a file.

    Args:
        paths: Files, with ``::NAME`` where a recipe was named.

    >>> model_of_names(["run/pretrain_llama3.1_405b_fp8.sh"])[0].name
    'llama-3.1-405b'
    >>> model_of_names(["deepseek-r1-b200.yaml"])[0].name
    'deepseek-r1'
    >>> model_of_names(["sft_8b.sh", "train_llama_13b.sh"])  # of which release?
    """
    for path in paths:
        file, _, recipe = path.partition("::")
        for name in filter(None, (recipe, file.rpartition("/")[2].rpartition(".")[0])):
            split = [word for word in _SPLIT.split(name) if word][:MOST_WORDS]
            for words, after in _spans(split):
                model = _model(words) if stated_sizes(words) else _release(words, after)
                if model is not None:
                    return model, name
    return None


def _spans(words: list[str]) -> Iterator[tuple[str, str]]:
    """Words of a name that stand together, most of them first, and the word behind them."""
    for length in range(min(len(words), 6), 0, -1):
        for start in range(len(words) - length + 1):
            end = start + length
            yield "-".join(words[start:end]), words[end] if end < len(words) else ""


def _model(words: str) -> ModelSpec | None:
    """The model of these words; None where they leave something of its name to be guessed."""
    try:
        model = published_model(words)
    except InputError:
        return None
    whole, written = (_PLAIN.sub("", text.lower()) for text in (model.name, words))
    return model if whole in written or whole.startswith(written) else None


_SMALLER = re.compile(
    r"distill\w*|lite|mini|nano|air|flash|coder|vl|v|small|tiny|draft\w*|eagle\w*", re.IGNORECASE
)
"""Words behind the name of a model that make it another one."""


def _release(words: str, after: str) -> ModelSpec | None:
    """The one model of a name without a size, which is its whole name; None where it comes in sizes.

    >>> _release("deepseek-r1", "fp8").name, _release("deepseek-r1", "distill"), _release("gpt-2", "")
    ('deepseek-r1', None, None)
    """
    if "-" not in words or not any(letter.isdigit() for letter in words) or _SMALLER.fullmatch(after):
        return None
    known = exact_model(words)
    if known is None or not known[1]:
        return None
    start = f"{known[0].name}-"
    more = {name.removeprefix(start) for name in model_names() if name.startswith(start)}
    sized = more & _SIZES or any(stated_sizes(word) for word in more if "-" not in word)
    return None if sized else known[0]


_SIZES = frozenset(("small", "medium", "large", "xl"))
"""Sizes in words, behind the name of a family: the name alone is any of them."""
