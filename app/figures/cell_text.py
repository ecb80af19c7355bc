"""Words on the fields of a map, in whichever ink can be read there.

The renderer knows a grey and white alone, and the grey is faint on colours of middling lightness.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

DARK, LIGHT = "#000000", "#FFFFFF"

Scale = Sequence[tuple[float, str]]


def write_cells(
    picture: go.Figure,
    texts: Sequence[Sequence[str]],
    values: Sequence[Sequence[float | None]],
    scale: Scale,
    value_range: tuple[float, float],
) -> None:
    """Write the text of every field that has a value, by row and column.

    Args:
        picture: Figure whose axes are categories.
        texts: Words by row.
        values: What colours the fields.
        scale: Colours from the low end to the high one, each with its place from 0 to 1.
        value_range: Values of both ends.
    """
    low, high = value_range
    notes = list(picture.layout.annotations)
    for row, (words, shown) in enumerate(zip(texts, values, strict=True)):
        for column, (text, value) in enumerate(zip(words, shown, strict=True)):
            if value is not None and text:
                ink = ink_on(colour_at((value - low) / (high - low) if high > low else 0.0, scale))
                inked = f'<span style="color:{ink}">{text}</span>'  # pages have notes in their own ink
                notes.append({"x": column, "y": row, "text": inked, "showarrow": False, "font": {"size": 12}})
    picture.update_layout(annotations=notes)


def colour_at(share: float, scale: Scale) -> tuple[float, float, float]:
    """The colour of a scale at a share of its length, red, green and blue from 0 to 255.

    >>> colour_at(0.5, ((0.0, "#000000"), (1.0, "#FF8000")))
    (127.5, 64.0, 0.0)
    """
    share = min(max(share, 0.0), 1.0)
    upper = next(i for i, (place, _) in enumerate(scale) if place >= share)
    (start, first), (end, last) = scale[max(upper - 1, 0)], scale[upper]
    part = (share - start) / (end - start) if end > start else 0.0
    red, green, blue = (a + part * (b - a) for a, b in zip(_channels(first), _channels(last), strict=True))
    return red, green, blue


def ink_on(colour: tuple[float, float, float]) -> str:
    """The ink with more contrast on a colour.

    >>> ink_on((255.0, 255.0, 255.0)) == DARK, ink_on((0.0, 75.0, 122.0)) == LIGHT
    (True, True)
    """
    return max((DARK, LIGHT), key=lambda ink: contrast(_channels(ink), colour))


def contrast(values: Sequence[float], other: Sequence[float]) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2.2, relative luminance)."""
    dark, light = sorted((_luminance(values), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Sequence[float]) -> float:
    """Relative luminance, 0 to 1."""
    shares = [channel / 255 for channel in colour]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _channels(colour: str) -> tuple[float, float, float]:
    """Red, green and blue of a hex colour."""
    red, green, blue = (float(int(colour[start : start + 2], 16)) for start in (1, 3, 5))
    return red, green, blue
