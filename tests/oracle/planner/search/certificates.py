"""A search held against the plain enumeration: is what it calls proven the best, and its bound a bound?"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from costmodel.kernels.tables import Calibration
from costmodel.layout import ParallelLayout
from costmodel.pipeline.stage_costs import memory_of_stages, step_time
from costmodel.training.bands import tie_ratio
from costmodel.training.stages import stage_costs
from planner.plan import PlanRequest, Problem
from planner.rules.check import check
from planner.search.best_first import explore
from planner.search.search import certificate
from tests.oracle.planner.search.plain_enumeration import (
    Enumeration,
    emptiest,
    enumerate_all,
    problem_of,
    score_of,
)

RELATIVE = 1e-6
"""Gap up to which a plan is called proven (docs/search.md, "The inner model")."""

EACH_ALONE = 40
"""Spaces up to this many layouts are priced one layout at a time, larger ones as one table."""

CLOSE_ENOUGH = 0.02
"""docs/search.md: the emptiest plan is found to within this share of its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a search says: a plan or none, its score, what it claims that nothing can beat."""

    layout: ParallelLayout | None
    step_time_s: float
    score: float
    bound: float
    proven: bool
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One request judged; `faults` is empty where the search is right."""

    faults: tuple[str, ...]
    answer: Answer
    truth: Enumeration
    gap: float


NOTHING = Answer(layout=None, step_time_s=math.inf, score=math.inf, bound=math.inf, proven=True)


def answer_of(request: PlanRequest, cal: Calibration) -> Answer:
    """Run the search, and check of its plan that it is legal, fits, and takes as long as is said."""
    done = explore(request, cal)
    if isinstance(done, tuple) or done.best is None:
        return NOTHING
    best, s, faults = done.best, problem_of(request), []
    if check(s, best.layout):
        faults.append("illegal")
    costs = stage_costs(s.case, best.layout)
    if float(memory_of_stages(costs, best.split).max()) > s.memory_budget_bytes * (1 + 1e-9):
        faults.append("does not fit")
    if not math.isclose(step_time(costs, best.split), best.step_time_s, rel_tol=1e-9):
        faults.append("takes another time than said")
    return Answer(
        layout=best.layout,
        step_time_s=best.step_time_s,
        score=score_of(request, best.layout.num_gpus, best.step_time_s),
        bound=done.bound,
        proven=certificate(done, best).status == "proven",
        faults=tuple(faults),
    )


def judge(request: PlanRequest, layouts: Sequence[ParallelLayout], cal: Calibration) -> Verdict:
    """Hold the search for the least score against the enumeration of its space."""
    answer = answer_of(request, cal)
    truth = enumerate_all(request, layouts, cal, together=len(layouts) > EACH_ALONE)
    best = math.inf if truth.best is None else truth.best.score
    faults, gap = list(answer.faults), 0.0
    if answer.score > best * (1 + RELATIVE):
        faults.append("worse" if answer.proven else "worse, not proven")
        gap = math.inf if math.isinf(answer.score) else answer.score / best - 1
    if answer.bound > best * (1 + RELATIVE):
        faults.append("bound too high")
    if answer.score < best * (1 - RELATIVE) and answer.score < _best_score_at_all(request, layouts, cal):
        faults.append("better than everything enumerated")
    if not faults and request.objective == "memory" and truth.best is not None:
        faults += _emptiest_faults(request, layouts, truth, cal)
    return Verdict(faults=tuple(faults), answer=answer, truth=truth, gap=gap)


def _best_score_at_all(request: PlanRequest, layouts: Sequence[ParallelLayout], cal: Calibration) -> float:
    """The best score if memory may be filled to the last byte."""
    budget = problem_of(request).memory_budget_bytes
    whole = enumerate_all(request, layouts, cal, together=True, budget_bytes=budget)
    return math.inf if whole.best is None else whole.best.score * (1 - RELATIVE)


def _emptiest_faults(
    request: PlanRequest, layouts: Sequence[ParallelLayout], truth: Enumeration, cal: Calibration
) -> list[str]:
    """Whether the emptiest plan in the error band of the fastest is one, and its bound a bound."""
    from planner.search.least_memory import emptiest as search_emptiest

    done = explore(request, cal)
    if isinstance(done, tuple) or done.best is None or truth.best is None:
        return ["no answer"]
    longest_s = done.best.step_time_s * tie_ratio()
    said, bound_bytes = search_emptiest(done, longest_s)
    least = emptiest(request, layouts, cal, longest_s * (1 - RELATIVE))
    found = []
    if said is None or said.step_time_s > longest_s * (1 + RELATIVE):
        return ["emptiest plan is too slow"]
    if bound_bytes > least * (1 + RELATIVE):
        found.append("bound of memory too high")
    if said.peak_memory_bytes * (1 - CLOSE_ENOUGH) > least * (1 + RELATIVE):
        found.append("not the emptiest")
    return found


def arguments_of(s: Problem, layout: ParallelLayout, pins: Collection[str] = ()) -> tuple[str, ...]:
    """Why `planner.space.unfold` says that this layout need not be looked at; empty where it says nothing.

    A pinned field has its one value, whatever is said of it.
    """
    alone = layout.dp * layout.cp == 1 and not (s.model.is_moe and layout.tp > 1)
    offered = s.stack.supports.zero_stages_with_pipeline if layout.pp > 1 else s.stack.supports.zero_stages
    pipelined = layout.pp > 1 and layout.schedule == "gpipe" and "1f1b" in s.stack.supports.schedules
    said = (
        ("schedule", "gpipe beside 1f1b", pipelined),
        (
            "recompute",
            "none beside full",
            layout.recompute == "none" and "full" in s.stack.supports.recomputes,
        ),
        (
            "recompute",
            "selective under fused attention",
            layout.recompute == "selective" and s.stack.timing.flash_attention,
        ),
        ("zero_stage", "sharding of one replica", alone and layout.zero_stage > min(offered)),
    )
    return tuple(name for field, name, holds in said if holds and field not in pins)


def blame(request: PlanRequest, layouts: Sequence[ParallelLayout], verdict: Verdict, cal: Calibration) -> str:
    """What a worse answer is due to: a layout that the space leaves out, or one that was dismissed in it."""
    s, best = problem_of(request), verdict.truth.best
    inside = [x for x in layouts if not arguments_of(s, x, request.pins)]
    narrow = enumerate_all(request, inside, cal, together=True)
    if narrow.best is not None and verdict.answer.score > narrow.best.score * (1 + RELATIVE):
        return f"dismissed in the space: {narrow.best}"
    if best is not None and verdict.answer.score > best.score * (1 + RELATIVE):
        return f"left out of the space: {', '.join(arguments_of(s, best.layout, request.pins))}"
    return "neither"
