"""Nothing that a user can ask for beats a plan: every value of the free fields, each estimated by itself.

Only the library is asked, `meshplan.plan` and `meshplan.estimate`; what is legal, what fits and what it costs
is what they answer. Values of fields are listed here, not taken from the space that is searched; of `expert_tp`
the two that docs/search.md names, one or tp, where it is not pinned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

import meshplan
from planner.plan import Plan, PlanRequest
from tests.counts import tries
from tests.oracle.planner.search.random_requests import ROOMY_BYTES, random_sizes, with_memory
from topology.pools.rates import gpus_in_rank_order, rented_gpus

CASES = tries(16, 200)
MOST_GPUS = 4
MOST_LAYOUTS = 10
TRIES = 12
RELATIVE = 1e-6
"""Gap up to which a plan is called proven (docs/search.md)."""

DEGREES = tuple(range(1, MOST_GPUS + 1))
VALUES: Mapping[str, tuple[Any, ...]] = {
    "tp": DEGREES,
    "pp": DEGREES,
    "dp": DEGREES,
    "cp": DEGREES,
    "ep": DEGREES,
    "expert_tp": DEGREES,
    "virtual_stages": (1, 2, 3, 4),
    "microbatch_size": (1, 2, 3, 4, 6, 8),
    "schedule": ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev", "zb-2p", "v-half"),
    "zero_stage": (0, 1, 2, 3),
    "recompute": ("none", "selective", "selective-op", "full"),
    "sequence_parallel": (False, True),
    "cp_kind": ("ring", "ulysses", "allgather"),
    "axis_order": tuple(itertools.permutations(("pp", "dp", "cp", "tp"))),
}
USUAL = {
    "virtual_stages": 1,
    "schedule": "1f1b",
    "cp": 1,
    "ep": 1,
    "expert_tp": 1,
    "microbatch_size": 1,
    "axis_order": ("pp", "dp", "cp", "tp"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question with some fields pinned, and every layout that the others allow."""

    request: PlanRequest
    pins: tuple[dict[str, Any], ...]


def estimated(request: PlanRequest, pins: Mapping[str, Any]) -> Plan | None:
    """What one layout costs with its layers split best; None where it is not possible."""
    try:
        return meshplan.estimate(replace(request, pins={**pins, "layers_of_stage": "auto"}))
    except meshplan.InputError:
        return None


def random_pins(r: Random, request: PlanRequest) -> dict[str, Any]:
    """Every field of a layout by chance; fields that are rarely legal are mostly as usual."""
    pins = {name: r.choice(values) for name, values in VALUES.items()}
    gpus = request.cluster.num_gpus
    pins |= {name: r.choice([n for n in DEGREES if gpus % n == 0]) for name in ("tp", "pp", "cp")}
    pins |= {name: value for name, value in USUAL.items() if r.random() < 0.8}
    return pins | {"dp": max(1, gpus // (pins["tp"] * pins["pp"] * pins["cp"]))}


def case(number: int) -> Case | None:
    """A possible layout of a small question, some of its fields let free, and a memory it just fits or misses."""
    r = Random(number)
    request = replace(
        random_sizes(r, MOST_GPUS), objective=r.choice(("step-time", "step-time", "cost")), top=1
    )
    request = replace(request, memory_headroom=r.choice((0.0, 0.1)))
    drawn = ((pins, estimated(request, pins)) for pins in (random_pins(r, request) for _ in range(TRIES)))
    pins, plan = next(((pins, plan) for pins, plan in drawn if plan is not None), ({}, None))
    if plan is None:
        return None
    free = r.sample(tuple(VALUES), r.choice((2, 3)))
    while math.prod(len(VALUES[name]) for name in free) > MOST_LAYOUTS:
        free.pop()
    room = r.choice((*(1.001, 1.05, 1.3, 8.0) * 5, 0.95)) / (1 - (request.memory_headroom or 0.0))
    memory = min(ROOMY_BYTES, plan.estimate.peak_memory_bytes * room)
    request = replace(request, cluster=with_memory(request.cluster, memory))
    kept = {name: value for name, value in pins.items() if name not in free}
    values = itertools.product(*(VALUES[name] for name in free))
    every = (kept | dict(zip(free, chosen, strict=True)) for chosen in values)
    inside = tuple(one for one in every if "expert_tp" in kept or one["expert_tp"] in (1, one["tp"]))
    return Case(request=replace(request, pins=kept), pins=inside)


def cases() -> Iterator[Case]:
    """So many of them, the same in every run."""
    found = (case(number) for number in itertools.count())
    return itertools.islice((one for one in found if one is not None), CASES)


def score(request: PlanRequest, plan: Plan) -> float:
    """What the objective asks for; infinite for what needs more memory than it may."""
    budget = request.cluster.gpus[0].memory_bytes * (1 - (request.memory_headroom or 0.0))
    if plan.estimate.peak_memory_bytes > budget * (1 + 1e-9):
        return math.inf
    gpus = (
        int(rented_gpus(gpus_in_rank_order(request.cluster), plan.layout.num_gpus))
        if request.objective == "cost"
        else 1
    )
    return gpus * plan.estimate.step_time_s


@pytest.mark.slow
def test_no_layout_that_can_be_asked_for_beats_a_proven_plan() -> None:
    """Nor fits where there is said to be no plan."""
    better, proven, layouts = [], 0, 0
    for one in cases():
        try:
            answer: Plan | None = meshplan.plan(one.request)
        except meshplan.NoFeasiblePlanError:
            answer = None
        said = math.inf if answer is None else score(one.request, answer)
        proven += answer is not None and answer.optimality.status == "proven"
        for pins in one.pins:
            other = estimated(one.request, pins)
            layouts += other is not None
            if other is not None and score(one.request, other) < said * (1 - RELATIVE):
                better.append((one.request, other.layout, score(one.request, other), said))
    assert better == []
    assert proven > CASES / 2
    assert layouts > 1.5 * CASES
