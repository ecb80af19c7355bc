"""How it is told what the latency limits of a serving question cost."""

from __future__ import annotations

from app.quantities import format_usd
from app.reports.answer import Table
from planner.serving.plan import ServingPlan
from planner.serving.trade_offs import LimitRelaxed
from topology.base.units import format_seconds, three_digits

_NAMES = {"ttft": "time to first token", "tpot": "time per output token", "end_to_end": "end to end"}


def sensitivity_table(plan: ServingPlan) -> Table:
    """The limits whose step changes the answer, and by how much; the others in a note."""
    tried = plan.sensitivity or ()
    rows = tuple(
        (_instead(one), f"{one.num_gpus} × {one.gpu}", f"{one.label} in {one.weights}", _saves(one))
        for one in tried
        if one.changes
    )
    same = [_instead(one) for one in tried if not one.changes]
    return Table(
        title="Sensitivity to limits",
        columns=("one limit relaxed", "GPUs", "layout", "gains"),
        rows=rows,
        align="lrll",
        note=f"the same answer with {', or '.join(same)}" if same else "",
    )


def _instead(one: LimitRelaxed) -> str:
    """The step in words, such as p95 instead of p99."""
    if one.limit == "percentile":
        return f"p{one.relaxed:g} instead of p{one.asked:g}"
    return f"{_NAMES[one.limit]} {format_seconds(one.relaxed)} instead of {format_seconds(one.asked)}"


def _saves(one: LimitRelaxed) -> str:
    """What a step saves, or serves more; a fleet that is cheaper may have more GPUs."""
    if one.more_requests_per_s:
        return f"serves {three_digits(one.more_requests_per_s)} requests/s more"
    parts = []
    if dollars := one.saved_usd_per_hour:
        parts.append(f"{format_usd(abs(dollars))} an hour{' more' if dollars < 0 else ''}")
    if gpus := one.saved_gpus:
        count = f"{abs(gpus)} GPU{'s' * (abs(gpus) > 1)}"
        parts.append(f"{count}{' more' if gpus < 0 else ''}")
    return ", ".join(parts)
