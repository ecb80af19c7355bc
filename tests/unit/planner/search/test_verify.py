"""`verify` confirms what the search claims, by another path, and names what somebody changed."""

import functools
import json
from dataclasses import fields, replace
from typing import Any

import pytest

from costmodel.campaign.failures import default_model
from costmodel.campaign.record import Band
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.campaign.finish import with_campaign
from planner.plan import Objective, Plan, PlanRequest, from_json, to_json
from planner.search.search import search
from planner.search.verified import verified
from planner.search.verify import Verification, verify
from topology.base.errors import PlanChangedError
from topology.builders import default_cluster

CAL = load_calibration()
DAY_S = 86_400.0


@functools.cache
def found(objective: Objective = "step-time", gpus: int = 8) -> Plan:
    """A plan of a small model, searched once."""
    request = PlanRequest(
        model=model("llama-3.1-8b"),
        cluster=default_cluster("h100-sxm", gpus).spec,
        job=TrainingJob(
            sequence_length=4096, global_batch_size=16, total_tokens=10**9, deadline_s=30 * DAY_S
        ),
        objective=objective,
    )
    plan = search(request, CAL)
    assert isinstance(plan, Plan)
    return plan


def broken(verification: Verification) -> set[str]:
    """Names of the claims that do not hold."""
    return {claim.name for claim in verification.claims if not claim.holds}


@pytest.mark.parametrize("objective", ["step-time", "cost", "gpus", "memory"])
def test_what_the_search_claims_is_derived_anew(objective: Objective) -> None:
    """Every claim of a plan holds, also after a round through JSON; the whole space was looked at."""
    plan = found(objective)
    verification = verify(from_json(to_json(plan)), CAL)
    assert broken(verification) == set()
    assert verification.rederived is not None
    assert verification.rederived.layouts > 1_000
    assert verification.rederived.better is None or objective == "step-time"


def test_a_bound_that_is_too_high_is_found_out() -> None:
    """A slower plan that calls itself proven is told the layout that beats it."""
    plan = found()
    request = replace(plan.request, pins={"tp": 8})
    slower = search(request, CAL)
    assert isinstance(slower, Plan)
    assert slower.estimate.step_time_s > plan.estimate.step_time_s * 1.01
    verification = verify(replace(slower, request=plan.request, origin=plan.origin), CAL)
    assert broken(verification) == {"bound"}
    assert verification.rederived is not None
    assert verification.rederived.better is not None
    assert verification.rederived.bound_s <= plan.estimate.step_time_s


def test_a_plan_that_says_it_was_the_only_layout_is_still_solved() -> None:
    """A split that is not the best of its layout does not hold, however few layouts it claims to be one of."""
    plan = found()
    slower = search(replace(plan.request, pins={"tp": 8, "pp": 1}), CAL)
    assert isinstance(slower, Plan)
    alone = replace(
        slower.optimality, enumerated=1, pruned={}, solved=1, floors_s={}, bound_s=slower.optimality.bound_s
    )
    assert broken(verify(replace(slower, optimality=alone), CAL)) == set()
    high = replace(alone, bound_s=slower.estimate.step_time_s * 1.1)
    assert broken(verify(replace(slower, optimality=high), CAL)) >= {"bound"}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda p: replace(p, layers_of_stage=(*p.layers_of_stage[:-1], p.layers_of_stage[-1] + 5)), {"layers"}),
        (lambda p: replace(p, recompute_of_stage=(*p.recompute_of_stage, 1)), {"pipeline ranks that recompute"}),
        (lambda p: replace(p, mesh=replace(p.mesh, gpu_of_rank=(0,) * p.layout.num_gpus)), {"ranks on distinct GPUs"}),
        (lambda p: replace(p, idle_gpus=3), {"GPUs"}),
        (lambda p: replace(p, simulated_s=1.0), {"step by event simulation"}),
        (lambda p: replace(p, mesh=replace(p.mesh, gpu_of_rank=p.mesh.gpu_of_rank[::-1])), {"ranks in their places"}),
        (lambda p: replace(p, mesh=replace(p.mesh, gpu_of_rank=tuple(r + 9 for r in p.mesh.gpu_of_rank))), {"ranks on GPUs outside the cluster"}),
        (lambda p: replace(p, recompute_of_stage=(-1,) * p.layout.pp), {"recomputed layers are there"}),
        (lambda p: replace(p, layout=replace(p.layout, microbatch_size=0)), {"degrees"}),
        (lambda p: replace(p, request=replace(p.request, memory_headroom=-5.0)), {"memory headroom"}),
        (lambda p: replace(p, estimate=replace(p.estimate, mfu=0.9)), {"mfu"}),
        (lambda p: replace(p, estimate=replace(p.estimate, step_time_s=0.0)), {"step time"}),
        (lambda p: replace(p, optimality=replace(p.optimality, bound_bytes=1e12)), {"bound of memory is there"}),
        (lambda p: replace(p, layout=replace(p.layout, microbatch_size=7)), {"rules"}),
        (lambda p: replace(p, estimate=replace(p.estimate, step_time_s=0.5)), {"parts of the step", "band of the step"}),
        (lambda p: replace(p, optimality=replace(p.optimality, gap=0.5)), {"gap"}),
        (lambda p: replace(p, request=replace(p.request, pins={"tp": p.layout.tp})), {"question"}),
        (lambda p: replace(p, optimality=replace(p.optimality, solved=99)), {"layouts enumerated"}),
        (lambda p: replace(p, optimality=replace(p.optimality, floors_s={"core-bound": 1e-3})), {"dismissed layouts", "floors are of bounds that dismissed"}),
    ],
)  # fmt: skip
def test_what_was_changed_in_a_file_is_named(change: object, names: set[str]) -> None:
    """A claim that was edited does not hold; the claims beside it still do."""
    assert callable(change)
    wrong = broken(verify(change(found()), CAL, proof=False))
    assert wrong
    assert wrong <= names


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"spare_nodes": 7}, "campaign.spare_nodes"),
        ({"checkpoint_interval_s": 60.0}, "campaign.checkpoint_interval_s"),
        ({"mean_useful_share": 1.0}, "campaign.mean_useful_share"),
        ({"days": Band(p10=1.0, p50=2.0, p90=3.0)}, "campaign.days.p50"),
    ],
)
def test_a_campaign_that_was_edited_is_found_out(changed: dict[str, Any], named: str) -> None:
    """A finished run is computed anew; a plan with another is refused, or goes on with the one of here."""
    plan = with_campaign(found())
    assert broken(verify(from_json(to_json(plan)), CAL, proof=False)) == set()
    assert plan.campaign is not None
    edited = replace(plan, campaign=replace(plan.campaign, **changed))
    assert named in broken(verify(edited, CAL, proof=False))
    with pytest.raises(PlanChangedError, match=named):
        verified(edited, "plan.json")
    assert verified(edited, "plan.json", accept_changes=True).campaign == plan.campaign


def unsaid_by_default(part: object) -> list[str]:
    """Fields that a plan fills and that an earlier version may not have had: their default says nothing."""
    return [
        each.name
        for each in fields(part)  # type: ignore[arg-type]
        if (each.default in (None, ()) or each.default_factory is tuple)
        and getattr(part, each.name) not in (None, ())
    ]


@pytest.mark.parametrize("part", ["campaign", "estimate"])
def test_what_an_earlier_version_did_not_say_is_added_and_named(part: str) -> None:
    """Each field that such a file lacks, and all together: the plan is that of here, and its names are said."""
    plan = with_campaign(found())
    names = unsaid_by_default(getattr(plan, part))
    assert set(names) >= {"campaign": {"percentile_days", "deadline_chance"}, "estimate": {"evidence"}}[part]
    names = [name for name in names if name not in ("assumptions", "provenance")]  # words that are held to
    for lacking in (*([name] for name in names), names):
        document = json.loads(to_json(plan))
        for name in lacking:
            del document[part][name]
        read, said = from_json(json.dumps(document)), list[str]()
        verdicts = verify(read, CAL, proof=False)
        assert broken(verdicts) == set()
        assert verified(read, "plan.json", say=said.append) == plan
        assert len(said) == 1
        assert all(name in said[0] for name in lacking)
        assert {claim.name.rpartition(".")[2] for claim in verdicts.claims if claim.is_new} == set(lacking)


def test_a_saved_plan_with_a_campaign_reopens_without_a_word() -> None:
    """What this version saves says all that it reads, the chance of a deadline too."""
    plan = with_campaign(found())
    assert plan.campaign is not None
    assert plan.campaign.deadline_chance is not None
    said: list[str] = []
    assert verified(from_json(to_json(plan)), "plan.json", say=said.append) == plan
    assert said == []


def test_the_world_of_a_campaign_is_kept() -> None:
    """A plan in a world of one's own is held against that world, not against the published one."""
    plan = found()
    usual = default_model("h100-sxm")
    own = with_campaign(plan, replace(usual, restart="requeue", asynchronous=False))
    assert own.campaign != with_campaign(plan).campaign
    assert verified(from_json(to_json(own)), "plan.json") == own


def test_a_campaign_without_an_end_does_not_hold() -> None:
    """A finished run beside a question without tokens, or in a world without headway, is no claim that holds."""
    plan = with_campaign(found())
    assert plan.campaign is not None
    endless = replace(plan.request, job=replace(plan.request.job, total_tokens=None, deadline_s=None))
    assert "campaign" in broken(verify(replace(plan, request=endless, origin=None), CAL, proof=False))
    slow = replace(plan.campaign.failures.storage, write_bytes_per_s=1.0)
    world = replace(plan.campaign.failures, storage=slow)
    stuck = replace(plan, campaign=replace(plan.campaign, failures=world))
    assert "campaign" in broken(verify(stuck, CAL, proof=False))
    assert verified(stuck, "plan.json", accept_changes=True).campaign is None
