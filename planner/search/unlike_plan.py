"""What a search of stages on unlike kinds of node found, as a plan; and where its ranks have to be."""

from __future__ import annotations

import math

from costmodel.layout import ParallelLayout
from costmodel.pipeline.simulate import simulated_step_s
from costmodel.training.estimate import Question
from costmodel.training.unlike import estimate_unlike
from planner.plan import Optimality, Plan
from planner.problem import Setting
from planner.search.origin import origin_of
from planner.search.unlike import UnlikeChoice, UnlikeSearch
from planner.stages.integer_program import ROUNDED_AWAY
from topology.fabric.mesh import Mesh, mesh
from topology.pools.kinds import gpus_of_stages


def plan_unlike(done: UnlikeSearch) -> Plan:
    """Write the answer of a search that found something; its certificate covers this search alone."""
    best = done.best
    if best is None:
        raise ValueError("a plan is written only when a layout was found")
    x, s = best.layout, done.setting
    paid = x.num_gpus if done.goal.rents_what_it_uses else s.cluster.num_gpus
    question = Question(
        model=s.model, cluster=s.cluster, job=s.job, stack=s.stack, layout=x, cal=done.cal, paid_gpus=paid
    )
    full, _ = estimate_unlike(question, done.kinds.each, best.split, best.kind_of_stage)
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
        origin=origin_of(done.request, done.cal),
        kind_of_stage=best.kind_of_stage,
    )


def mesh_unlike(setting: Setting, layout: ParallelLayout, kind_of_stage: tuple[int, ...]) -> Mesh | None:
    """Ranks of each stage on the next GPUs of its kind; None where a kind has too few."""
    gpus = gpus_of_stages(setting.cluster.spec, kind_of_stage, layout.stage_ranks)
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
