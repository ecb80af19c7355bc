"""The fleets that a serving question compares: one contender for each GPU kind, precision and mode.

All contenders of a GPU kind and precision share one board, and each is followed to its own certificate, so
that a line of the comparison says as much as an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.kernels.tables import Calibration
from costmodel.serving.simulation.load import Load
from planner.serving.answer import plan_of_fleet
from planner.serving.board import Board, has_fleet
from planner.serving.infeasible import infeasible_fleet
from planner.serving.plan import (
    FleetSummary,
    Percentiles,
    ServingInfeasible,
    ServingPlan,
    ServingRequest,
)
from planner.serving.search import CertifiedFleet, best_run, is_closed
from topology.base.units import MEGA
from topology.fabric.hierarchy import Hierarchy

Worth = tuple[float, ...]
"""What is minimised among fleets: dollars, GPUs, or tokens per GPU negated; then the others of these."""


@dataclass(slots=True, kw_only=True)
class Contender:
    """One mode of a GPU kind and precision: its options, and the best fleet found of them.

    `whole` is the request with all modes of the question. One that is not `proposed` is shown beside the
    answer and is not the answer.
    """

    request: ServingRequest
    whole: ServingRequest
    hierarchy: Hierarchy
    board: Board
    proposed: bool = True
    best: CertifiedFleet | None = None
    plan: ServingPlan | None = None

    def search(self, cal: Calibration, trace: Load | None) -> None:
        """Find its best fleet."""
        request = self.request
        self.best = best_run(request, self.board, trace)
        if self.best is not None:
            run, optimality = self.best
            self.plan = plan_of_fleet(
                cal,
                request,
                self.hierarchy,
                run,
                optimality=optimality,
                runners_up=(),
                search_time_s=0.0,
            )

    @property
    def why_not(self) -> str:
        """Why it has no fleet."""
        size = self.request.num_gpus or f"up to {self.board.most_gpus}"
        if has_fleet(self.board, self.request.modes):
            return f"no fleet of {size} GPUs keeps the limits"
        missed: ServingInfeasible = infeasible_fleet(self.request, self.hierarchy, self.board.rejected)
        return missed.what

    def summary(self) -> FleetSummary:
        """One line on its fleet."""
        mode = self.request.modes[0]
        if self.plan is None:
            return FleetSummary(
                gpu=self.request.gpu,
                weights=self.request.weights[0],
                label="none",
                num_gpus=0,
                usd_per_hour=None,
                usd_per_million_output_tokens=None,
                why_not=self.why_not,
                mode=mode,
                proposed=self.proposed,
            )
        return plan_summary(self.plan, proposed=self.proposed)


def worth_of_plan(plan: ServingPlan) -> Worth:
    """What is minimised, of a plan."""
    dollars = plan.estimate.usd_per_hour if plan.estimate.usd_per_hour is not None else float("inf")
    gpus = plan.request.num_gpus or plan.num_gpus
    return worth(plan.request, plan.estimate.request_rate_per_s, gpus, dollars)


def worth(request: ServingRequest, rate_per_s: float, gpus: int, dollars: float) -> Worth:
    """Dollars, GPUs, or requests per GPU negated, as the objective says; of GPUs one has the last."""
    served = request.job.request_rate_per_s or rate_per_s
    if request.objective == "tokens-per-gpu" or request.num_gpus is not None:
        return (-served / gpus, dollars)
    return (float(gpus), dollars) if request.objective == "gpus" else (dollars, float(gpus))


def plan_summary(plan: ServingPlan, *, proposed: bool = True) -> FleetSummary:
    """One line on a plan."""
    estimate, job = plan.estimate, plan.request.job
    tokens = (job.input_tokens + job.output_tokens) / MEGA
    return FleetSummary(
        gpu=plan.request.gpu,
        weights=plan.weights,
        label=plan.label,
        num_gpus=plan.num_gpus,
        usd_per_hour=estimate.usd_per_hour,
        usd_per_million_output_tokens=estimate.usd_per_million_output_tokens,
        rental=plan.rental,
        mode=plan.mode,
        request_rate_per_s=estimate.request_rate_per_s,
        usd_per_million_tokens=estimate.usd_per_query / tokens if estimate.usd_per_query else None,
        ttft_s=_at(plan, estimate.ttft, "ttft"),
        tpot_s=_at(plan, estimate.tpot, "tpot") if job.output_tokens > 1 else None,
        rows=plan.evidence.rows,
        not_measured=plan.evidence.not_measured,
        chance=plan.chance if estimate.limits else None,
        certainty=plan.certainty,
        least_usd_per_hour=_least_usd(plan),
        proposed=proposed,
    )


def _at(plan: ServingPlan, latency: Percentiles, name: str) -> float | None:
    """A latency at the job's percentile; None where that is one that no limit asked for."""
    if name in plan.estimate.limits:
        return plan.estimate.limits[name].predicted_s
    result = {50.0: latency.p50_s, 90.0: latency.p90_s, 99.0: latency.p99_s}
    return result.get(plan.request.job.percentile)


def _least_usd(plan: ServingPlan) -> float | None:
    """Dollars an hour that no fleet of its kind costs less than; None where none are minimised."""
    request = plan.request
    if request.num_gpus is not None or request.usd_per_gpu_hour is None or is_closed(request):
        return None
    each = request.offer.usd_per_hour if request.offer is not None else request.usd_per_gpu_hour
    return plan.optimality.bound * each


def contenders_of(
    request: ServingRequest, hierarchy: Hierarchy, board: Board, *, proposed: bool
) -> Sequence[Contender]:
    """A contender for each mode; one for all in a closed loop, where pools are not simulated."""
    parts = [request] if is_closed(request) else [replace(request, modes=(mode,)) for mode in request.modes]
    return [
        Contender(request=part, whole=request, hierarchy=hierarchy, board=board, proposed=proposed)
        for part in parts
    ]


def worth_showing(contender: Contender, contenders: Sequence[Contender]) -> bool:
    """Whether a fleet tells anything: one in smaller machines where it is cheaper than in larger."""
    larger = [
        other
        for other in contenders
        if (other.request.gpu, other.request.weights, other.request.modes)
        == (contender.request.gpu, contender.request.weights, contender.request.modes)
        and other.request.machine_gpus > contender.request.machine_gpus
    ]
    if not larger:
        return True
    mine, theirs = _hourly(contender), min(_hourly(other) for other in larger)
    return mine < theirs


def _hourly(contender: Contender) -> float:
    """Dollars an hour of a fleet; without end where there is none."""
    usd_per_hour = None if contender.plan is None else contender.plan.estimate.usd_per_hour
    return float("inf") if usd_per_hour is None else usd_per_hour
