"""Layers of stages as a user writes them: ``8-8-8-6``, ``8,8,8,6`` or ``8*3-6``."""

from __future__ import annotations

import re
from typing import Literal

from costmodel.models.sizes import MOST_LAYERS
from planner.plan import LAYERS_OF_STAGE, OPTIMISED, RECOMPUTE_OF_STAGE
from topology.base.errors import InputError, shown

_ENTRY = re.compile(r"([0-9]{1,5})(?:\*([0-9]{1,5}))?", re.ASCII)
_BETWEEN = re.compile(r"\s*[-,]\s*|\s+")


def read_layers(text: str) -> tuple[int, ...] | Literal["auto"]:
    """Layers of every virtual stage in model order, or ``auto``: as the planner would split them.

    >>> read_layers("8*3-6"), read_layers("[20, 20]"), read_layers("auto")
    ((8, 8, 8, 6), (20, 20), 'auto')
    """
    if text.strip().lower() == OPTIMISED:
        return OPTIMISED
    return _counts(text, LAYERS_OF_STAGE, f"8*3-6 for four stages, or {OPTIMISED}")


def read_recomputed(text: str) -> tuple[int, ...]:
    """Recomputed layers of every pipeline rank.

    >>> read_recomputed("3-3-0-0")
    (3, 3, 0, 0)
    """
    return _counts(text, RECOMPUTE_OF_STAGE, "3-3-0-0 for four ranks")


def _counts(text: str, name: str, example: str) -> tuple[int, ...]:
    """The numbers of a text, each once or as often as stands after its star."""
    counts: list[int] = []
    for entry in _BETWEEN.split(text.strip().strip("[]()").strip()):
        match = _ENTRY.fullmatch(entry)
        times = int(match.group(2) or 1) if match else 0
        if (
            match is None
            or not times
            or int(match.group(1)) > MOST_LAYERS
            or len(counts) + times > MOST_LAYERS
        ):
            raise InputError(
                what=f"layout.{name} cannot be {shown(text)}",
                cause=f"layers of stages stand between dashes, at most {MOST_LAYERS} of each",
                fix=f"pin for example layout.{name}={example}",
            )
        counts += [int(match.group(1))] * times
    return tuple(counts)
