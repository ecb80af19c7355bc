"""The model that the name of a file, or of a recipe in it, means: where nothing that it says names one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from costmodel.models.catalog import published_model
from costmodel.models.names import stated_sizes
from costmodel.models.spec import ModelSpec
from topology.base.errors import InputError

_SPLIT = re.compile(r"[-_. ]+")
_PLAIN = re.compile(r"[^a-z0-9]+")
MOST_WORDS = 24
"""Of a name; longer ones are not read to their end."""


def model_of_names(paths: Iterable[str]) -> tuple[ModelSpec, str] | None:
    """A catalogued model whose whole name, its version and its size too, stands in the name of a file.

    Args:
        paths: Files, with ``::NAME`` where a recipe was named.

    >>> model_of_names(["run/pretrain_llama3.1_405b_fp8.sh"])[0].name
    'llama-3.1-405b'
    >>> model_of_names(["sft_8b.sh", "train_llama_13b.sh"])  # of which release?
    """
    for path in paths:
        file, _, recipe = path.partition("::")
        for name in filter(None, (recipe, file.rpartition("/")[2].rpartition(".")[0])):
            for words in _spans([word for word in _SPLIT.split(name) if word][:MOST_WORDS]):
                model = _model(words)
                if model is not None:
                    return model, name
    return None


def _spans(words: list[str]) -> Iterator[str]:
    """Words of a name that stand together, most of them first."""
    for length in range(min(len(words), 6), 0, -1):
        for start in range(len(words) - length + 1):
            yield "-".join(words[start : start + length])


def _model(words: str) -> ModelSpec | None:
    """The model of these words; None where they leave something of its name to be guessed."""
    if not stated_sizes(words):
        return None
    try:
        model = published_model(words)
    except InputError:
        return None
    whole, written = (_PLAIN.sub("", text.lower()) for text in (model.name, words))
    return model if whole in written or whole.startswith(written) else None
