"""The planner's one verb: `search(request)` gives the best plan, or says why there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.pipeline.simulate import simulated_step_s
from costmodel.training.bands import tie_ratio
from planner.campaign.rental import paid_gpus_of
from planner.placement.cost import placement_words
from planner.placement.nodes import place_on_nodes
from planner.plan import Optimality, Plan, PlanRequest
from planner.search.alternatives import alternatives
from planner.search.best_first import explore
from planner.search.candidates import Choice, estimate_of, layers_of_stage
from planner.search.infeasible import Infeasible, explain_infeasible
from planner.search.least_memory import emptiest
from planner.search.offloaded import best_of_shares, with_offload_notes
from planner.search.origin import origin_of
from planner.search.pools.islands import with_islands
from planner.search.pools.pool import best_of_pool
from planner.search.state import Progress, Search
from planner.search.tight import tight_request, with_tight_notes
from planner.stages.cpsat import STOPPED_BY_CLOCK
from planner.stages.integer_program import ROUNDED_AWAY
from topology.builders import build
from topology.fabric.hierarchy import Hierarchy
from topology.pools.kinds import kinds_of

PROVEN_GAP = ROUNDED_AWAY
"""Gap up to which a plan is optimal: seconds are rounded to integers in `planner.stages.integer_program`."""


def search(
    request: PlanRequest,
    cal: Calibration | None = None,
    *,
    progress: Progress | None = None,
    or_tight: bool = True,
) -> Plan | Infeasible:
    """Find the best plan for a request, with a certificate, or say why there is none.

    Where nodes differ, some kinds may be left idle and stages may run on unlike kinds: every choice of kinds
    is searched. Where no layout fits, the best as lean as the leanest is the answer, if a GPU holds it.

    The clock of `search_time_s` starts when the hierarchy of the cluster is known: deriving it from the graph
    is no part of the search.

    Args:
        request: what is asked.
        cal: calibration tables; the shipped ones by default.
        progress: told in a few words what the search is doing.
        or_tight: also answer with a layout that is tight, where none fits.
    """
    tables = cal or load_calibration()
    started = time.perf_counter()
    answer = _answered(request, tables, progress)
    if isinstance(answer, Plan):
        return answer
    tight = _tight(request, answer, tables, progress) if or_tight else None
    if tight is not None:
        return tight
    infeasible = explain_infeasible(answer.request, answer.done)
    asked = replace(infeasible.request, top=request.top)
    return replace(infeasible, request=asked, search_time_s=time.perf_counter() - started)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NoPlan:
    """A question without a plan, and the search that shows it; why, and what helps, is asked of one alone."""

    request: PlanRequest
    done: Search


def _answered(request: PlanRequest, tables: Calibration, progress: Progress | None) -> Plan | _NoPlan:
    """The best plan among layouts that leave as much memory free as the request asks for."""
    if request.offload_shares:
        return best_of_shares(request, lambda request: _answered(request, tables, progress))
    if len(kinds_of(request.cluster)) > 1:
        answer = best_of_pool(request, lambda part: _search(part, tables, progress), tables)
    else:
        answer = _search(request, tables, progress)
    if isinstance(answer, _NoPlan):
        return answer
    return with_islands(request, answer, lambda part, score: _better(part, tables, progress, score))


def _tight(
    request: PlanRequest, no_plan: _NoPlan, tables: Calibration, progress: Progress | None
) -> Plan | None:
    """The best plan among layouts as lean as the leanest, where none fits."""
    if no_plan.done.contradictions:
        return None
    asked = tight_request(request, no_plan.done)
    answer = None if asked is None else _answered(asked, tables, progress)
    return with_tight_notes(answer, request, no_plan.done) if isinstance(answer, Plan) else None


def _search(request: PlanRequest, tables: Calibration, progress: Progress | None) -> Plan | _NoPlan:
    """Search a cluster whose GPUs are all planned for alike."""
    _derive_hierarchy(request)
    started = time.perf_counter()
    done = explore(request, tables, progress=progress)
    if done.best is not None:
        return _plan(request, done, started)
    return _NoPlan(request=request, done=done)


def _better(
    request: PlanRequest, tables: Calibration, progress: Progress | None, score: float
) -> tuple[Plan | None, Search] | None:
    """The plan of a part that beats a score, if there is one, and its search; None where it has none."""
    _derive_hierarchy(request)
    started = time.perf_counter()
    done = explore(request, tables, progress=progress, score=score)
    if done.contradictions:
        return None
    return (None if done.best is None else _plan(request, done, started)), done


def _derive_hierarchy(request: PlanRequest) -> Hierarchy:
    """Hierarchy of the cluster asked about; `build` keeps the cluster, and the cluster keeps this."""
    return build(request.cluster).hierarchy


def _plan(request: PlanRequest, done: Search, started: float) -> Plan:
    """Write the answer of a search that found something."""
    best, bound_bytes, within_s = _answer(request, done)
    if best is None:
        raise ValueError("a plan is written only when a layout was found")
    rented = paid_gpus_of(request, best.layout)
    full = estimate_of(done.problem, best, paid_gpus=rented)
    others = alternatives(done, best, full, request.top)
    ranks = place_on_nodes(done.problem, best.layout, full)
    placed = placement_words(done.problem, best.layout, ranks, full)
    layers, recomputed = done.problem.model.num_layers, sum(best.split.recompute_of_stage)
    notes = (*pin_notes(done.pins, layers, recomputed), *([STOPPED_BY_CLOCK] if done.by_clock else []))
    idle = done.problem.cluster.num_gpus - best.layout.num_gpus
    plan = Plan(
        request=request,
        layout=best.layout,
        layers_of_stage=layers_of_stage(best),
        recompute_of_stage=best.split.recompute_of_stage,
        mesh=ranks,
        estimate=full,
        alternatives=others,
        optimality=certificate(done, best, bound_bytes, within_s),
        search_time_s=time.perf_counter() - started,
        idle_gpus=idle,
        simulated_s=simulated_step_s(best.costs, best.layout, best.split),
        assumptions=(*full.assumptions, *placed, *notes),
        provenance=full.provenance,
        origin=origin_of(request, done.problem.case.cal),
    )
    return with_offload_notes(plan)


def _answer(request: PlanRequest, done: Search) -> tuple[Choice | None, float | None, float | None]:
    """The plan that the objective asks for.

    Under ``memory`` also the bytes that no such plan can do with, and the longest step of such a plan.
    """
    if request.objective != "memory" or done.best is None:
        return done.best, None, None
    within_s = done.best.step_time_s * tie_ratio()
    return *emptiest(done, within_s), within_s


def certificate(
    done: Search, best: Choice, bound_bytes: float | None = None, within_s: float | None = None
) -> Optimality:
    """What the search proved of a choice: of its score, or of the memory it needs.

    Args:
        done: the search for the least score.
        best: the choice.
        bound_bytes: memory that no plan of the objective ``memory`` can do with.
        within_s: longest step that this objective takes for equally fast.
    """
    bound_s = max(0.0, float(done.goal.cutoff_s(best.layout.num_gpus, done.bound)))
    gap = max(0.0, 1 - bound_s / best.step_time_s)
    if bound_bytes is not None:
        gap = 1 - bound_bytes / best.peak_memory_bytes
    pruned = {name: count for name, count in sorted(done.dismissed.counts.items()) if count}
    gpus, floors = best.layout.num_gpus, sorted(done.dismissed.floors.items())
    floors_s = {name: float(done.goal.cutoff_s(gpus, least)) for name, least in floors}
    return Optimality(
        status="proven" if done.proven and gap <= PROVEN_GAP else "best-found",
        bound_s=bound_s,
        gap=gap,
        enumerated=sum(pruned.values()) + done.solved,
        pruned=pruned,
        solved=done.solved,
        bound_bytes=bound_bytes,
        floors_s={name: seconds for name, seconds in floors_s.items() if math.isfinite(seconds)},
        within_s=within_s,
    )


def pin_notes(pins: Mapping[str, object], layers: int, recomputed: int) -> tuple[str, ...]:
    """What a pinned policy means where it does not read like what it says.

    >>> pin_notes({"recompute": "full"}, 80, 12)
    ('recompute=full recomputes whole layers, as many as memory asks for: 12 of 80',)
    """
    if pins.get("recompute") != "full" or recomputed == layers:
        return ()
    return (f"recompute=full recomputes whole layers, as many as memory asks for: {recomputed} of {layers}",)
