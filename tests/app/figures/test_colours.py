"""Colours can be told apart by people who see them differently, and stand out on light and on dark paper."""

import itertools

import numpy as np
import pytest

from app.figures.schedule.gantt import KIND_COLOURS
from app.figures.style import MEMORY_COLOURS, PART_COLOURS, SERIES

# Machado, Oliveira, Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# severity 1.0; they act on linear RGB.
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
)  # sRGB, IEC 61966-2-1
WHITE = TO_XYZ.sum(axis=1)
SMALLEST_DIFFERENCE = 10.0
"""CIE 1976 colour difference; 2.3 is just noticeable, 10 is seen at a glance."""
PAPERS = {"light": "#FFFFFF", "dark": "#181816"}


def linear(colour: str) -> np.ndarray:
    """Linear RGB of a hex colour."""
    value = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB."""
    ratio = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(first: str, second: str) -> float:
    """Contrast ratio of WCAG 2."""
    light, dark = sorted((0.05 + (TO_XYZ @ linear(colour))[1] for colour in (first, second)), reverse=True)
    return light / dark


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(
    "palette", [SERIES, tuple(MEMORY_COLOURS.values()), tuple(KIND_COLOURS.values())], ids=["series", "memory", "schedule"]
)  # fmt: skip
def test_colours_of_a_picture_differ_for_everyone(palette, vision):
    """Every two colours of one palette stay apart in each kind of colour vision."""
    seen = {colour: lab(VISION[vision] @ linear(colour)) for colour in palette}
    close = {
        pair: round(float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])), 1)
        for pair in itertools.combinations(palette, 2)
        if np.linalg.norm(seen[pair[0]] - seen[pair[1]]) < SMALLEST_DIFFERENCE
    }
    assert close == {}


@pytest.mark.parametrize("vision", VISION)
def test_neighbours_in_a_step_differ_for_everyone(vision):
    """Parts that can touch in a stacked step: each and the next two."""
    seen = {part: lab(VISION[vision] @ linear(colour)) for part, colour in PART_COLOURS.items()}
    names = list(seen)
    close = {
        (a, b): round(float(np.linalg.norm(seen[a] - seen[b])), 1)
        for number, a in enumerate(names)
        for b in names[number + 1 : number + 3]
        if np.linalg.norm(seen[a] - seen[b]) < SMALLEST_DIFFERENCE
    }
    assert close == {}


@pytest.mark.parametrize("paper", PAPERS)
def test_parts_of_a_step_stand_out_on_both_papers(paper):
    """Bars need a contrast of 1.5 to be seen as bars at all; their names stand beside them."""
    faint = {part: c for part, c in PART_COLOURS.items() if contrast(c, PAPERS[paper]) < 1.5}
    assert faint == {}


def test_the_simulation_knows_red_from_green_only_in_usual_vision():
    """A check of the check: pure red and a green of the same kind meet for a deuteranope."""
    red, green = "#C0392B", "#7A7A00"
    usual, deutan = (
        np.linalg.norm(lab(VISION[name] @ linear(red)) - lab(VISION[name] @ linear(green)))
        for name in ("usual", "deuteranopia")
    )
    assert deutan < usual / 3
