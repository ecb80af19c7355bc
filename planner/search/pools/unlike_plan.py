"""What a search of stages on unlike kinds of node found, as a plan; and where its ranks have to be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.pipeline.simulate import simulated_step_s
from costmodel.training.unlike import estimate_unlike
from planner.bounds.objective import goal_of_plan
from planner.campaign.rental import paid_gpus_of
from planner.plan import Alternative, Optimality, Plan, Problem
from planner.search.alternatives import SLOWEST, changed_words, fields_as_they_act, tied
from planner.search.candidates import SHAPE, shape_of
from planner.search.origin import origin_of
from planner.search.pools.unlike import UnlikeChoice, UnlikeSearch, best_of
from planner.stages.integer_program import ROUNDED_AWAY
from topology.fabric.mesh import Mesh, mesh
from topology.pools.kinds import gpus_of_stages, kind_places, nodes_in_words, nodes_left_out, stages_on
from topology.spec import ClusterSpec

MOST_SHAPES = 8
"""Combinations of degrees, by their bounds, of which the best plan is looked for beside the answer."""
COMBINATIONS_OF_SHAPE = 4
"""Combinations looked at for each of them, by their bounds."""


def plan_unlike(done: UnlikeSearch) -> Plan:
    """Write the answer of a search that found something; its certificate covers this search alone."""
    best = done.best
    if best is None:
        raise ValueError("a plan is written only when a layout was found")
    x, s = best.layout, done.problem
    paid = paid_gpus_of(done.request, x, best.kind_of_stage)
    full, _ = estimate_unlike(s.case, x, done.each, best.split, best.kind_of_stage, paid_gpus=paid)
    ranks = mesh_unlike(s, x, best.kind_of_stage)
    if ranks is None:
        raise ValueError("stages are arranged within the nodes of their kinds")
    return Plan(
        request=done.request,
        layout=x,
        layers_of_stage=tuple(sum(row) for row in best.split.layers_of_stage),
        recompute_of_stage=best.split.recompute_of_stage,
        mesh=ranks,
        estimate=full,
        alternatives=(),
        optimality=_certificate(done, best),
        search_time_s=0.0,
        idle_gpus=s.cluster.num_gpus - x.num_gpus,
        simulated_s=simulated_step_s(best.costs, x, best.split),
        assumptions=full.assumptions,
        provenance=full.provenance,
        origin=origin_of(done.request, s.case.cal),
        kind_of_stage=best.kind_of_stage,
    )


def mesh_unlike(problem: Problem, layout: ParallelLayout, kind_of_stage: tuple[int, ...]) -> Mesh | None:
    """Ranks of each stage on the next GPUs of its kind; None where a kind has too few."""
    gpus = gpus_of_stages(problem.cluster.spec, kind_of_stage, layout.stage_ranks)
    axes = [(axis, int(getattr(layout, axis))) for axis in layout.axis_order]
    return None if gpus is None else mesh(axes, gpus)


def _certificate(done: UnlikeSearch, best: UnlikeChoice) -> Optimality:
    """What was proven of a choice among the layouts whose stages run on these kinds."""
    G = best.layout.num_gpus
    bound_s = min(best.step_time_s, float(done.goal.cutoff_s(G, done.bound, best.paid)))
    pruned = {name: count for name, count in sorted(done.dismissed.counts.items()) if count}
    floors = {
        name: float(done.goal.cutoff_s(G, least, best.paid)) for name, least in done.dismissed.floors.items()
    }
    return Optimality(
        status="proven" if bound_s >= best.step_time_s * (1 - ROUNDED_AWAY) else "best-found",
        bound_s=bound_s,
        gap=max(0.0, 1 - bound_s / best.step_time_s),
        enumerated=sum(pruned.values()) + done.solved,
        pruned=pruned,
        solved=done.solved,
        floors_s={name: least for name, least in floors.items() if math.isfinite(least)},
    )


def plans_beside(done: UnlikeSearch, best: Plan) -> Iterator[Plan]:
    """The best plan on these kinds of each of the most promising degrees that are not the answer's.

    Combinations are looked at in the order of their bounds, a few of each of a few degrees.
    """
    if done.seen is None:
        return
    table, bounds = done.seen
    limit = SLOWEST * plan_score(best)
    order = np.argsort(bounds, kind="stable")
    order = order[bounds[order] < limit]
    chosen: dict[tuple[int, ...], list[int]] = {}
    for row, shape in zip(order, _shapes(table.take(order)), strict=True):
        if shape != shape_of(best.layout) and (shape in chosen or len(chosen) < MOST_SHAPES):
            chosen.setdefault(shape, []).append(int(row))
    for rows in chosen.values():
        unlike_search = best_of(done, table.take(np.array(rows[:COMBINATIONS_OF_SHAPE])), limit)
        if unlike_search.best is not None:
            yield plan_unlike(unlike_search)


def _shapes(table: LayoutTable) -> list[tuple[int, ...]]:
    """Degrees by which plans are told apart, of each layout."""
    return list(map(tuple, np.stack([getattr(table, name) for name in SHAPE], axis=1).tolist()))


def plan_score(plan: Plan) -> float:
    """Score of a plan; under ``memory`` that of the fastest, in whose band it is."""
    memory = plan.request.objective == "memory"
    step_s = plan.optimality.bound_s if memory else plan.estimate.step_time_s
    return float(goal_of_plan(plan).score(plan.layout.num_gpus, step_s))


def with_alternatives(best: Plan, parts: Sequence[Plan], others: Sequence[Plan]) -> Plan:
    """The plan with others beside it, best first; the best part alone is one of them, whatever it takes.

    Args:
        best: the answer, with its pool.
        parts: the best plan of every choice of kinds, all of its GPUs planned for alike.
        others: plans with stages on unlike kinds, of other degrees.
    """
    count = best.request.top - 1
    if count < 1:
        return best
    plans = sorted((*parts, *others), key=lambda plan: (plan_score(plan), plan.layout.num_gpus))
    shown = plans[:count]
    if parts and not any(plan is part for plan in shown for part in parts):
        shown = [*shown[: count - 1], min(parts, key=plan_score)]
    return replace(best, alternatives=tuple(alternative_of(best, plan) for plan in shown))


def alternative_of(best: Plan, other: Plan) -> Alternative:
    """Another plan of the pool relative to the best one: where it runs, then what it does differently."""
    now, before = other.estimate, best.estimate
    used = other.request.cluster
    offered = best.pool.offered if best.pool is not None else used
    elsewhere = kind_places(used, offered) != kind_places(best.request.cluster, offered)
    spared = before.peak_memory_bytes - now.peak_memory_bytes
    return Alternative(
        layout=other.layout,
        layers_of_stage=other.layers_of_stage,
        recompute_of_stage=other.recompute_of_stage,
        step_time_s=now.step_time_s,
        lower_s=now.lower_s,
        upper_s=now.upper_s,
        peak_memory_bytes=now.peak_memory_bytes,
        out_of_memory_chance=now.out_of_memory_chance,
        slower_by=now.step_time_s / before.step_time_s - 1,
        tied=tied(now, before),
        difference="; ".join([_where(other, offered), changed_words(_fields(best), _fields(other), spared)]),
        simulated_s=other.simulated_s,
        kinds=kind_places(used, offered) if elsewhere else (),
        kind_of_stage=other.kind_of_stage,
    )


def _fields(plan: Plan) -> dict[str, int | str | None]:
    return fields_as_they_act(plan.layout, sum(plan.layers_of_stage), sum(plan.recompute_of_stage))


def _where(plan: Plan, offered: ClusterSpec) -> str:
    """On which nodes of a pool a plan runs, and which are idle."""
    used = plan.request.cluster
    idle = nodes_left_out(offered, used)
    left = f", {nodes_in_words(idle)} left idle" if idle else ""
    if plan.kind_of_stage:
        return ", ".join(stages_on(used, plan.kind_of_stage)) + left
    alike = ", each planned for as the slowest and smallest" if len(kind_places(used, offered)) > 1 else ""
    return f"all on {nodes_in_words(used.nodes)}{alike}{left}"
