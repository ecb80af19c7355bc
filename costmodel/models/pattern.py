"""Layers that are not all alike, one letter each, in the words of published hybrids.

A whole layer mixes tokens and then feeds forward; a layer of Nemotron-H is one of these blocks alone, written
as its ``hybrid_override_pattern`` writes it. Attention of several reaches has a letter for each
(DeepSeek-V4). A pattern shorter than the model repeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from costmodel.models.attention import ATTENTION_KINDS, Reach
from costmodel.models.feed_forward import BlockName

Mixer = Literal["attention", "recurrence", "none"] | Reach
Block = BlockName | Literal["none"]

LETTERS: Mapping[str, tuple[Mixer, Block]] = {
    "A": ("attention", "moe"),
    "a": ("attention", "dense"),
    "L": ("recurrence", "moe"),
    "l": ("recurrence", "dense"),
    "*": ("attention", "none"),
    "M": ("recurrence", "none"),
    "-": ("none", "dense"),
    "E": ("none", "moe"),
    **{letter: blocks for kind in ATTENTION_KINDS for letter, blocks in kind.letters.items()},
}


@lru_cache(maxsize=64)
def letters_of(pattern: str, num_layers: int) -> str:
    """The letter of every layer.

    >>> letters_of("LLLA", 6)
    'LLLALL'
    """
    return (pattern * -(-num_layers // len(pattern)))[:num_layers]


def period_of(letters: str) -> str:
    """The shortest pattern that repeats to these letters.

    >>> period_of("LLLALLLA"), period_of("aA"), period_of("lLLA")
    ('LLLA', 'aA', 'lLLA')
    """
    lengths = (n for n in range(1, len(letters) + 1) if len(letters) % n == 0)
    return next((letters[:n] for n in lengths if letters_of(letters[:n], len(letters)) == letters), "")


@lru_cache(maxsize=64)
def segments_of(letters: str) -> tuple[tuple[int, int], ...]:
    """Runs of equal letters in model order: which distinct letter, in order of appearance, and how many.

    >>> segments_of("lLLALLA")
    ((0, 1), (1, 2), (2, 1), (1, 2), (2, 1))
    """
    distinct = list(dict.fromkeys(letters))
    segments: list[tuple[int, int]] = []
    for letter in letters:
        kind = distinct.index(letter)
        if segments and segments[-1][0] == kind:
            segments[-1] = kind, segments[-1][1] + 1
        else:
            segments.append((kind, 1))
    return tuple(segments)
