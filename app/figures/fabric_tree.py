"""Where does a large fabric carry what? A tree unfolded once a level, lines opaque as they are busy.

Of every level one unit is opened, the others stand beside it as a number: 16,384 GPUs are five rows. What a
group of an axis spans at a level is said at its units. Squares are units, not single switches: all
that the switches of a level join.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.figures.network import MOST_GPUS_IN_FULL, level_text, levels_reading, line_width
from app.figures.style import GREY, SWITCH_COLOUR, busy_colour, figure
from app.quantities import format_percent
from planner.analysis.link_load import LevelLoad
from topology.cluster import Cluster
from topology.pools.kinds import kinds_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_DRAWN = 8
"""Units of a row that are drawn one by one, at most."""
_WIDTH = 10.0
FOLDED = "One unit of every level is opened; a square is all that the switches of its level join."


def fabric_tree(
    num_gpus: int, loads: Sequence[LevelLoad], groups: Sequence[Sequence[int]] = (), axis: str = ""
) -> go.Figure:
    """Draw the levels of a cluster as a folded tree.

    Args:
        num_gpus: GPUs of the cluster.
        loads: Every level from the GPUs out, with its bandwidth and how busy it is, where that is known.
        groups: GPUs of every group of one axis.
        axis: Which axis.
    """
    sizes = row_sizes(num_gpus, loads)
    most = max((load.utilisation for load in loads), default=0.0)
    picture = figure(
        f"{levels_reading(loads)} {span_words(sizes, loads, groups, axis)} {FOLDED}".replace("  ", " "),
        height=130 + 74 * len(sizes), showlegend=False,
        xaxis={"visible": False, "range": [-0.5, _WIDTH]},
        yaxis={"range": [-0.6, len(sizes) - 0.5], "showgrid": False, "tickvals": list(range(len(sizes))),
               "ticktext": [_row_name(sizes, row, loads) for row in range(len(sizes))]},
    )  # fmt: skip
    places = [_places(sizes, row) for row in range(len(sizes))]
    for row, load in enumerate(loads):
        colour = busy_colour(load.utilisation / most if most else 0.0) if load.busy else GREY
        above = places[row + 1][0]
        if load.busy:
            text = f"{format_percent(load.utilisation)} busy"
            picture.add_annotation(x=_WIDTH, y=row + 0.5, text=text, showarrow=False, xanchor="right")
        picture.add_trace(_lines(places[row], above, row, load, colour))
    for row, size in enumerate(sizes):
        picture.add_trace(_units(places[row], row, size, _hover(size, groups, axis)))
        beside = (sizes[row + 1] // size if row + 1 < len(sizes) else 1) - len(places[row])
        if beside > 0:
            text = f"and {beside:,} more<br>in each above"
            picture.add_annotation(
                x=places[row][-1] + 0.35, y=row, text=text, showarrow=False, xanchor="left"
            )
    if any(load.busy for load in loads):
        picture.add_trace(_scale(most))
    return picture


def _row_name(sizes: Sequence[int], row: int, loads: Sequence[LevelLoad]) -> str:
    """What a row is of, and how large it is."""
    if row == 0:
        return "GPU"
    return f"{'cluster' if row == len(sizes) - 1 else loads[row].name}<br>{sizes[row]:,} GPUs"


def unfolds(cluster: Cluster, loads: Sequence[LevelLoad]) -> bool:
    """Whether a cluster is large and regular enough to be drawn as a tree: alike nodes, each level whole."""
    if cluster.spec.num_gpus <= MOST_GPUS_IN_FULL or len(kinds_of(cluster.spec)) > 1 or len(loads) < 2:
        return False
    sizes = row_sizes(cluster.hierarchy.num_gpus, loads)
    return all(after > before and after % before == 0 for before, after in itertools.pairwise(sizes))


def row_sizes(num_gpus: int, loads: Sequence[LevelLoad]) -> list[int]:
    """GPUs of a unit of every row: one, those that each level joins, all."""
    return [1, *(load.unit_gpus for load in loads[1:]), num_gpus]


def units_touched(group: Sequence[int], size: int) -> int:
    """Units of so many GPUs that a group has members in."""
    return len({gpu // size for gpu in group})


def span_words(
    sizes: Sequence[int], loads: Sequence[LevelLoad], groups: Sequence[Sequence[int]], axis: str
) -> str:
    """Up to which level the groups of an axis reach."""
    if not groups or not axis:
        return ""
    for row, size in enumerate(sizes[1:], start=1):
        if max(units_touched(group, size) for group in groups) == 1:
            whole = "" if row == len(loads) else f"one {loads[row].name} of {size:,} GPUs"
            each = f"Each of the {len(groups):,} groups of {axis}, {len(groups[0]):,} GPUs"
            return f"{each}, " + ("crosses every level." if size == sizes[-1] else f"stays within {whole}.")
    return ""


def _hover(size: int, groups: Sequence[Sequence[int]], axis: str) -> str:
    """What a unit is, and what groups do there."""
    text = f"{size:,} GPU{'s' if size > 1 else ''}"
    if not groups or not axis:
        return text
    touched = max(units_touched(group, size) for group in groups)
    spans = "each within one such unit" if touched == 1 else f"each over {touched:,} such units"
    return f"{text}<br>{len(groups):,} groups of {axis}, {len(groups[0]):,} GPUs: {spans}"


def _places(sizes: Sequence[int], row: int) -> list[float]:
    """Where the units of a row stand; the first is the one that is opened."""
    if row + 1 == len(sizes):
        return [0.0]
    count = min(MOST_DRAWN, max(1, sizes[row + 1] // sizes[row]))
    return [(_WIDTH - 3.0) * number / MOST_DRAWN for number in range(count)]


def _lines(below: Sequence[float], above: float, row: int, load: LevelLoad, colour: str) -> Any:
    """Lines from the units of a row to the one that holds them."""
    import plotly.graph_objects as go

    xs: list[float | None] = []
    ys: list[float | None] = []
    for x in below:
        xs += [x, above, None]
        ys += [row, row + 1, None]
    return go.Scatter(
        x=xs, y=ys, mode="lines", line={"width": line_width(load.bytes_per_s), "color": colour},
        hovertext=level_text(load), hoverinfo="text", name=load.name,
    )  # fmt: skip


def _units(at: Sequence[float], row: int, size: int, hover: str) -> Any:
    """Marks of a row: GPUs are round."""
    import plotly.graph_objects as go

    marker = {"symbol": "circle" if size == 1 else "square", "size": 15, "color": SWITCH_COLOUR,
              "line": {"width": 1, "color": GREY}}  # fmt: skip
    return go.Scatter(
        x=list(at), y=[row] * len(at), mode="markers", marker=marker, hovertext=hover, hoverinfo="text",
        cliponaxis=False,
    )  # fmt: skip


def _scale(most: float) -> Any:
    """The scale of colours, without a mark of its own."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=[None], y=[None], mode="markers", hoverinfo="skip",
        marker={"color": [0.0], "cmin": 0.0, "cmax": max(100 * most, 1.0), "showscale": True,
                "colorscale": [[0.0, busy_colour(0.0)], [1.0, busy_colour(1.0)]],
                "colorbar": {"title": {"text": "busy, %"}, "thickness": 12}},
    )  # fmt: skip
