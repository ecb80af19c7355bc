"""Positions of published checkpoints, where those of one shape differ: ``max_position_embeddings`` by name.

What a checkpoint was tuned for changes no shape, and may change its positions: Qwen2.5-7B has 131,072,
Qwen2.5-7B-Instruct 32,768. A server that is told no length takes requests of that many tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.models.names import spellings
from topology.base.names import normalize

_FILE = Path(__file__).parents[1] / "data" / "positions.toml"


def positions_of(name: str) -> int:
    """The positions of the checkpoint of this name, whatever its weights are stored in; 0 of an unlisted one.

    >>> [positions_of(f"Qwen/Qwen2.5-7B{end}") for end in ("", "-Instruct", "-Instruct-AWQ", "-Other")]
    [131072, 32768, 32768, 0]
    """
    kept = (each.text for each in spellings(name) if not (each.untuned or each.undated))
    return next((tokens for text in kept if (tokens := _by_name().get(normalize(text)))), 0)


def siblings_alike() -> frozenset[str]:
    """Models of whose shape every checkpoint of their maker has the same positions."""
    return frozenset(content()["siblings"]["alike"])


@functools.cache
def _by_name() -> Mapping[str, int]:
    """Positions by name, without case and separators."""
    rows = content()["checkpoints"]
    return {normalize(name): int(row["tokens"]) for row in rows for name in row["names"]}


@functools.cache
def content() -> Mapping[str, Any]:
    """The file."""
    from topology.base.decode import read_toml

    return read_toml(_FILE)
