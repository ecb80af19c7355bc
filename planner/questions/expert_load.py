"""Measured counts of tokens by expert, from a file of numbers."""

from __future__ import annotations

import re

import numpy as np

from costmodel.models.spec import ModelSpec
from costmodel.ops.expert_load import ExpertLoad, busiest_over_mean
from topology.base.errors import InputError, shown
from topology.base.files import read_text

MOST_BYTES = 4_000_000
_BETWEEN = re.compile(r"[\s,;]+")


def read_expert_load(path: str, model: ModelSpec) -> ExpertLoad:
    """Read counts, or shares, of the tokens that every expert got: a line for each layer, or one for all.

    Raises:
        InputError: a model without experts, a line of another number of experts, or of what is no count.
    """
    if not model.is_moe:
        raise InputError(
            what=f"{model.name} has no experts",
            cause=f"--expert-load {shown(path)}",
            fix="leave it out, or name a mixture of experts",
        )
    lines = [line for line in read_text(path, MOST_BYTES).splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{path} is empty", "it has no counts", _fix(model))
    return busiest_over_mean(np.array([_counts(path, n, line, model) for n, line in enumerate(lines, 1)]))


def _counts(path: str, number: int, line: str, model: ModelSpec) -> list[float]:
    """The counts of one line."""
    words = [word for word in _BETWEEN.split(line.strip()) if word]
    where = f"line {number} of {path}"
    if len(words) != model.num_experts:
        cause = f"{len(words)} numbers, {model.name} has {model.num_experts} experts"
        raise InputError(f"{where} is not of this model", cause, _fix(model))
    try:
        counts = [float(word) for word in words]
    except ValueError:
        bad = next(word for word in words if not _is_number(word))
        raise InputError(f"{where} has what is no number", f"it says {shown(bad)}", _fix(model)) from None
    if not all(0 <= count < float("inf") for count in counts) or not 0 < sum(counts) < float("inf"):
        raise InputError(f"{where} has no counts", "counts are 0 or more, and some are above", _fix(model))
    return counts


def _is_number(word: str) -> bool:
    """Whether a word is a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def _fix(model: ModelSpec) -> str:
    """What a file looks like."""
    return f"write {model.num_experts} numbers a line, with commas or spaces, one line a layer or one for all"
