"""The picture of an autoscaled day: load, and the capacity of the replicas that followed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.figures.style import BLUE, ORANGE, figure
from topology.base.units import HOUR

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from planner.serving.autoscale import ScalingRun


def autoscale_figure(run: ScalingRun, capacity_per_s: float) -> go.Figure:
    """Draw requests per second and the capacity of the running replicas over the hours of a day."""
    import plotly.graph_objects as go

    missed = f"{run.missed_share:.1%} of requests waited too long"
    picture = figure(f"Load and capacity over {run.time_s[-1] / HOUR:.0f} hours; {missed}.")
    hours = (run.time_s / HOUR).tolist()
    capacity = (run.replicas * capacity_per_s).tolist()
    picture.add_trace(go.Scatter(x=hours, y=run.arrivals_per_s.tolist(), name="load", line={"color": BLUE}))
    picture.add_trace(
        go.Scatter(
            x=hours, y=capacity, name="capacity", line={"color": ORANGE, "shape": "hv", "dash": "dash"}
        )
    )
    picture.update_xaxes(title="hour")
    picture.update_yaxes(title="requests per second")
    return picture
