"""A run to its last token: useful share over interval and spares, one run in detail, cost over date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.figures.bands import whiskers
from app.figures.cell_text import write_cells
from app.figures.style import BLUE, GREY, SKY, VERMILION, YELLOW, figure
from app.quantities import format_percent, format_sum
from planner.analysis.campaign.run_to_end import SIMULATED, Finish, Moment, UsefulMap
from topology.base.counts import counted
from topology.base.units import DAY, format_seconds, three_digits

if TYPE_CHECKING:
    import plotly.graph_objects as go

SCALE = ((0.0, "#F4F1E4"), (0.5, SKY), (1.0, "#004B7A"))
"""From little to much, in one hue, told apart in grey as well."""


def useful_heat(useful_map: UsefulMap) -> go.Figure:
    """Draw the useful share of a run: spares up, work between checkpoints across, the plan's own ringed."""
    import plotly.graph_objects as go

    across = [format_seconds(seconds) for seconds in useful_map.every_s]
    up = [f"{count}" for count in useful_map.spares]
    cells = [[format_percent(share) for share in row] for row in useful_map.useful]
    picture = figure(
        _useful_reading(useful_map),
        height=150 + 30 * len(up),
        margin={"t": 12},
        xaxis={"type": "category", "title": "work between checkpoints"},
        yaxis={"type": "category", "title": "spare nodes", "showgrid": False},
        showlegend=False,
    )
    percents = [[100 * share for share in row] for row in useful_map.useful]
    picture.add_trace(
        go.Heatmap(
            x=across, y=up, z=percents, text=cells,
            colorscale=[list(stop) for stop in SCALE],
            colorbar={"title": {"text": "useful, %"}, "thickness": 12}, xgap=2, ygap=2,
            hovertemplate="%{y} spare nodes, a checkpoint every %{x}: %{text} useful<extra></extra>",
        )
    )  # fmt: skip
    known = [share for row in percents for share in row]
    write_cells(picture, cells, percents, SCALE, (min(known), max(known)))
    row, column = useful_map.chosen
    picture.add_shape(
        type="rect", x0=column - 0.5, x1=column + 0.5, y0=row - 0.5, y1=row + 0.5,
        line={"color": VERMILION, "width": 3},
    )  # fmt: skip
    return picture


def run_timeline(run: Sequence[Moment], whole_work_s: float) -> go.Figure:
    """Draw the progress of one simulated run over its days, a mark where failures struck.

    Args:
        run: Moments of it, the first at its start.
        whole_work_s: Seconds of work of the whole run, of which this may be a stretch.
    """
    import plotly.graph_objects as go

    days = [moment.wall_s / DAY for moment in run]
    done = [moment.work_s / DAY for moment in run]
    struck = [n for n in range(1, len(run)) if run[n].interruptions > run[n - 1].interruptions]
    picture = figure(
        _run_reading(run, whole_work_s),
        height=320,
        xaxis={"title": "days on the clock", "range": [0, days[-1] * 1.02]},
        yaxis={"title": "days of work done", "range": [0, days[-1] * 1.05]},
    )
    picture.add_trace(
        go.Scatter(
            x=[0, days[-1]], y=[0, days[-1]], mode="lines", line={"color": GREY, "dash": "dot", "width": 1.5},
            name="nothing failing", hoverinfo="skip",
        )
    )  # fmt: skip
    picture.add_trace(
        go.Scatter(x=days, y=done, mode="lines", line={"color": BLUE, "width": 2}, name="this run")
    )
    picture.add_trace(
        go.Scatter(
            x=[days[n] for n in struck], y=[done[n] for n in struck], mode="markers",
            name="interrupted before",
            marker={"color": VERMILION, "symbol": "x", "size": 7},
            hovertext=[_struck_words(run[n - 1], run[n]) for n in struck], hoverinfo="text",
        )
    )  # fmt: skip
    return picture


def finish_frontier(finishes: Sequence[Finish], chosen: int, deadline_s: float | None = None) -> go.Figure:
    """Draw dollars against days over numbers of GPUs, both with their 80 % bands.

    Args:
        finishes: Runs with a price, at least one.
        chosen: GPUs of the plan at hand, marked.
        deadline_s: When it has to be finished, drawn as a line.
    """
    import plotly.graph_objects as go

    priced = [
        (finish, finish.usd)
        for finish in sorted(finishes, key=lambda finish: finish.num_gpus)
        if finish.usd is not None
    ]
    days = [finish.days for finish, _ in priced]
    usd = [money for _, money in priced]
    picture = figure(
        _frontier_reading(finishes, deadline_s),
        height=360,
        xaxis={"title": "days to the last token", "rangemode": "tozero", "showgrid": True},
        yaxis={"title": "dollars, spares and idle nodes too", "rangemode": "tozero", "tickprefix": "$"},
    )
    picture.add_trace(
        go.Scatter(
            x=[band.p50 for band in days], y=[band.p50 for band in usd],
            error_x=whiskers(days),
            error_y=whiskers(usd),
            mode="lines+markers+text",
            text=[f"{finish.num_gpus:,}" for finish, _ in priced], textposition="top right",
            line={"color": SKY, "width": 1.5}, marker={"size": 9, "color": BLUE}, name="80 % bands, by GPUs",
            hovertext=[_finish_words(finish) for finish, _ in priced], hoverinfo="text",
        )
    )  # fmt: skip
    mine = [(finish, money) for finish, money in priced if finish.num_gpus == chosen]
    picture.add_trace(
        go.Scatter(
            x=[finish.days.p50 for finish, _ in mine], y=[money.p50 for _, money in mine], mode="markers",
            marker={"size": 17, "symbol": "circle-open", "color": VERMILION, "line": {"width": 3}},
            name="this plan", hoverinfo="skip",
        )
    )  # fmt: skip
    if deadline_s is not None:
        picture.add_vline(x=deadline_s / DAY, line={"color": YELLOW, "dash": "dash", "width": 2})
    return picture


def _useful_reading(useful_map: UsefulMap) -> str:
    """Say what the plan's own choice leaves useful, and what none of it would."""
    row, column = useful_map.chosen
    useful = format_percent(useful_map.useful[row][column])
    every = format_seconds(useful_map.every_s[column])
    bare = format_percent(useful_map.useful[0][column])
    how = f", the mean of {SIMULATED} simulated runs" if useful_map.by == "simulation" else ""
    return (
        f"A checkpoint every {every} of work and {counted(useful_map.spares[row], 'spare node')} leave "
        f"{useful} useful; without spares it is {bare}{how}. "
        "Spares are those that make the fewest paid node-hours."
    )


def _run_reading(run: Sequence[Moment], whole_work_s: float) -> str:
    """Say what one run took, and what it lost most to."""
    last = run[-1]
    part = "" if last.work_s >= 0.999 * whole_work_s else f" of {three_digits(whole_work_s / DAY)}"
    name, lost = max(last.lost_s.items(), key=lambda entry: entry[1])
    words = (
        f"{three_digits(last.work_s / DAY)}{part} days of work took {three_digits(last.wall_s / DAY)} days"
    )
    most = f", most of the rest {name.replace('_', ' ')} ({three_digits(lost / DAY)} days)" if lost else ""
    return f"One run of many possible: {words} with {counted(last.interruptions, 'interruption')}{most}."


def _struck_words(before: Moment, after: Moment) -> str:
    """What happened between two moments."""
    lost = {name: after.lost_s[name] - before.lost_s[name] for name in after.lost_s}
    parts = sorted(((seconds, name) for name, seconds in lost.items() if seconds > 1), reverse=True)
    times = counted(after.interruptions - before.interruptions, "interruption")
    return f"{times} before day {after.wall_s / DAY:.1f}<br>" + "<br>".join(
        f"{name.replace('_', ' ')} {format_seconds(seconds)}" for seconds, name in parts
    )


def _finish_words(finish: Finish) -> str:
    """What a number of GPUs comes to."""
    days = f"{three_digits(finish.days.p10)} to {three_digits(finish.days.p90)} days"
    money = "" if finish.usd is None else f"<br>{format_sum(finish.usd.p10)} to {format_sum(finish.usd.p90)}"
    useful = f"{format_percent(finish.useful_share)} useful"
    return f"{finish.num_gpus:,} GPUs, {finish.layout}<br>{days}{money}<br>{useful}"


def _frontier_reading(finishes: Sequence[Finish], deadline_s: float | None) -> str:
    """Say which number is fastest, which is cheapest, and what keeps the deadline."""
    priced = [(finish.usd.p50, finish) for finish in finishes if finish.usd is not None]
    if not priced:
        return "No price is known for this GPU."
    fast = min((finish for _, finish in priced), key=lambda finish: finish.days.p50)
    usd, cheap = min(priced, key=lambda entry: entry[0])
    fast_usd = next(money for money, finish in priced if finish is fast)
    text = (
        f"Soonest: {fast.num_gpus:,} GPUs in {three_digits(fast.days.p50)} days for {format_sum(fast_usd)}; "
        f"cheapest: {cheap.num_gpus:,} GPUs in {three_digits(cheap.days.p50)} days for {format_sum(usd)}"
    )
    if deadline_s is None:
        return f"{text}."
    kept = [finish.num_gpus for _, finish in priced if finish.days.p90 <= deadline_s / DAY]
    words = f"nine times in ten with {min(kept):,} GPUs" if kept else "by none of these nine times in ten"
    return f"{text}; {three_digits(deadline_s / DAY)} days are kept {words}."
