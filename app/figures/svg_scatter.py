"""Scatter plots as SVG text without a plotting library: for `plan accuracy --plot` and the documentation.

Legend: ``u`` a coordinate in its own unit, mapped to pixels on a linear or logarithmic axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from app.figures.style import SERIES

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 815, 460, 64, 255, 30, 48
MOST_GROUPS = 14
_INK, _GRID = "#44505e", "#d5dae1"
_STEPS = (1, 2, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotAxis:
    """One axis: what it shows, and whether it is logarithmic."""

    title: str
    logarithmic: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A range of values laid over a range of pixels."""

    low: float
    high: float
    first_px: float
    last_px: float
    logarithmic: bool

    def px(self, value: float) -> float:
        """Pixel of a value, kept inside the frame."""
        low, high, at = (
            (math.log(v) if self.logarithmic else v) for v in (self.low, self.high, self._inside(value))
        )
        return self.first_px + (at - low) / (high - low) * (self.last_px - self.first_px)

    def _inside(self, value: float) -> float:
        return min(max(value, self.low), self.high)


def scatter(
    groups: Mapping[str, Sequence[tuple[float, float]]], x: PlotAxis, y: PlotAxis, *,
    title: str, lines: Sequence[tuple[float, float]] = (), y_range: tuple[float, float] | None = None,
) -> str:  # fmt: skip
    """SVG of points by group.

    Args:
        groups: Points by name; the first `MOST_GROUPS` get a legend entry of their own.
        x: Horizontal axis.
        y: Vertical axis.
        title: What the figure shows, read out by screen readers.
        lines: (slope, intercept) of grey lines y = slope·x + intercept.
        y_range: Ends of the vertical axis; points beyond them are drawn at the edge.
    """
    points = [point for group in groups.values() for point in group]
    across = _scale([px for px, _ in points], x, LEFT, WIDTH - RIGHT)
    up = _scale(list(y_range) if y_range else [py for _, py in points], y, HEIGHT - BOTTOM, TOP)
    body = [*_frame(across, x, horizontal=True), *_frame(up, y, horizontal=False)]
    body += [_line(slope, intercept, across, up) for slope, intercept in lines]
    for number, (name, members) in enumerate(groups.items()):
        colour = SERIES[number % len(SERIES)]
        body += [_mark(across.px(px), up.px(py), number, colour) for px, py in members]
        if number < MOST_GROUPS:
            height = TOP + 8 + 20 * number
            body += [
                _mark(WIDTH - RIGHT + 16, height, number, colour),
                _text(WIDTH - RIGHT + 26, height + 4, name),
            ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">'
    )
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    caption = _text(LEFT, TOP - 12, title)
    return "\n".join([head, background, caption, *body, "</svg>"]) + "\n"


def _scale(values: Sequence[float], axis: PlotAxis, first_px: float, last_px: float) -> Scale:
    """A scale that holds these values with some room."""
    usable = [v for v in values if not axis.logarithmic or v > 0] or [1.0]
    low, high = min(usable), max(usable)
    if axis.logarithmic:
        low, high = low / 1.2, high * 1.2
    elif low == high:
        low, high = low - 1, high + 1
    return Scale(low=low, high=high, first_px=first_px, last_px=last_px, logarithmic=axis.logarithmic)


def _ticks(scale: Scale) -> list[float]:
    """Round values inside a scale: 1, 2, 5 times powers of ten."""
    if not scale.logarithmic:
        about = (scale.high - scale.low) / 6
        power = 10.0 ** math.floor(math.log10(about))
        step = next(s * power for s in (*_STEPS, 10) if s * power >= about)
        return [i * step for i in range(math.ceil(scale.low / step), math.floor(scale.high / step) + 1)]
    decades = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    steps = _STEPS if len(decades) <= 4 else (1,)
    return [s * 10.0**d for d in decades for s in steps if scale.low <= s * 10.0**d <= scale.high]


def _frame(scale: Scale, axis: PlotAxis, *, horizontal: bool) -> list[str]:
    """Grid lines, tick labels and the title of one axis."""
    parts = []
    for value in _ticks(scale):
        at = scale.px(value)
        pen = f'stroke="{_GRID}"'
        if horizontal:
            parts.append(_path(at, TOP, at, HEIGHT - BOTTOM, pen))
            parts.append(_text(at, HEIGHT - BOTTOM + 16, f"{value:g}", anchor="middle"))
        else:
            parts.append(_path(LEFT, at, WIDTH - RIGHT, at, pen))
            parts.append(_text(LEFT - 8, at + 4, f"{value:g}", anchor="end"))
    if horizontal:
        return [*parts, _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, axis.title, anchor="middle")]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    return [*parts, _text(16, middle, axis.title, anchor="middle", turned=True)]


def _line(slope: float, intercept: float, across: Scale, up: Scale) -> str:
    """A grey line across the frame."""
    ends = [(across.px(x), up.px(slope * x + intercept)) for x in (across.low, across.high)]
    (x1, y1), (x2, y2) = ends
    return _path(x1, y1, x2, y2, 'stroke="#8a8f98" stroke-dasharray="4 3"')


def _path(x1: float, y1: float, x2: float, y2: float, pen: str) -> str:
    """A straight line."""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" {pen}/>'


def _mark(x_px: float, y_px: float, number: int, colour: str) -> str:
    """A circle, square or diamond, so that groups differ without colour too."""
    if number % 3 == 0:
        return f'<circle cx="{x_px:.1f}" cy="{y_px:.1f}" r="3.2" fill="{colour}" fill-opacity="0.75"/>'
    turn = f' transform="rotate(45 {x_px:.1f} {y_px:.1f})"' if number % 3 == 1 else ""
    box = f'x="{x_px - 2.8:.1f}" y="{y_px - 2.8:.1f}" width="5.6" height="5.6"'
    return f'<rect {box}{turn} fill="{colour}" fill-opacity="0.75"/>'


def _text(x_px: float, y_px: float, words: str, *, anchor: str = "start", turned: bool = False) -> str:
    """A label."""
    turn = f' transform="rotate(-90 {x_px:.1f} {y_px:.1f})"' if turned else ""
    return f'<text x="{x_px:.1f}" y="{y_px:.1f}" text-anchor="{anchor}"{turn}>{escape(words)}</text>'
