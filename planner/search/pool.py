"""The best plan of a pool whose nodes differ: some of its kinds of node may be left idle.

Every choice of kinds is a cluster of its own. All its nodes are planned for as its slowest and smallest, and
its pipelines whose stages run on unlike kinds are searched beside that, each kind as what it is. The best of
all is the answer, and it is proven when nothing in any of them can beat it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from costmodel.kernels.tables import Calibration
from planner.bounds.objective import Goal, goal_of
from planner.plan import Optimality, Plan, PlanRequest, Pool, PoolPart
from planner.search.unlike import UnlikeSearch, search_unlike
from planner.search.unlike_plan import plan_unlike
from planner.stages.integer_program import ROUNDED_AWAY
from topology.base.units import format_seconds
from topology.pools import kinds_of, left_out, parts_of, stages_on, words_of
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
    found, goal = best_part(replace(request, top=1), search), goal_of(request)
    score = _score(goal, found) if isinstance(found, Plan) else math.inf
    started, best = time.perf_counter(), None
    every: list[UnlikeSearch] = []
    for part in parts_of(request.cluster):
        if len(kinds_of(part)) == 1:
            continue
        done = search_unlike(part_request(request, part, goal), cal, score)
        if done is not None:
            every.append(done)
            best, score = (done, done.score) if done.best is not None else (best, score)
    seconds = time.perf_counter() - started
    if best is None:
        if isinstance(found, Plan):
            return _with_unlike(_with_alternatives(found, search, request.top), every, goal, seconds)
        return found
    unlike = plan_unlike(best)
    if isinstance(found, Plan) and found.pool is not None:
        here = _part(found.request.cluster, found)
        pool = replace(found.pool, others=(here, *found.pool.others))
        optimality = _of_all(unlike, [found], goal)
        spent = found.search_time_s
    else:
        others = tuple(_part(part, None) for part in parts_of(request.cluster))
        pool, optimality, spent = Pool(offered=request.cluster, others=others), unlike.optimality, 0.0
    words = pool_words(unlike.request.cluster, pool, unlike.kind_of_stage)
    plan = replace(
        unlike,
        pool=pool,
        optimality=optimality,
        search_time_s=spent,
        assumptions=(*words, *unlike.assumptions),
    )
    return _with_unlike(plan, [done for done in every if done is not best], goal, seconds)


def _with_alternatives(found: Plan, search: Callable[[PlanRequest], Plan | Refusal], top: int) -> Plan:
    """The plan of a part with the plans beside it, which only the part that is the answer need have."""
    again = search(replace(found.request, top=top)) if top > 1 else found
    if not isinstance(again, Plan):
        return found
    return replace(
        again,
        optimality=found.optimality,
        assumptions=found.assumptions,
        pool=found.pool,
        search_time_s=found.search_time_s + again.search_time_s,
    )


def best_part(request: PlanRequest, search: Callable[[PlanRequest], Plan | Refusal]) -> Plan | Refusal:
    """The best of the plans of every choice of kinds; what stands in the way of all nodes if there is none.

    Args:
        request: what is asked, of a pool whose nodes differ.
        search: answers a request all of whose GPUs are planned for alike.
    """
    goal = goal_of(request)
    parts = list(parts_of(request.cluster))
    answers = [search(part_request(request, part, goal)) for part in parts]
    plans = [answer for answer in answers if isinstance(answer, Plan)]
    if not plans:
        return answers[0]
    best = min(plans, key=lambda plan: (_score(goal, plan), plan.request.cluster.num_gpus))
    found = zip(parts, answers, strict=True)
    others = tuple(_part(part, answer) for part, answer in found if answer is not best)
    pool = Pool(offered=request.cluster, others=others)
    one_layout = best.optimality.enumerated == 1
    return replace(
        best,
        optimality=best.optimality if one_layout else _of_all(best, plans, goal),
        search_time_s=sum(plan.search_time_s for plan in plans),
        assumptions=(*pool_words(best.request.cluster, pool), *best.assumptions),
        pool=pool,
    )


def part_request(request: PlanRequest, part: ClusterSpec, goal: Goal) -> PlanRequest:
    """The same question of a part of the pool.

    An hour of its GPUs pays for the idle ones too, unless the objective says how many to rent.
    """
    price, offered = request.cluster.usd_per_gpu_hour, request.cluster.num_gpus
    if price is not None and part.num_gpus < offered and not goal.rents_what_it_uses:
        source = f"{request.cluster.price_source or 'the price of the pool'}, idle nodes paid for"
        part = replace(part, usd_per_gpu_hour=price * offered / part.num_gpus, price_source=source)
    return replace(request, cluster=part)


def pool_words(used: ClusterSpec, pool: Pool, kind_of_stage: tuple[int, ...] = ()) -> tuple[str, ...]:
    """What is used of a pool, what is left idle and what using it would take, one sentence each."""
    idle = left_out(pool.offered, used)
    if kind_of_stage:
        stages = ", ".join(stages_on(used, kind_of_stage))
        left = f"; {words_of(idle)} left idle" if idle else ""
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
    return (f"nodes differ: {words_of(used.nodes)} are used, {words_of(idle)} left idle; {cost}",)


def _part(part: ClusterSpec, answer: object) -> PoolPart:
    """What was found on a part of the pool."""
    step_s = answer.estimate.step_time_s if isinstance(answer, Plan) else None
    return PoolPart(nodes=words_of(part.nodes), num_gpus=part.num_gpus, step_time_s=step_s)


def _score(goal: Goal, plan: Plan) -> float:
    """Score of a plan; under ``memory`` that of the fastest, in whose band it is."""
    step_s = plan.optimality.bound_s if goal.objective == "memory" else plan.estimate.step_time_s
    return float(goal.score(plan.layout.num_gpus, step_s))


def _with_unlike(plan: Plan, every: Sequence[UnlikeSearch], goal: Goal, seconds: float) -> Plan:
    """The plan, with what searches of unlike stages looked at and could not rule out in its certificate."""
    own, gpus, step_s = plan.optimality, plan.layout.num_gpus, plan.estimate.step_time_s
    if own.enumerated == 1:
        return plan
    pruned, floors, bound, solved = Counter(own.pruned), dict(own.floors_s), own.bound_s, own.solved
    for done in every:
        solved += done.solved
        pruned.update({name: count for name, count in done.dismissed.counts.items() if count})
        bound = min(bound, float(goal.cutoff_s(gpus, done.bound)))
        for name, least in done.dismissed.floors.items():
            there = float(goal.cutoff_s(gpus, least))
            if math.isfinite(there):
                floors[name] = min(floors.get(name, math.inf), there)
    gap = max(0.0, 1 - bound / step_s) if own.bound_bytes is None else own.gap
    proven = own.status == "proven" and gap <= ROUNDED_AWAY
    certificate = replace(
        own,
        status="proven" if proven else "best-found",
        bound_s=bound,
        gap=gap,
        enumerated=sum(pruned.values()) + solved,
        pruned=dict(sorted(pruned.items())),
        solved=solved,
        floors_s=floors,
    )
    return replace(plan, optimality=certificate, search_time_s=plan.search_time_s + seconds)


def _of_all(best: Plan, plans: Sequence[Plan], goal: Goal) -> Optimality:
    """The certificate of the best of several plans: what no layout of any part can beat."""
    gpus, own = best.layout.num_gpus, best.optimality
    bound, floors, pruned, solved = math.inf, dict(own.floors_s), Counter(own.pruned), own.solved
    for plan in plans:
        c = plan.optimality
        least = float(goal.score(plan.layout.num_gpus, c.bound_s))
        bound = min(bound, float(goal.cutoff_s(gpus, least)))
        if plan is best:
            continue
        pruned.update(c.pruned)
        solved += c.solved
        for name, seconds in c.floors_s.items():
            there = float(goal.cutoff_s(gpus, float(goal.score(plan.layout.num_gpus, seconds))))
            floors[name] = min(floors.get(name, math.inf), there)
    bound = min(bound, best.estimate.step_time_s)
    gap = max(0.0, 1 - bound / best.estimate.step_time_s) if own.bound_bytes is None else own.gap
    proven = own.status == "proven" and gap <= ROUNDED_AWAY
    return replace(
        own,
        status="proven" if proven else "best-found",
        bound_s=bound,
        gap=gap,
        enumerated=sum(pruned.values()) + solved,
        pruned=dict(sorted(pruned.items())),
        solved=solved,
        floors_s=floors,
    )
