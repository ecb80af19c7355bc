"""What binds each op? Arithmetic intensity against the rate its kernel is estimated to reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.figures.style import BLUE, GREY, ORANGE, figure
from app.quantities import format_percent
from planner.analysis.op_points import OpPoint
from topology.base.units import TERA, format_seconds, three_digits
from topology.hardware.gpu import Gpu

if TYPE_CHECKING:
    import plotly.graph_objects as go


def roofline(ops: Sequence[OpPoint], gpu: Gpu, dtype: str = "bf16") -> go.Figure:
    """Draw the roof of a GPU and every op under it; the size of a mark is its share of the time."""
    import plotly.graph_objects as go

    peak, rate = gpu.peak(dtype), gpu.memory_bandwidth_bytes_per_s
    ridge = peak / rate
    drawn = [op for op in ops if op.flop > 0 and op.moved_bytes > 0 and op.seconds > 0]
    total_s = sum(op.total_s for op in drawn) or 1.0
    edges = [op.flop / op.moved_bytes for op in drawn] or [ridge]
    roof = [min(*edges, ridge) / 2, ridge, max(*edges, ridge) * 2]
    picture = figure(
        _reading(drawn, ridge, gpu.name),
        xaxis={"title": "FLOP per byte moved", "type": "log", "showgrid": True, "dtick": 1},
        yaxis={"title": "TFLOP/s", "type": "log", "dtick": 1},
    )
    picture.add_trace(
        go.Scatter(
            x=roof,
            y=[min(peak, x * rate) / TERA for x in roof],
            mode="lines",
            name=f"roof of {gpu.name}",
            line={"color": GREY, "width": 2},
            hoverinfo="skip",
        )
    )
    for name, colour, symbol in (("memory-bound", ORANGE, "square"), ("compute-bound", BLUE, "circle")):
        mine = [op for op in drawn if bound_of(op, gpu, dtype) == name]
        if mine:
            picture.add_trace(_marks(mine, name, total_s, color=colour, symbol=symbol))
    return picture


def bound_of(op: OpPoint, gpu: Gpu, dtype: str = "bf16") -> str:
    """Say what binds an op: left of the ridge the memory, right of it the compute units."""
    ridge = gpu.peak(dtype) / gpu.memory_bandwidth_bytes_per_s
    return "memory-bound" if op.flop / op.moved_bytes < ridge else "compute-bound"


def _marks(ops: Sequence[OpPoint], name: str, total_s: float, **marker: str) -> go.Scatter:
    """Ops as marks."""
    import plotly.graph_objects as go

    hover = [_hover(op, total_s) for op in ops]
    return go.Scatter(
        x=[op.flop / op.moved_bytes for op in ops],
        y=[op.flop / op.seconds / TERA for op in ops],
        name=name,
        mode="markers",
        hovertext=hover,
        hoverinfo="text",
        marker={
            **marker,
            "line": {"width": 1, "color": GREY},
            "size": [8 + 40 * (op.total_s / total_s) ** 0.5 for op in ops],
            "opacity": 0.85,
        },
    )


def _hover(op: OpPoint, total_s: float) -> str:
    """What a mark says."""
    rate = f"{three_digits(op.flop / op.seconds / TERA)} TFLOP/s"
    intensity = f"{three_digits(op.flop / op.moved_bytes)} FLOP/byte"
    times = f"{format_seconds(op.seconds)} × {op.calls}" if op.calls > 1 else format_seconds(op.seconds)
    share = f"{times}, {format_percent(op.total_s / total_s)} of the model's forward kernels"
    return f"{op.name}<br>{rate} at {intensity}<br>{share}"


def _reading(ops: Sequence[OpPoint], ridge: float, gpu: str) -> str:
    """Say what share of the time is bound by memory."""
    total_s = sum(op.total_s for op in ops)
    bound_s = sum(op.total_s for op in ops if op.flop / op.moved_bytes < ridge)
    share = format_percent(bound_s / total_s) if total_s else "0 %"
    return (
        f"{share} of the forward kernels' time is in ops below the ridge of {gpu}, {ridge:.0f} FLOP per byte."
    )
