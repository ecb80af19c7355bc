"""What finishes a run earliest: the proof over layouts, intervals and spares, and the library's way to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import meshplan
from app.reports.campaign.sections import campaign_sections, mean_days
from app.reports.plan_headline import run_s
from costmodel.campaign.closed_form import expected
from costmodel.campaign.compose import course_of
from costmodel.campaign.failures import default_model
from planner.campaign.finish import campaign_job_of, finish_gap, finished, with_campaign
from planner.plan import Plan
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from topology.base.errors import InputError
from topology.base.units import format_bandwidth

PINS = ("tp=8", "pp=8", "tp=4", "zero_stage=0", "pp=32", "cp=2", "tp=1")


def planned(*settings: str) -> Plan:
    """405B on 16,384 GPUs, 15 T tokens, with these fields of the layout pinned."""
    pins = tuple(f"layout.{one}" for one in settings)
    flags = Flags(model="405b", gpus="16384", tokens="15T", top="1", settings=pins)
    found = search(understand(flags).request)
    assert isinstance(found, Plan)
    return found


def least_finish_s(plan: Plan) -> float:
    """Mean seconds of the run, at the best of some intervals and numbers of spares around its own."""
    job, world = campaign_job_of(plan), default_model("h100-sxm")
    course = course_of(job, world, plan.request.cluster)
    tried = [
        replace(course, every_s=tuple(factor * each for each in course.every_s), spares=course.spares + more)
        for factor in (0.7, 1.0, 1.4)
        for more in (-5, 0, 5, 500)
    ]
    return min(job.work_s / expected(one).useful for one in tried)


def test_nothing_finishes_earlier_than_the_gap_says() -> None:
    """Other layouts, each at its best interval and with hundreds of spares that cost nothing here."""
    best = with_campaign(planned())
    gap = finish_gap(best)
    assert gap is not None
    assert best.campaign is not None
    assert 0 <= gap < 0.01  # and of use
    mine_s = campaign_job_of(best).work_s / best.campaign.mean_useful_share
    others = {pin: least_finish_s(planned(pin)) for pin in PINS}
    assert min(others.values()) >= mine_s * (1 - gap)
    assert len({round(seconds) for seconds in others.values()}) > 3


def test_a_gap_is_claimed_only_where_it_is_proven() -> None:
    """Not without a campaign, under another objective, or of a plan that is only the best found."""
    plan = planned()
    assert finish_gap(plan) is None
    told = with_campaign(plan)
    assert finish_gap(replace(told, request=replace(told.request, objective="cost"))) is None
    assert finish_gap(replace(told, optimality=replace(told.optimality, status="best-found"))) is None


def test_the_objective_date_spends_spares_for_days() -> None:
    """The same layout; more spares, hardly a wait, and a finish that is no later: of time and date it is step-time."""
    words = {"gpus": 16384, "tokens": "15T", "top": 1}
    usual, dated, timed = (
        meshplan.plan("405b", **words, objective=one) for one in ("step-time", "date", "time")
    )
    assert usual.layout == dated.layout == timed.layout
    assert usual.campaign is not None
    assert dated.campaign is not None
    assert timed.campaign == usual.campaign
    assert dated.campaign.spare_nodes > usual.campaign.spare_nodes
    assert dated.campaign.mean_useful_share > usual.campaign.mean_useful_share
    assert dated.campaign.lost_share.waiting_for_nodes < 1e-4


def test_a_run_may_go_on_with_fewer_gpus() -> None:
    """As in the file of failures; it needs fewer spares, and more GPUs than there are is refused."""
    plan = planned()
    waits, shrinks = finished(plan, None).campaign, finished(plan, None, min_gpus=12_288).campaign
    assert waits is not None
    assert shrinks is not None
    assert (waits.failures.min_gpus, shrinks.failures.min_gpus) == (None, 12_288)
    assert shrinks.spare_nodes < waits.spare_nodes
    with pytest.raises(InputError, match="cannot go on with so many GPUs"):
        finished(plan, None, min_gpus=20_000)


def test_the_library_answers_with_the_campaign_of_the_command_line(tmp_path: Path) -> None:
    """With tokens; in a world of one's own, whose impossibility is an error; without tokens there is none."""
    words = {"gpus": 16384, "tokens": "15T", "top": 1}
    assert meshplan.plan("405b", **words).campaign == with_campaign(planned()).campaign
    own = tmp_path / "ours.toml"
    own.write_text("[storage]\nname = 'slow'\nwrite_bytes_per_s = 1e6\nread_bytes_per_s = 1e6\n")
    with pytest.raises(InputError, match="slower than one checkpoint per failure"):
        meshplan.plan("405b", **words, failures=own)
    assert meshplan.plan("8b", gpus=8, top=1).campaign is None
    with pytest.raises(InputError, match="a campaign needs an end"):
        meshplan.plan("8b", gpus=8, top=1, failures=own)


def test_a_campaign_pays_for_the_gpus_that_its_plan_pays_for() -> None:
    """Asked for the least money a plan says how many to rent: its campaign bills those, and its spares.

    Of a cluster that is held, nodes that idle are paid for once, also where they are spares.
    """
    asked = Flags(
        model="8b", gpus="64", global_batch_size="8", tokens="10B", top="1", objective="cost",
        settings=("layout.tp=8",),
    )  # fmt: skip
    request = understand(asked).request
    fewest = search(request)
    assert isinstance(fewest, Plan)
    assert fewest.idle_gpus > 0
    rented, held = (
        with_campaign(replace(fewest, request=replace(request, objective=objective))).campaign
        for objective in ("cost", "step-time")
    )
    assert rented is not None
    assert held is not None
    assert rented.usd is not None
    assert held.usd is not None
    node = request.cluster.nodes[0].gpus_per_node
    gpus = fewest.layout.num_gpus + node * rented.spare_nodes
    assert rented.usd.p50 == pytest.approx(rented.days.p50 * 24 * gpus * 6.88, rel=1e-3)
    idle = (64 - fewest.layout.num_gpus) // node
    assert 0 < held.spare_nodes <= idle
    assert held.idle_spare_nodes == held.spare_nodes
    assert rented.idle_spare_nodes == 0
    assert held.usd.p50 == pytest.approx(held.days.p50 * 24 * 64 * 6.88, rel=1e-3)


def test_a_run_says_its_energy_and_what_the_grid_emits() -> None:
    """Design power of its GPUs from start to finish; emissions only where the grid was said."""
    plan = planned()
    said = replace(plan.request, cluster=replace(plan.request.cluster, grid_g_co2_per_kwh=400.0))
    found, unsaid = with_campaign(replace(plan, request=said)).campaign, with_campaign(plan).campaign
    assert found is not None
    assert found.kwh is not None
    assert found.co2_kg is not None
    assert unsaid is not None
    assert found.kwh.p50 == pytest.approx(found.days.p50 * 24 * 16384 * 700 / 1000)
    assert found.co2_kg.p90 == pytest.approx(0.4 * found.kwh.p90)
    assert (unsaid.kwh, unsaid.co2_kg) == (found.kwh, None)


def test_a_loader_that_is_slower_than_the_steps_is_refused_with_what_it_must_deliver(tmp_path: Path) -> None:
    """Four bytes a token of a vocabulary of 128,256; 620 of multimodal data make 1.9 GB/s."""
    plan = planned()
    usual = with_campaign(plan).campaign
    rate = plan.request.job.tokens_per_step / plan.estimate.step_time_s
    assert usual is not None
    assert usual.loader_bytes_per_s == pytest.approx(4 * rate)
    own = tmp_path / "ours.toml"
    own.write_text("[loader]\nbytes_per_token = 620\nbytes_per_s = 1e9\n", encoding="utf-8")
    with pytest.raises(InputError, match="data loading is slower") as refused:
        finished(plan, own)
    assert f"your loader must deliver {format_bandwidth(620 * rate)}" in refused.value.fix
    least = float(refused.value.fix.rsplit(" ", 1)[1])
    for factor in (1.001, 0.999):
        own.write_text(f"[loader]\nbytes_per_token = 620\nbytes_per_s = {factor * least}\n", encoding="utf-8")
        if factor > 1:
            assert finished(plan, own).campaign is not None
        else:
            with pytest.raises(InputError):
                finished(plan, own)


def test_a_plan_of_adapters_says_what_its_checkpoints_hold() -> None:
    """Adapters of all seven matrices of Llama-2-7B and their state, and that the base is not among them."""
    plan = meshplan.plan("llama-2-7b", gpus=8, adapter="lora:r=16", tokens="1B", top=1)
    found = plan.campaign
    assert found is not None
    assert found.checkpoint_bytes in (14 * 39_976_960, 12 * 39_976_960)
    text = "\n".join(str(section) for section in campaign_sections(found, run_s(plan.request, plan.estimate)))
    size = f"{found.checkpoint_bytes / 1e9:.3g} GB of adapters and their optimizer state"
    assert f"{size} (the frozen base, 13.5 GB, is not saved)" in text
    gap = finish_gap(plan)
    assert gap is None or 0 <= gap < 0.01


def test_the_time_of_a_run_adds_up_to_its_steps_and_what_is_lost() -> None:
    """Useful days are those of the steps alone, as the headline has them, and the parts are the whole."""
    plan = meshplan.plan("70b", gpus=1024, tokens="2T", top=1)
    assert plan.campaign is not None
    steps_s = run_s(plan.request, plan.estimate)
    (table,) = (
        one for one in campaign_sections(plan.campaign, steps_s) if one.title.startswith("Time of the run")
    )
    told = {name: cells[-1].split() for name, *cells in table.rows}  # type: ignore[union-attr]  # a table
    in_days = {"s": 1 / 86_400, "min": 1 / 1440, "h": 1 / 24, "hours": 1 / 24, "days": 1.0}
    days = {name: float(number) * in_days[unit] for name, (number, unit) in told.items()}
    assert days["useful"] == pytest.approx(steps_s / 86_400, rel=0.01)
    assert days["total"] == pytest.approx(mean_days(plan.campaign, steps_s), rel=0.01)
    assert sum(days.values()) - days["total"] == pytest.approx(days["total"], rel=0.02)
