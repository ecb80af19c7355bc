"""How the frontier of a serving question is told: speed of a user against speed of a GPU."""

from __future__ import annotations

from app.quantities import format_usd
from app.reports.answer import Table
from planner.serving.plan import ServingPlan
from planner.serving.trade_offs import FrontierPoint
from topology.base.units import format_seconds, three_digits


def frontier_table(plan: ServingPlan) -> Table:
    """The replicas that no other beats, the fastest for a user first."""
    at = f"p{plan.request.job.percentile:g}"
    points = plan.frontier or ()
    none = "no replica keeps the limit on the first token" if not points else ""
    return Table(
        title=f"Pareto frontier of {plan.request.gpu}",
        columns=(
            *("replica", "GPUs", "in flight", "tokens a step", "tokens/s/user", "tokens/s/GPU"),
            *(f"TTFT {at}", f"TPOT {at}", "per M output tokens", "limits"),
        ),
        rows=tuple(_row(point) for point in points),
        align="lrrrrrrrrl",
        note=none
        or "output tokens; a user's are 1/median time per output token; dollars without prompts' share",
    )


def _row(point: FrontierPoint) -> tuple[str, ...]:
    """One replica at one load."""
    return (
        point.label,
        str(point.num_gpus),
        str(point.concurrency),
        str(point.token_budget),
        three_digits(point.tokens_per_s_per_user),
        three_digits(point.tokens_per_s_per_gpu),
        format_seconds(point.ttft_s),
        format_seconds(point.tpot_s),
        format_usd(point.usd_per_million_output_tokens),
        "kept" if point.kept else "broken",
    )
