"""The least cost of pools whose kinds of node have prices, judged by every layout, arrangement and split."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from costmodel.kernels.tables import load_calibration
from planner.plan import Plan, PlanRequest, from_json, to_json
from planner.search.pools.unlike import search_unlike
from planner.search.search import search
from planner.search.verify import verify
from tests.counts import tries
from tests.oracle.planner.search.plain_enumeration import every_layout, exact_steps, problem_of, whole_nodes
from tests.oracle.planner.search.test_unlike_stages import cases, every_arrangement
from topology.pools.kinds import parts_of_pool

CAL = load_calibration()
SLACK = 1e-6
"""The documented rounding of seconds."""
PRICES = [(4.0, 1.0), (1.0, 4.0), (2.5, 2.0), (2.0, 9.0)]


def priced_cases() -> Iterator[PlanRequest]:
    """The pools of the oracle of unlike stages, whose kinds cost much or little of each other."""
    r = Random(41)
    for request in cases():
        nodes = zip(request.cluster.nodes, r.choice(PRICES), strict=True)
        priced = tuple(replace(node, usd_per_gpu_hour=dollars) for node, dollars in nodes)
        cluster = replace(request.cluster, nodes=priced)
        yield replace(request, cluster=cluster, objective="cost", pins={**request.pins, "schedule": "1f1b"})


def case(number: int) -> PlanRequest:
    """One of them."""
    return next(itertools.islice(priced_cases(), number, None))


def plain_cost_of_stages(request: PlanRequest) -> float:
    """The least dollars-an-hour of whole nodes times seconds of any layout with stages on both kinds."""
    rates = [node.usd_per_gpu_hour or math.nan for node in request.cluster.nodes]
    return min(
        (
            sum(
                math.ceil(gpus / node.gpus_per_node) * node.gpus_per_node * rate
                for gpus, rate, node in zip(needed, rates, request.cluster.nodes, strict=True)
            )
            * step_s
            for needed, step_s in every_arrangement(request)
        ),
        default=math.inf,
    )


def plain_cost_of_parts(request: PlanRequest) -> float:
    """The same of any layout that treats the nodes of a part alike, on its first GPUs."""
    best = math.inf
    for part in parts_of_pool(request.cluster):
        problem = problem_of(replace(request, cluster=part))
        dollars = [
            node.usd_per_gpu_hour for node in part.nodes for _ in range(node.count * node.gpus_per_node)
        ]
        layouts = every_layout(problem, request.pins) or []
        for layout, step_s in zip(layouts, exact_steps(problem, layouts, CAL), strict=True):
            rented = whole_nodes(replace(request, cluster=part), layout.num_gpus)
            best = min(best, step_s * sum(usd or math.nan for usd in dollars[:rented]))
    return best


@pytest.mark.parametrize("number", range(tries(3, 8)))
def test_stages_of_unlike_kinds_cost_the_least_of_all(number: int) -> None:
    """The search finds the least cost that enumeration finds, with nothing to beat and with a score."""
    request = case(number)
    best = plain_cost_of_stages(request)
    done = search_unlike(request, CAL, math.inf)
    assert done is not None
    assert done.score == (pytest.approx(best, rel=SLACK) if math.isfinite(best) else math.inf)
    assert done.bound >= done.score * (1 - SLACK) or not math.isfinite(best)
    if math.isfinite(best):
        for factor, there in ((1.0001, True), (0.9999, False)):
            again = search_unlike(request, CAL, best * factor)
            assert again is not None
            assert (again.best is not None) == there


@pytest.mark.parametrize("number", range(tries(3, 8)))
def test_the_plan_of_a_pool_costs_the_least_of_all(number: int) -> None:
    """The whole answer costs what the cheapest of everything costs, is proven, and holds when verified."""
    request = case(number)
    best = min(plain_cost_of_stages(request), plain_cost_of_parts(request))
    found = search(request, CAL)
    assert isinstance(found, Plan) == math.isfinite(best)
    if not isinstance(found, Plan):
        return
    tokens = request.job.tokens_per_step
    assert found.estimate.usd_per_step == pytest.approx(best / 3600, rel=SLACK)
    assert found.estimate.usd_per_billion_tokens == pytest.approx(best / 3600 / tokens * 1e9, rel=SLACK)
    assert found.optimality.status == "proven"
    again = from_json(to_json(found))
    assert again == found
    assert [claim.name for claim in verify(again, CAL).claims if not claim.holds] == []
