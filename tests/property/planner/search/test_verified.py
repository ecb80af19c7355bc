"""No plan of ours is refused: whatever was asked, what is written reads back as what it says it is."""

from dataclasses import replace
from random import Random

import pytest

from costmodel.kernels.level import StackLevel
from costmodel.kernels.tables import load_calibration
from planner.plan import OBJECTIVES, Plan, PlanRequest, from_json, problem_of, to_json
from planner.search.given_layout import plan_of_layout
from planner.search.search import search
from planner.search.verified import verified
from planner.search.verify import verify
from tests.counts import tries
from tests.oracle.planner.search.plain_enumeration import sampled_layouts
from tests.oracle.planner.search.random_requests import pins_of, random_sizes, with_memory
from topology.base.units import GIB
from topology.builders import build

CAL = load_calibration()
CASES = tries(10, 24)
ENOUGH_BYTES = 4096 * GIB


def asked(number: int) -> PlanRequest:
    """A small question: any model, cluster, stack and objective, with pins and anchors or without."""
    r = Random(number)
    request = random_sizes(r, 8)
    job = replace(request.job, total_tokens=10**9, deadline_s=1e12)
    cluster = with_memory(request.cluster, ENOUGH_BYTES)
    level = StackLevel(
        stack=request.stack, level=r.choice((0.8, 1.3)), deviation=0.1, runs=3, name="mine",
        products=0.9, attention=1.2, passes=0.8, host=1.5, exchange=1.7,
    )  # fmt: skip
    request = replace(request, job=job, cluster=cluster, objective=r.choice(OBJECTIVES), top=3)
    request = replace(request, anchor=r.choice((None, level)), memory_headroom=r.choice((None, 0.0, 0.2)))
    layouts = sampled_layouts(r, problem_of(request, CAL), {}, 50)
    return replace(request, pins=pins_of(r, layouts, r.choice((0, 1, 2)))) if layouts else request


def taken(plan: Plan) -> None:
    """What is written of a plan is verified without a word, and is the plan."""
    back = from_json(to_json(plan))
    wrong = [claim for claim in verify(back, CAL, proof=False).claims if not claim.holds]
    assert wrong == []
    build.cache_clear()  # as another process would read it
    assert verified(back, "plan.json", say=pytest.fail) is back


@pytest.mark.slow
def test_no_plan_of_the_search_is_refused() -> None:
    """Plans and the given layouts of their alternatives, which need not be the best of anything."""
    plans = alternatives = 0
    for number in range(CASES):
        found = search(asked(number), CAL)
        if not isinstance(found, Plan):
            continue
        plans += 1
        taken(found)
        for other in found.alternatives:
            x = other.layout
            pins = {
                "tp": x.tp,
                "pp": x.pp,
                "dp": x.dp,
                "cp": x.cp,
                "ep": x.ep,
                "virtual_stages": x.virtual_stages,
            }
            pins |= {"microbatch_size": x.microbatch_size, "schedule": x.schedule, "axis_order": x.axis_order}
            given = plan_of_layout(replace(found.request, pins=pins), CAL)
            if isinstance(given, Plan):
                alternatives += 1
                taken(given)
    assert plans > CASES / 2
    assert alternatives > CASES / 2
