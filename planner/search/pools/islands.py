"""Scale-up domains that no group of ranks fills: equal islands of fewer nodes, where those are better.

A rack of 18 nodes has 72 GPUs, and groups of 64 experts straddle two of them. Islands of 16 of its nodes are
filled; the rest stays idle. So every size of island is searched beside the cluster as it is, with the score
that stands as the one to beat, and more nodes never give a slower plan than fewer of the same racks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.bounds.objective import goal_of
from planner.plan import OfferedNodes, Plan, PlanRequest
from planner.search.pools.pool import Looked, joined_certificate, part_of_pool, part_request
from planner.search.pools.unlike_plan import plan_score
from planner.search.state import Search
from topology.pools.kinds import island_parts, nodes_in_words, nodes_left_out
from topology.pools.rates import each_priced
from topology.spec import ClusterSpec

Better = Callable[[PlanRequest, float], tuple[Plan | None, Search] | None]
"""Searches a part: the plan that beats a score, if there is one, and the search; None if none can be."""


def with_islands(request: PlanRequest, plan: Plan, better: Better) -> Plan:
    """The plan, or a better one on equal islands of fewer nodes.

    Args:
        request: what is asked.
        plan: the best on the cluster as it is.
        better: searches a part.
    """
    if request.objective == "memory":
        return plan
    offered, goal = each_priced(request.cluster), goal_of(request)
    asked, best, looked = replace(request, cluster=offered), plan, list[Looked]()
    for part in _suited(offered, request, plan):
        pair = better(part_request(asked, part, goal), plan_score(best))
        if pair is None:
            continue
        other, done = pair
        if other is None:
            looked.append(_looked(done))
            continue
        looked.append(_of_plan(best))
        best = _of_pool(other, best, offered)
    if not looked:
        return plan
    return replace(best, optimality=joined_certificate(best, looked), search_time_s=best.search_time_s)


def _suited(offered: ClusterSpec, request: PlanRequest, plan: Plan) -> Iterator[ClusterSpec]:
    """Islands of sizes that groups of ranks can fill: their odd factors are those of what is split."""
    model, job = request.model, request.job
    split = (
        job.global_batch_size * model.num_attention_heads * max(1, model.num_experts) * job.sequence_length
    )
    used = {(node.count, node.nodes_per_domain) for node in plan.request.cluster.nodes}
    for part in island_parts(offered):
        (node,) = part.nodes
        odd = node.nodes_per_domain * node.gpus_per_node
        while odd % 2 == 0:
            odd //= 2
        whole = any(entry.nodes_per_domain == node.nodes_per_domain for entry in offered.nodes)
        if (split % odd == 0 or whole) and {(node.count, node.nodes_per_domain)} != used:
            yield part


def _looked(done: Search) -> Looked:
    """What a search of a part looked at that found nothing better."""
    pruned = {name: count for name, count in done.dismissed.counts.items() if count}
    bound = min(done.bound, done.score)
    return Looked(bound=bound, floors=done.dismissed.floors, pruned=pruned, solved=done.solved)


def _of_plan(plan: Plan) -> Looked:
    """What the search of a plan that was beaten looked at."""
    c, goal, gpus = plan.optimality, goal_of(plan.request), plan.layout.num_gpus
    floors = {name: float(goal.score(gpus, seconds)) for name, seconds in c.floors_s.items()}
    bound = float(goal.score(gpus, c.bound_s))
    return Looked(bound=bound, floors=floors, pruned=c.pruned, solved=c.solved)


def _of_pool(plan: Plan, beaten: Plan, offered: ClusterSpec) -> Plan:
    """A plan of islands as one of the cluster that they are of."""
    before = beaten.pool.others if beaten.pool is not None else ()
    pool = OfferedNodes(offered=offered, others=(part_of_pool(beaten.request.cluster, beaten), *before))
    (node,) = plan.request.cluster.nodes
    idle = nodes_in_words(nodes_left_out(offered, plan.request.cluster))
    number, size = node.count // node.nodes_per_domain, node.nodes_per_domain
    words = (
        f"scale-up domains are used as {number} of {size} nodes, which groups of ranks fill; {idle} left idle"
    )
    return replace(
        plan,
        pool=pool,
        assumptions=(words, *plan.assumptions),
        search_time_s=plan.search_time_s + beaten.search_time_s,
    )
