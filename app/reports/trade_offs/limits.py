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
        (
            _instead(relaxed),
            f"{relaxed.num_gpus} × {relaxed.gpu}",
            f"{relaxed.label} in {relaxed.weights}",
            _saves(relaxed),
        )
        for relaxed in tried
        if relaxed.changes
    )
    same = [_instead(relaxed) for relaxed in tried if not relaxed.changes]
    return Table(
        title="Sensitivity to limits and lengths",
        columns=("one thing relaxed", "GPUs", "layout", "gains"),
        rows=rows,
        align="lrll",
        note=f"the same answer with {', or '.join(same)}" if same else "",
    )


def _instead(relaxed: LimitRelaxed) -> str:
    """The step in words, such as p95 instead of p99."""
    if relaxed.limit == "percentile":
        return f"p{relaxed.relaxed:g} instead of p{relaxed.asked:g}"
    if relaxed.limit == "lengths":
        tail = (
            f"prompts of {relaxed.asked:,.0f} tokens at p99" if relaxed.asked > relaxed.relaxed else "a tail"
        )
        return f"requests all alike instead of {tail}"
    now, asked = format_seconds(relaxed.relaxed), format_seconds(relaxed.asked)
    return f"{_NAMES[relaxed.limit]} {now} instead of {asked}"


def _saves(relaxed: LimitRelaxed) -> str:
    """What a step saves, or serves more; a fleet that is cheaper may have more GPUs."""
    if relaxed.more_requests_per_s:
        return f"serves {three_digits(relaxed.more_requests_per_s)} requests/s more"
    parts = []
    if dollars := relaxed.saved_usd_per_hour:
        parts.append(f"{format_usd(abs(dollars))} an hour{' more' if dollars < 0 else ''}")
    if gpus := relaxed.saved_gpus:
        count = f"{abs(gpus)} GPU{'s' * (abs(gpus) > 1)}"
        parts.append(f"{count}{' more' if gpus < 0 else ''}")
    return ", ".join(parts)
