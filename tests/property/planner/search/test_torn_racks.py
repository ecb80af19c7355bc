"""Racks that are not full: any number of their GPUs is planned for, and more of them are never slower."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.plan import Plan, PlanRequest, from_json, to_json
from planner.search.search import search
from planner.search.verify import verify
from planner.structure import structure_claims
from tests.counts import tries
from topology.builders import default_cluster
from topology.discover.cluster import discover
from topology.discover.fabric import FabricFacts, fabric_facts
from topology.discover.places import Place
from topology.pools.kinds import is_part, island_parts
from topology.spec import ClusterSpec

CAL = load_calibration()
TRAYS = 18
"""Of an NVL72 rack, four GPUs each."""


def allocation(*trays: int) -> FabricFacts:
    """Racks of so many trays each, as a dump of a job's hosts tells them."""
    places = [
        Place(name=f"r{rack}-t{tray}", path=("fabric", f"r{rack}"), domain=f"r{rack}")
        for rack, count in enumerate(trays)
        for tray in range(count)
    ]
    return fabric_facts(source="racks", places=places, rooted=True)


def cut(trays: tuple[int, ...], num_gpus: int) -> ClusterSpec:
    """So many GPUs of an allocation."""
    return discover([allocation(*trays)], "gb200", hosts=num_gpus // 4).spec


def asked(cluster: ClusterSpec, name: str = "llama-3.1-8b", batch: int = 64) -> PlanRequest:
    """A job on a cluster."""
    job = TrainingJob(sequence_length=4096, global_batch_size=batch)
    return PlanRequest(model=model(name), cluster=cluster, job=job, top=1)


@pytest.mark.parametrize(
    ("trays", "hosts", "domains"),
    [
        ((18, 18), 32, [(32, 16)]),
        ((18, 18), 34, [(34, 17)]),
        ((18, 18), 35, [(18, 18), (17, 17)]),
        ((18, 18), 18, [(18, 18)]),
        ((18, 18), 5, [(5, 5)]),
        ((18, 14), 32, [(18, 18), (14, 14)]),
        ((9, 18, 18), 32, [(32, 16)]),
    ],
)
def test_trays_are_taken_evenly(trays: tuple[int, ...], hosts: int, domains: list[tuple[int, int]]) -> None:
    """As many of each rack where that makes the number, all of one where it holds them."""
    spec = cut(trays, 4 * hosts)
    assert [(node.count, node.nodes_per_domain) for node in spec.nodes] == domains


@pytest.mark.parametrize("seed", range(tries(1, 4)))
def test_more_of_torn_racks_is_never_slower(seed: int) -> None:
    """Four numbers of GPUs of a random allocation: each has a plan, no slower than that of fewer."""
    r = Random(seed)
    trays = tuple(r.randint(3, TRAYS) for _ in range(r.choice((2, 2, 3))))
    numbers = sorted(r.sample(range(1, sum(trays) + 1), 4))
    best = math.inf
    for hosts in numbers:
        found = search(asked(cut(trays, 4 * hosts)), CAL)
        assert isinstance(found, Plan), (trays, hosts)
        assert found.estimate.step_time_s <= best * (1 + 1e-6), (trays, hosts)
        best = min(best, found.estimate.step_time_s)
        assert [claim for claim in structure_claims(found) if not claim.holds] == []


@pytest.mark.parametrize("gpus", [136, 144])
def test_a_rack_that_no_group_fills_is_used_in_part(gpus: int) -> None:
    """Experts on 64 ranks do not fill 68 or 72 GPUs: 64 of each rack are faster than all, and no slower than 128."""
    plans = {
        n: search(asked(default_cluster("gb200", n).spec, "qwen3-235b-a22b", batch=256), CAL)
        for n in (128, gpus)
    }
    fewer, more = plans[128], plans[gpus]
    assert isinstance(fewer, Plan)
    assert isinstance(more, Plan)
    assert more.estimate.step_time_s <= fewer.estimate.step_time_s * (1 + 1e-6)
    read = from_json(to_json(more))
    assert [claim for claim in verify(read, CAL, proof=False).claims if not claim.holds] == []


def test_islands_are_parts_of_their_racks() -> None:
    """Of 18 and 17 trays: whole islands, as many nodes as there are, and nothing that another holds."""
    spec = cut((18, 18), 140)
    parts = list(island_parts(spec))
    sizes = [(part.nodes[0].nodes_per_domain, part.num_nodes) for part in parts]
    assert sizes[:3] == [(18, 18), (17, 34), (16, 32)]
    assert all(is_part(part, spec) for part in parts)
    assert all(set(part.hosts) <= set(spec.hosts) for part in parts)
    assert not any(
        larger % size == 0 and nodes >= count
        for size, count in sizes
        for larger, nodes in sizes
        if larger != size
    )


@pytest.mark.parametrize("hosts", [32, 33, 35])
def test_a_question_without_a_plan_on_torn_racks_says_why(hosts: int) -> None:
    """No exception from the explanation, whatever it tries: too large a model on so few GPUs."""
    request = asked(cut((18, 18), 4 * hosts), "deepseek-v3")
    found = search(replace(request, pins={"zero_stage": 0, "dp": 4 * hosts}), CAL)
    assert not isinstance(found, Plan)
    assert found.violations or found.rejected
