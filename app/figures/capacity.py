"""What could be bought? Kinds of GPU against numbers of them: time, money, and what keeps the limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.figures.cell_text import write_cells
from app.figures.style import FAINT, SKY, VERMILION, figure
from app.limits import brief_words
from app.quantities import format_duration, format_sum
from planner.analysis.capacity import MEMORY, Cell, Limits

if TYPE_CHECKING:
    import plotly.graph_objects as go

SCALE = ((0.0, "#DDF0E8"), (0.5, SKY), (1.0, "#004B7A"))
"""From cheap to dear."""
WORDS = {MEMORY: "nothing fits"}


def capacity_map(cells: Sequence[Cell], chosen: tuple[str, int], limits: Limits) -> go.Figure:
    """Draw every kind and number as a field: colour is money, or time where nothing has a price.

    Args:
        cells: One for every kind and number.
        chosen: Kind and number of the plan at hand, ringed.
        limits: What has to be kept; fields that do not say so.
    """
    import plotly.graph_objects as go

    kinds = list(dict.fromkeys(cell.gpu for cell in cells))
    counts = sorted({cell.num_gpus for cell in cells})
    at = {(cell.gpu, cell.num_gpus): cell for cell in cells}
    priced = any(cell.usd is not None for cell in cells)
    values = [[_value(at.get((kind, count)), priced) for count in counts] for kind in kinds]
    known = [value for row in values for value in row if value is not None]
    picture = figure(
        _reading(cells, limits),
        height=110 + 76 * len(kinds),
        xaxis={"type": "category", "title": "GPUs"},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
        plot_bgcolor=FAINT,
        showlegend=False,
        margin={"t": 12},
    )
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    high = max(high, low + 0.1)
    texts = [[_inside(at.get((kind, count)), limits) for count in counts] for kind in kinds]
    picture.add_trace(
        go.Heatmap(
            x=[f"{count:,}" for count in counts], y=kinds, z=values, zmin=low, zmax=high,
            text=texts, xgap=3, ygap=3, showscale=False, hoverongaps=False,
            colorscale=[list(stop) for stop in SCALE],
            customdata=[[[kind, count] for count in counts] for kind in kinds],
            hovertemplate="%{x} × %{y}<br>%{text}<extra></extra>",
        )
    )  # fmt: skip
    write_cells(picture, texts, values, SCALE, (low, high))
    for (kind, count), cell in at.items():
        if cell.seconds is None:
            picture.add_annotation(
                x=counts.index(count),
                y=kinds.index(kind),
                text=cell_words(cell, limits),
                showarrow=False,
                font={"size": 12},
            )
    if chosen in at:
        column, row = counts.index(chosen[1]), kinds.index(chosen[0])
        picture.add_shape(
            type="rect", x0=column - 0.5, x1=column + 0.5, y0=row - 0.5, y1=row + 0.5,
            line={"color": VERMILION, "width": 3},
        )  # fmt: skip
    return picture


def cell_words(cell: Cell | None, limits: Limits) -> str:
    """Time and money of a field, and the limits it does not surely keep; or why there is nothing."""
    if cell is None:
        return ""
    if cell.seconds is None:
        return WORDS.get(cell.why, cell.why)
    parts = [format_duration(cell.seconds), *([] if cell.usd is None else [format_sum(cell.usd)])]
    return "<br>".join([*parts, *brief_words(cell.run, limits)])


def _inside(cell: Cell | None, limits: Limits) -> str:
    """Words on a coloured field; those of the others stand on the paper, in its ink."""
    return "" if cell is None or cell.seconds is None else cell_words(cell, limits)


def _value(cell: Cell | None, priced: bool) -> float | None:
    """What the colour of a field says: the logarithm of its dollars, else of its seconds."""
    usd = None if cell is None else cell.usd if priced else cell.seconds
    return math.log10(usd) if usd else None


def _reading(cells: Sequence[Cell], limits: Limits) -> str:
    """Say which field is cheapest, which soonest, and how many keep the limits."""
    planned = [(cell.seconds, cell) for cell in cells if cell.seconds is not None]
    if not planned:
        return "None of these GPUs can run the job."
    seconds, soonest = min(planned, key=lambda entry: entry[0])
    texts = [f"soonest {_named(soonest)} in {format_duration(seconds)}"]
    priced = [(cell.usd, cell) for _, cell in planned if cell.usd is not None]
    if priced:
        usd, cheapest = min(priced, key=lambda entry: entry[0])
        texts.insert(0, f"cheapest {_named(cheapest)} for {format_sum(usd)}")
    if limits != Limits():
        kept = sum(limits.kept_by(cell.run) for _, cell in planned)
        texts.append(f"{kept} of {len(cells)} keep every limit nine times in ten")
    unfit = sum(cell.why == MEMORY for cell in cells)
    texts += [f"nothing fits in {unfit}"] if unfit else []
    return f"{texts[0][0].upper()}{'; '.join(texts)[1:]}."


def _named(cell: Cell) -> str:
    """A field in words."""
    return f"{cell.num_gpus:,} × {cell.gpu}"
