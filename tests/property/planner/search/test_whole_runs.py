"""Objectives of a whole run: whole nodes are paid for, failures count, and no bound is too strict."""

import math
from dataclasses import replace
from random import Random

import pytest

from costmodel.campaign.record import KEPT
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.bounds.objective import goal_of
from planner.campaign.finish import campaign_or_none
from planner.campaign.outlook import outlook_of
from planner.plan import Objective, Plan, PlanRequest, from_json, to_json
from planner.search.infeasible import Infeasible
from planner.search.search import search
from planner.search.verify import verify
from tests.counts import tries
from topology.base.units import DAY
from topology.builders import default_cluster
from topology.spec import ClusterSpec

CAL = load_calibration()
SMALL = {"cp": 1, "virtual_stages": 1, "schedule": "1f1b", "microbatch_size": 1}


def nodes_of(count: int, gpus_per_node: int = 8, usd: float = 2.0) -> ClusterSpec:
    """Equal nodes of so many GPUs, at a price."""
    spec = default_cluster("h100-sxm", 8 * count).spec
    (node,) = spec.nodes
    cut = replace(node, gpus_per_node=gpus_per_node, nics_per_node=gpus_per_node)
    return replace(spec, nodes=(cut,), usd_per_gpu_hour=usd)


def asked(
    cluster: ClusterSpec,
    objective: Objective,
    *,
    batch: int = 64,
    tokens: int | None = None,
    deadline_s: float | None = None,
) -> PlanRequest:
    """Llama 8B at 4,096 tokens, of a space small enough to search in no time."""
    job = TrainingJob(
        sequence_length=4096, global_batch_size=batch, total_tokens=tokens, deadline_s=deadline_s
    )
    return PlanRequest(
        model=model("llama-3.1-8b"), cluster=cluster, job=job, objective=objective, pins=SMALL, top=1
    )


def bill_of(plan: Plan) -> float:
    """Dollars of the run where it has an end, else of a step."""
    run = campaign_or_none(plan)
    usd = plan.estimate.usd_per_step if run is None or run.usd is None else run.usd.p50
    assert usd is not None
    return usd


def random_questions(number: int) -> list[tuple[ClusterSpec, int, int | None]]:
    """Clusters, batches and tokens, with nodes of four and of eight."""
    r = Random(17)
    return [
        (
            nodes_of(r.choice((1, 2, 3, 5)), r.choice((4, 8))),
            r.choice((12, 24, 64, 96)),
            r.choice((None, 10**11, 10**12)),
        )
        for _ in range(number)
    ]


@pytest.mark.parametrize(("cluster", "batch", "tokens"), random_questions(tries(3, 10)))
def test_the_cheapest_plan_never_costs_more_than_the_fastest(
    cluster: ClusterSpec, batch: int, tokens: int | None
) -> None:
    """Whole nodes and failures included: what is called cheapest has no larger bill."""
    cheapest, fastest = (
        search(asked(cluster, x, batch=batch, tokens=tokens), CAL) for x in ("cost", "step-time")
    )
    assert isinstance(cheapest, Plan) == isinstance(fastest, Plan)
    if isinstance(cheapest, Plan) and isinstance(fastest, Plan):
        assert bill_of(cheapest) <= bill_of(fastest) * (1 + 1e-6)


@pytest.mark.parametrize(("cluster", "batch", "tokens"), random_questions(tries(2, 5)))
def test_the_cheapest_plan_is_that_of_every_number_of_nodes_that_could_be_rented(
    cluster: ClusterSpec, batch: int, tokens: int | None
) -> None:
    """Each number of whole nodes by itself, all of them paid for, at its fastest: the least bill of all."""
    (node,) = cluster.nodes
    bills = []
    for count in range(1, node.count + 1):
        rented = replace(cluster, nodes=(node.times(count),))
        found = search(asked(rented, "step-time", batch=batch, tokens=tokens), CAL)
        bills += [bill_of(found)] if isinstance(found, Plan) else []
    cheapest = search(asked(cluster, "cost", batch=batch, tokens=tokens), CAL)
    if not bills:
        assert isinstance(cheapest, Infeasible)
        return
    assert isinstance(cheapest, Plan)
    chance = (
        1e-6 if tokens is None else 2e-3
    )  # a median of simulated runs, against a bound by the closed form
    assert bill_of(cheapest) == pytest.approx(min(bills), rel=chance)


def test_a_rented_node_is_used_whole() -> None:
    """Half a node costs what a whole one does, so the cheapest plan of one node is its fastest."""
    cheapest, fastest = (search(asked(nodes_of(1), x, tokens=10**12), CAL) for x in ("cost", "step-time"))
    assert isinstance(cheapest, Plan)
    assert isinstance(fastest, Plan)
    assert cheapest.layout == fastest.layout
    assert cheapest.layout.num_gpus == 8


@pytest.mark.parametrize(
    ("gpus_per_node", "batch", "days"), [(8, 96, 4.0), (8, 64, 6.0), (8, 60, 7.0), (4, 96, 4.0)]
)
def test_the_fewest_gpus_are_of_the_fewest_nodes_that_keep_the_deadline_and_the_fastest_on_them(
    gpus_per_node: int, batch: int, days: float
) -> None:
    """Each number of whole nodes by itself at its fastest: the first whose run keeps the deadline nine times in ten."""
    cluster = nodes_of(32 // gpus_per_node, gpus_per_node)
    (node,) = cluster.nodes
    question = asked(cluster, "gpus", tokens=10**11, deadline_s=days * DAY, batch=batch)
    fewest = None
    for count in range(1, node.count + 1):
        rented = replace(question, cluster=replace(cluster, nodes=(node.times(count),)))
        found = search(replace(rented, objective="step-time"), CAL)
        if isinstance(found, Plan) and goal_of(rented).keeps(found.layout, found.estimate):
            fewest = found
            break
    answer = search(question, CAL)
    assert isinstance(answer, Plan) == (fewest is not None)
    if isinstance(answer, Plan) and fewest is not None:
        rented_here = -(-answer.layout.num_gpus // gpus_per_node) * gpus_per_node
        assert rented_here == fewest.request.cluster.num_gpus
        assert answer.estimate.step_time_s == pytest.approx(fewest.estimate.step_time_s, rel=1e-6)


@pytest.mark.parametrize("days", [4.0, 6.0, 9.0])
def test_the_fewest_gpus_keep_the_deadline_failures_included_and_the_proof_holds(days: float) -> None:
    """Nine times in ten; the certificate is derived anew, and no bound of the search was too strict."""
    request = asked(nodes_of(4), "gpus", tokens=10**11, deadline_s=days * DAY)
    found = search(request, CAL)
    assert isinstance(found, Plan)
    run = campaign_or_none(found)
    assert run is not None
    assert run.deadline_chance is not None
    assert run.deadline_chance >= KEPT
    again = from_json(to_json(found))
    assert [claim.name for claim in verify(again, CAL).claims if not claim.holds] == []


def test_a_plan_that_claims_a_deadline_it_misses_is_refused() -> None:
    """An edited deadline is seen by `plan verify`."""
    request = asked(nodes_of(4), "gpus", tokens=10**11, deadline_s=9 * DAY)
    found = search(request, CAL)
    assert isinstance(found, Plan)
    job = replace(request.job, deadline_s=0.7 * 9 * DAY)
    edited = replace(found, request=replace(found.request, job=job), origin=None)
    wrong = [claim.name for claim in verify(edited, CAL, proof=False).claims if not claim.holds]
    assert "deadline" in wrong


@pytest.mark.parametrize(("nodes", "tokens"), [(1, 10**11), (8, 10**12), (64, 10**13), (512, 10**14)])
def test_no_step_that_keeps_a_deadline_is_above_the_bound(nodes: int, tokens: int) -> None:
    """Steps around the bound of as many GPUs: above it none keeps the deadline, whatever the layout saves."""
    spec = nodes_of(nodes)
    plan = search(replace(asked(nodes_of(1), "step-time"), top=1), CAL)
    assert isinstance(plan, Plan)
    layout = replace(plan.layout, dp=plan.layout.dp * nodes)
    batch = 64 * nodes
    job = TrainingJob(sequence_length=4096, global_batch_size=batch, total_tokens=tokens)
    deadline_s = math.ceil(tokens / job.tokens_per_step) * plan.estimate.step_time_s * 1.2
    request = replace(asked(spec, "gpus"), job=replace(job, deadline_s=deadline_s))
    goal, outlook = goal_of(request), outlook_of(request)
    assert outlook is not None
    bound_s = float(goal.cutoff_s(layout.num_gpus, layout.num_gpus + 1.0))
    assert 0 < bound_s < goal.limit_s
    kept = []
    for factor in (0.9, 0.97, 1.0, 1.002, 1.01, 1.03):
        scale = factor * bound_s / plan.estimate.step_time_s
        full = replace(
            plan.estimate,
            step_time_s=factor * bound_s,
            lower_s=plan.estimate.lower_s * scale,
            upper_s=plan.estimate.upper_s * scale,
        )
        kept.append(outlook.keeps(layout, full))
    assert kept[0], "the bound is close to what can be kept"
    assert not any(kept[3:])
    assert kept == sorted(kept, reverse=True)
