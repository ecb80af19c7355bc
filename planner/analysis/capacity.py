"""What each kind and number of GPUs makes of a job: time and money of the run, or why there is no plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from costmodel.job import TrainingJob
from costmodel.layout import layout_words
from planner.analysis.what_if import Offer, bought
from planner.plan import Plan, PlanRequest
from planner.search.infeasible import Infeasible
from topology.base.errors import InputError
from topology.base.units import BILLION

Answerer = Callable[[PlanRequest], Plan | Infeasible]
"""Answers one request."""
NO_LAYOUT, MEMORY = "no layout", "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a run has to be finished, in seconds, and what it may cost, in dollars; None where nobody said."""

    deadline_s: float | None = None
    budget_usd: float | None = None

    def broken_by(self, seconds: float, usd: float | None) -> tuple[str, ...]:
        """Names of the limits that a run does not keep.

        >>> Limits(deadline_s=10.0, budget_usd=5.0).broken_by(11.0, 5.0)
        ('late',)
        """
        late = self.deadline_s is not None and seconds > self.deadline_s
        dear = self.budget_usd is not None and usd is not None and usd > self.budget_usd
        return ("late",) * late + ("over budget",) * dear


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kind and number of GPUs: what the run takes and costs, or the rule that forbids every layout."""

    gpu: str
    num_gpus: int
    seconds: float | None = None
    usd: float | None = None
    offer: Offer | None = None
    why: str = ""


def steps_of(job: TrainingJob) -> int:
    """Steps of the whole run; one where no tokens are given."""
    return -(-job.total_tokens // job.tokens_per_step) if job.total_tokens else 1


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
    own = request.cluster.nodes[0].gpu
    for gpu in dict.fromkeys((own, *gpus)):
        for count in counts:
            yield _cell(request, gpu, count, answer)


def _cell(request: PlanRequest, gpu: str, count: int, answer: Answerer) -> Cell:
    """One kind and number."""
    try:
        found = answer(bought(request, gpu, count))
    except InputError as error:
        return Cell(gpu=gpu, num_gpus=count, why="no price" if "price" in error.what else NO_LAYOUT)
    if isinstance(found, Infeasible):
        rules = [violation.rule for violation in found.violations]
        return Cell(gpu=gpu, num_gpus=count, why=MEMORY if MEMORY in rules else NO_LAYOUT)
    steps, estimate = steps_of(request.job), found.estimate
    usd = estimate.usd_per_billion_tokens
    return Cell(
        gpu=gpu,
        num_gpus=count,
        seconds=steps * estimate.step_time_s,
        usd=None if usd is None else usd * steps * request.job.tokens_per_step / BILLION,
        offer=None if usd is None else Offer(
            gpu=gpu, num_gpus=count, step_time_s=estimate.step_time_s, usd_per_billion_tokens=usd,
            layout=layout_words(found.layout),
        ),
    )  # fmt: skip
