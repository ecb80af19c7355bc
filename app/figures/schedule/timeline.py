"""What does a rank do when? Lanes of compute and of every communication; predicted above, measured below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.figures.step_time import PART_LABELS
from app.figures.style import FAINT, GREY, PART_COLOURS, PURPLE, faded, figure
from app.quantities import format_percent
from planner.analysis.lanes import Slice
from topology.base.units import format_seconds, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

COMPUTE = "compute"
MOST_SLICES = 4000


def timeline(predicted: Sequence[Slice], measured: Sequence[Slice], reading: str) -> go.Figure:
    """Draw slices on their lanes.

    Args:
        predicted: Of one rank.
        measured: Of the same rank, from a profiler's trace.
        reading: What the picture is of; shares of lanes are added.
    """
    every = [*predicted, *measured]
    end_s = max(piece.end_s for piece in every)
    factor, unit = time_unit(end_s)
    both = bool(predicted) and bool(measured)
    groups = ((predicted, " predicted" if both else ""), (measured, " measured" if both else ""))
    lanes = [f"{_label(lane)}{after}" for some, after in groups for lane in lanes_in(some)]
    picture = figure(
        f"{reading} {_reading(predicted, measured)}".strip(),
        height=110 + 26 * len(lanes), barmode="overlay", bargap=0.2, showlegend=False,
        xaxis={"title": f"time, {unit}", "range": [0, end_s / factor], "showgrid": True},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False, "categoryorder": "array",
               "categoryarray": lanes},
    )  # fmt: skip
    for some, after in groups:
        for lane in lanes_in(some):
            for hidden in (False, True):
                chosen = [piece for piece in some if piece.lane == lane and piece.hidden is hidden][
                    :MOST_SLICES
                ]
                if chosen:
                    picture.add_trace(_bars(chosen, f"{_label(lane)}{after}", factor, hidden=hidden))
    if both:
        picture.add_hline(y=len(lanes_in(predicted)) - 0.5, line={"color": FAINT, "width": 1})
    return picture


def lanes_in(slices: Sequence[Slice]) -> list[str]:
    """Lanes of slices: parts of a step in their order, then collectives by name."""
    lanes = {piece.lane for piece in slices}
    return [*(lane for lane in PART_LABELS if lane in lanes), *sorted(lanes - set(PART_LABELS))]


def busy_s(slices: Sequence[Slice], lane: str) -> float:
    """Seconds of a lane."""
    return sum(piece.end_s - piece.start_s - piece.gaps_s for piece in slices if piece.lane == lane)


def _label(lane: str) -> str:
    return PART_LABELS.get(lane, lane)


def _bars(slices: Sequence[Slice], lane: str, factor: float, *, hidden: bool) -> Any:
    """Slices of a lane; those under compute are hatched."""
    import plotly.graph_objects as go

    colour = PART_COLOURS.get(slices[0].lane, GREY if slices[0].lane == "copies" else PURPLE)
    marker: dict[str, Any] = {"color": colour, "line": {"width": 0}}
    if hidden:
        marker |= {"color": faded(colour, 0.35), "pattern": {"shape": "/", "fgcolor": colour}}
    under = ", under compute" if hidden else ""
    return go.Bar(
        orientation="h", y=[lane] * len(slices), base=[piece.start_s / factor for piece in slices],
        x=[(piece.end_s - piece.start_s) / factor for piece in slices], marker=marker,
        hovertext=[
            f"{piece.what}{under}<br>{format_seconds(piece.end_s - piece.start_s)}" for piece in slices
        ],
        hovertemplate="%{y}: %{hovertext}<extra></extra>",
    )  # fmt: skip


def _reading(predicted: Sequence[Slice], measured: Sequence[Slice]) -> str:
    """Say how much of the time computes and which lane takes most beside it."""
    words = []
    for some, whose in ((predicted, "predicted"), (measured, "measured")):
        if not some:
            continue
        end_s = max(piece.end_s for piece in some)
        shown = [piece for piece in some if not piece.hidden]
        rest = [lane for lane in lanes_in(shown) if lane not in (COMPUTE, "recompute")]
        most = max(rest, key=lambda lane: busy_s(shown, lane), default=None)
        other = (
            f", {_label(most)} {format_percent(busy_s(shown, most) / end_s)}"
            if most and busy_s(shown, most)
            else ""
        )
        words.append(f"{format_percent(busy_s(shown, COMPUTE) / end_s)} of it computes{other} ({whose}).")
    return " ".join(words)
