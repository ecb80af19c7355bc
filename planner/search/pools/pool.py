"""The best plan of a pool whose nodes differ: some of its kinds of node may be left idle.

Every choice of kinds is a cluster of its own. All its nodes are planned for as its slowest and smallest, and
its pipelines whose stages run on unlike kinds are searched beside that, each kind as what it is. The best of
all is the answer, and it is proven when nothing in any of them can beat it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from costmodel.kernels.tables import Calibration
from planner.bounds.objective import Goal, goal_of, goal_of_plan
from planner.plan import Alternative, OfferedNodes, Optimality, Plan, PlanRequest, PoolPart
from planner.search.pools.unlike import UnlikeSearch, search_unlike
from planner.search.pools.unlike_plan import plan_score, plan_unlike, plans_beside, with_alternatives
from planner.stages.integer_program import ROUNDED_AWAY
from topology.base.units import format_seconds
from topology.pools.kinds import kinds_of, nodes_in_words, nodes_left_out, part_of, parts_of_pool, stages_on
from topology.pools.rates import each_priced, with_idle
from topology.spec import ClusterSpec

Refusal = TypeVar("Refusal")
"""What stands instead of a plan where there is none."""


def best_of_pool(
    request: PlanRequest, search: Callable[[PlanRequest], Plan | Refusal], cal: Calibration
) -> Plan | Refusal:
    """The best plan of a pool: of its best part, or with stages on unlike kinds of node if that is faster.

    Args:
        request: what is asked, of a pool whose nodes differ.
        search: answers a request all of whose GPUs are planned for alike.
        cal: kernel and collective tables.
    """
    request = replace(request, cluster=each_priced(request.cluster))
    goal, answers = goal_of(request), _answers(replace(request, top=1), search)
    best_answer = _best_answer(request, answers)
    score = plan_score(best_answer) if isinstance(best_answer, Plan) else math.inf
    started, best = time.perf_counter(), None
    every: list[UnlikeSearch] = []
    for part in parts_of_pool(request.cluster):
        if len(kinds_of(part)) == 1:
            continue
        done = search_unlike(part_request(request, part, goal), cal, score)
        if done is not None:
            every.append(done)
            best, score = (done, done.score) if done.best is not None else (best, score)
    seconds = time.perf_counter() - started
    unlike = None if best is None else plan_unlike(best)
    if unlike is None or not goal_of(unlike.request).keeps(unlike.layout, unlike.estimate):
        if isinstance(best_answer, Plan):
            return _with_unlike(_with_alternatives(best_answer, search, request.top), every, seconds)
        return best_answer
    if isinstance(best_answer, Plan) and best_answer.pool is not None:
        here = part_of_pool(best_answer.request.cluster, best_answer)
        pool = replace(best_answer.pool, others=(here, *best_answer.pool.others))
        optimality = _of_all(unlike, [best_answer])
        spent = best_answer.search_time_s
    else:
        others = tuple(part_of_pool(part, None) for part in parts_of_pool(request.cluster))
        pool, optimality, spent = OfferedNodes(offered=request.cluster, others=others), unlike.optimality, 0.0
    words = pool_words(unlike.request.cluster, pool, unlike.kind_of_stage)
    plan = replace(
        unlike,
        pool=pool,
        optimality=optimality,
        search_time_s=spent,
        assumptions=(*words, *unlike.assumptions),
    )
    plan = _with_unlike(plan, [done for done in every if done is not best], seconds)
    return _with_others(plan, [item for _, item in answers if isinstance(item, Plan)], every)


def _with_others(plan: Plan, parts: Sequence[Plan], every: Sequence[UnlikeSearch]) -> Plan:
    """The plan with the plans beside it, if any were asked for: of its parts, and of other degrees."""
    if plan.request.top <= 1 or plan.optimality.enumerated == 1:
        return plan
    started = time.perf_counter()
    others = [other for done in every for other in plans_beside(done, plan)]
    plan = with_alternatives(plan, parts, others)
    return replace(plan, search_time_s=plan.search_time_s + time.perf_counter() - started)


def _with_alternatives(plan: Plan, search: Callable[[PlanRequest], Plan | Refusal], top: int) -> Plan:
    """The plan of a part with the plans beside it, which only the part that is the answer need have."""
    result = search(replace(plan.request, top=top)) if top > 1 else plan
    if not isinstance(result, Plan):
        return plan
    return replace(
        result,
        optimality=plan.optimality,
        assumptions=plan.assumptions,
        pool=plan.pool,
        search_time_s=plan.search_time_s + result.search_time_s,
    )


def best_part(request: PlanRequest, search: Callable[[PlanRequest], Plan | Refusal]) -> Plan | Refusal:
    """The best of the plans of every choice of kinds; what stands in the way of all nodes if there is none.

    Args:
        request: what is asked, of a pool whose nodes differ.
        search: answers a request all of whose GPUs are planned for alike.
    """
    request = replace(request, cluster=each_priced(request.cluster))
    return _best_answer(request, _answers(request, search))


def _answers(
    request: PlanRequest, search: Callable[[PlanRequest], Plan | Refusal]
) -> list[tuple[ClusterSpec, Plan | Refusal]]:
    """Every choice of kinds of a pool with what is found on it."""
    goal = goal_of(request)
    return [(part, search(part_request(request, part, goal))) for part in parts_of_pool(request.cluster)]


def _best_answer(
    request: PlanRequest, answers: Sequence[tuple[ClusterSpec, Plan | Refusal]]
) -> Plan | Refusal:
    """The best of the plans on every choice of kinds, or what stands in the way of all nodes."""
    plans = [answer for _, answer in answers if isinstance(answer, Plan)]
    if not plans:
        return answers[0][1]
    best = min(plans, key=lambda plan: (plan_score(plan), plan.request.cluster.num_gpus))
    others = tuple(part_of_pool(part, answer) for part, answer in answers if answer is not best)
    pool = OfferedNodes(offered=request.cluster, others=others)
    one_layout = best.optimality.enumerated == 1
    return replace(
        best,
        optimality=best.optimality if one_layout else _of_all(best, plans),
        search_time_s=sum(plan.search_time_s for plan in plans),
        assumptions=(*pool_words(best.request.cluster, pool), *best.assumptions),
        pool=pool,
    )


def part_request(request: PlanRequest, part: ClusterSpec, goal: Goal) -> PlanRequest:
    """The same question of a part of the pool; nodes left idle are paid for, unless it says what to rent."""
    return replace(request, cluster=part if goal.rents_what_it_uses else with_idle(part, request.cluster))


def request_beside(plan: Plan, other: Alternative) -> PlanRequest:
    """The question that an alternative answers: of the plan's nodes, or of other kinds of its pool."""
    if not other.kinds or plan.pool is None:
        return plan.request
    kinds = kinds_of(plan.pool.offered)
    part = part_of(plan.pool.offered, tuple(kinds[place] for place in other.kinds))
    asked = replace(plan.request, cluster=plan.pool.offered)
    return part_request(asked, part, goal_of(plan.request))


def plan_beside(plan: Plan, other: Alternative) -> Plan:
    """An alternative as the plan it would be, with the numbers of the plan it stands beside."""
    return replace(
        plan,
        request=request_beside(plan, other),
        layout=other.layout,
        layers_of_stage=other.layers_of_stage,
        recompute_of_stage=other.recompute_of_stage,
        kind_of_stage=other.kind_of_stage,
    )


def pool_words(used: ClusterSpec, pool: OfferedNodes, kind_of_stage: tuple[int, ...] = ()) -> tuple[str, ...]:
    """What is used of a pool, what is left idle and what using it would take, one sentence each."""
    idle = nodes_left_out(pool.offered, used)
    if kind_of_stage:
        stages = ", ".join(stages_on(used, kind_of_stage))
        left = f"; {nodes_in_words(idle)} left idle" if idle else ""
        return (
            f"nodes differ: {stages}, each planned for as what it is{left}",
            "sends between stages take the slowest link of any kind of node",
        )
    if not idle:
        return ("nodes differ: all are used, each planned for as the slowest and smallest",)
    everything = next((part for part in pool.others if part.num_gpus == pool.offered.num_gpus), None)
    cost = "no plan uses every node"
    if everything is not None and everything.step_time_s is not None:
        cost = f"with every node a step takes {format_seconds(everything.step_time_s)}"
    return (f"nodes differ: {nodes_in_words(used.nodes)} are used, {nodes_in_words(idle)} left idle; {cost}",)


def part_of_pool(part: ClusterSpec, answer: object) -> PoolPart:
    """What was found on a part of the pool."""
    step_s = answer.estimate.step_time_s if isinstance(answer, Plan) else None
    return PoolPart(nodes=nodes_in_words(part.nodes), num_gpus=part.num_gpus, step_time_s=step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What one search looked at, in scores: no layout of it beats `bound`, none dismissed its floor."""

    bound: float
    floors: Mapping[str, float]
    pruned: Mapping[str, int]
    solved: int


def _looked(plan: Plan) -> Looked:
    """What the search of a plan says in its certificate."""
    c, goal, G = plan.optimality, goal_of_plan(plan), plan.layout.num_gpus
    floors = {name: float(goal.score(G, seconds)) for name, seconds in c.floors_s.items()}
    return Looked(bound=float(goal.score(G, c.bound_s)), floors=floors, pruned=c.pruned, solved=c.solved)


def _with_unlike(plan: Plan, every: Sequence[UnlikeSearch], seconds: float) -> Plan:
    """The plan, with what searches of unlike stages looked at and could not rule out in its certificate."""
    if plan.optimality.enumerated == 1:
        return plan
    looked = [
        Looked(
            bound=done.bound,
            floors=done.dismissed.floors,
            pruned={name: count for name, count in done.dismissed.counts.items() if count},
            solved=done.solved,
        )
        for done in every
    ]
    return replace(
        plan, optimality=joined_certificate(plan, looked), search_time_s=plan.search_time_s + seconds
    )


def _of_all(best: Plan, plans: Sequence[Plan]) -> Optimality:
    """The certificate of the best of several plans: what no layout of any part can beat."""
    return joined_certificate(best, [_looked(plan) for plan in plans if plan is not best])


def joined_certificate(plan: Plan, others: Sequence[Looked]) -> Optimality:
    """The certificate of a plan with what other searches looked at: their scores as steps of its own GPUs."""
    certificate, goal, G, step_s = (
        plan.optimality,
        goal_of_plan(plan),
        plan.layout.num_gpus,
        plan.estimate.step_time_s,
    )
    pruned, floors, solved = Counter(certificate.pruned), dict(certificate.floors_s), certificate.solved
    bound = min(certificate.bound_s, step_s)
    for other in others:
        solved += other.solved
        pruned.update(other.pruned)
        bound = min(bound, float(goal.cutoff_s(G, other.bound)))
        for name, least in other.floors.items():
            there = float(goal.cutoff_s(G, least))
            if math.isfinite(there):
                floors[name] = min(floors.get(name, math.inf), there)
    gap = max(0.0, 1 - bound / step_s) if certificate.bound_bytes is None else certificate.gap
    proven = certificate.status == "proven" and gap <= ROUNDED_AWAY
    return replace(
        certificate,
        status="proven" if proven else "best-found",
        bound_s=bound,
        gap=gap,
        enumerated=sum(pruned.values()) + solved,
        pruned=dict(sorted(pruned.items())),
        solved=solved,
        floors_s=floors,
    )
