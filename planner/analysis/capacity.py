"""What each kind and number of GPUs makes of a job: time and money of the run, or why there is no plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from costmodel.campaign.record import Campaign, Limit, limit_word
from planner.analysis.what_if import Purchase, bought, purchase_of
from planner.campaign.finish import campaign_or_none
from planner.plan import Plan, PlanRequest
from planner.search.infeasible import Infeasible
from topology.base.errors import InputError
from topology.base.units import DAY

Answerer = Callable[[PlanRequest], Plan | Infeasible]
"""Answers one request."""
NO_LAYOUT, MEMORY, NO_END = "no layout", "memory", "never finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a run has to be finished, in seconds, and what it may cost, in dollars; None where nobody said."""

    deadline_s: float | None = None
    budget_usd: float | None = None

    def chances(self, run: Campaign) -> dict[Limit, float]:
        """Chance, in 0…1, that a run keeps each of the limits, failures included, by its name."""
        result: dict[Limit, float] = {}
        if self.deadline_s is not None:
            result["deadline"] = run.chance_within_s(self.deadline_s)
        within = None if self.budget_usd is None else run.chance_within_usd(self.budget_usd)
        return result if within is None else {**result, "budget": within}

    def kept_by(self, run: Campaign | None) -> bool:
        """Whether a run keeps every limit with a chance of `costmodel.campaign.record.KEPT` or more."""
        return run is not None and all(limit_word(chance) == "kept" for chance in self.chances(run).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kind and number of GPUs: what the run takes and costs, or the rule that forbids every layout.

    Seconds and dollars are the median of the run, failures included; of a step where no tokens are asked.
    """

    gpu: str
    num_gpus: int
    seconds: float | None = None
    usd: float | None = None
    run: Campaign | None = None
    offer: Purchase | None = None
    why: str = ""


def capacity(
    request: PlanRequest, gpus: Sequence[str], counts: Sequence[int], answer: Answerer
) -> Iterator[Cell]:
    """Every kind and number, the request's own kind first.

    Args:
        request: The question.
        gpus: Kinds of GPU beside its own.
        counts: Numbers of GPUs.
        answer: Answers one request.
    """
    present = request.cluster.nodes[0].gpu
    for gpu in dict.fromkeys((present, *gpus)):
        for count in counts:
            yield _cell(request, gpu, count, answer)


def _cell(request: PlanRequest, gpu: str, count: int, answer: Answerer) -> Cell:
    """One kind and number."""
    try:
        cell = answer(bought(request, gpu, count))
    except InputError as error:
        return Cell(gpu=gpu, num_gpus=count, why="no price" if "price" in error.what else NO_LAYOUT)
    if isinstance(cell, Infeasible):
        rules = [violation.rule for violation in cell.violations]
        return Cell(gpu=gpu, num_gpus=count, why=MEMORY if MEMORY in rules else NO_LAYOUT)
    run = campaign_or_none(cell)
    if run is None and request.job.total_tokens is not None:
        return Cell(gpu=gpu, num_gpus=count, why=NO_END)
    estimate = cell.estimate
    seconds, usd = estimate.step_time_s, estimate.usd_per_step
    if run is not None:
        seconds, usd = run.days.p50 * DAY, None if run.usd is None else run.usd.p50
    return Cell(gpu=gpu, num_gpus=count, seconds=seconds, usd=usd, run=run, offer=purchase_of(cell, gpu, run))
