"""Colours of the words for memory, the same in tiles and in tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from app.figures.style import GREEN, ORANGE, VERMILION, faded
from costmodel.memory.fit import Fit, fit_of

FitColour = Literal["green", "orange", "red"]
FIT_COLOURS: Mapping[Fit, FitColour] = {"fits": "green", "tight": "orange", "does not fit": "red"}
"""Of the word in the tile of the peak."""
_TINTS: Mapping[Fit, str] = {"fits": GREEN, "tight": ORANGE, "does not fit": VERMILION}
_OPACITY = 0.25
"""Of the colour behind a cell: its words are read in the light theme and in the dark one."""


def fit_tint(chance: float | None) -> str:
    """The colour behind a cell that says a chance of OOM, in CSS; none where no chance is known.

    >>> fit_tint(0.01), fit_tint(None)
    ('rgba(0, 158, 115, 0.25)', '')
    """
    return "" if chance is None else faded(_TINTS[fit_of(chance)], _OPACITY)
