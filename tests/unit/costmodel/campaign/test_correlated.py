"""Failures of many nodes at once, of storage, and those that are said before: in both answers alike."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from costmodel.campaign.answer import campaign
from costmodel.campaign.closed_form import all_states, expected, why_invalid
from costmodel.campaign.compose import bare_course, course_of, hazards_of
from costmodel.campaign.course import Course, Hazard
from costmodel.campaign.failures import default_model, failing_devices, rate_per_s
from costmodel.campaign.record import Cause, Duration, FailureModel, Spot
from costmodel.campaign.simulate import simulate
from tests.counts import tries
from tests.unit.costmodel.campaign.test_agreement import AGREE, plain, random_course
from tests.unit.costmodel.campaign.test_tiers import CLUSTER as TIERED
from tests.unit.costmodel.campaign.test_tiers import job
from topology.base.errors import InputError
from topology.base.units import DAY, HOUR

WORLD = default_model("h100-sxm")
CLUSTER = replace(TIERED, storage=())


def correlated_course(seed: int) -> Course:
    """A random course, whose racks fail too, whose nodes are taken back, and which is stopped by plan."""
    draw = np.random.default_rng(seed + 10_000)
    course = random_course(seed)
    rack_nodes = int(draw.choice([2, 4, 18]))
    rack_per_s = draw.uniform(0.02, 0.2) * course.per_s
    rack_s = min(10 ** draw.uniform(3.5, 5), draw.uniform(0.01, 0.15) / rack_per_s)
    more = (
        Hazard(
            name="rack", per_s=rack_per_s, notice_s=10.0, restart_s=60.0, loses="rack",
            together=rack_nodes, repair_s=rack_s, repair_sigma=float(draw.choice([0.0, 1.0])),
        ),
        Hazard(
            name="preemption", per_s=0.2 * course.per_s, notice_s=0.0, restart_s=30.0, warned=True,
            loses="node", repair_s=0.3 * course.repair_s,
        ),
        Hazard(name="planned maintenance", per_s=0.1 * course.per_s, notice_s=0.0, restart_s=60.0, warned=True),
    )  # fmt: skip
    spares = course.spares + int(draw.choice([0, rack_nodes]))
    work_s = max(course.work_s, 8 * rack_s, 25 / rack_per_s)
    return replace(course, hazards=(*course.hazards, *more), spares=spares, work_s=work_s)


def apart(course: Course, seed: int, runs: int = 60) -> float:
    """By what share the two answers differ."""
    found = simulate(course, runs, seed=seed)
    return abs(expected(course).useful / float(found.work_s.sum() / found.wall_s.sum()) - 1)


@pytest.mark.slow
def test_both_agree_on_random_runs_with_correlated_failures() -> None:
    """Within 1.5 %, wherever the closed form says that it holds."""
    wanted = tries(6, 200)
    every = map(correlated_course, range(400))
    valid = list(islice((one for one in every if not why_invalid(one)), wanted))
    assert len(valid) == wanted
    assert {seed: error for seed, one in enumerate(valid) if (error := apart(one, seed)) > AGREE} == {}


def test_a_rack_takes_its_nodes_at_once_and_brings_them_back_at_once() -> None:
    """Four nodes on two spares: the run waits whenever a rack is away, as often as that is."""
    rack = Hazard(
        name="rack", per_s=2e-6, notice_s=1.0, restart_s=1.0, loses="rack", together=4, repair_s=20_000.0
    )
    course = plain(hazards=(*plain().hazards, rack), spares=2, work_s=400 * DAY)
    away = 0.04 / 1.04
    assert expected(course).lost.waiting_for_nodes == pytest.approx(away, rel=1e-3)
    runs = simulate(course, 60, seed=1)
    assert float(runs.waiting_for_nodes_s.sum() / runs.wall_s.sum()) == pytest.approx(away, rel=0.05)
    enough = replace(course, spares=4)
    assert expected(enough).lost.waiting_for_nodes == pytest.approx(away**2 / 2, rel=0.1)
    assert sum(p for *_, p in all_states(enough)) == pytest.approx(1)


def test_what_is_said_before_loses_no_work() -> None:
    """Neither in the closed form nor in the simulation."""
    warned = (Hazard(name="preemption", per_s=1e-4, notice_s=0.0, restart_s=100.0, warned=True),)
    course = plain(hazards=warned)
    assert expected(course).lost.lost_work == 0
    assert simulate(course, 20).lost_work_s.sum() == 0
    assert apart(course, 4) < 0.002
    sudden = (replace(warned[0], warned=False),)
    assert expected(plain(hazards=sudden)).lost.lost_work > 0.02


def world(*causes: Cause, **changed: object) -> FailureModel:
    """Llama 3's failures and these, with four nodes in a rack and 32 below a switch."""
    site = replace(WORLD.site, causes=(*WORLD.site.causes, *causes), nodes_per_rack=4, nodes_per_switch=32)
    return replace(WORLD, site=site, **changed)


RACK = Cause(name="rack power", events=6, device="rack", loses="rack")
SWITCH = Cause(name="leaf switch", events=3, device="switch", loses="rack")
STORAGE = Cause(name="storage outage", events=2, device="storage")


def test_causes_are_counted_by_their_own_device() -> None:
    """Half the nodes have half the racks and switches, and the same one storage."""
    of = world(RACK, SWITCH, STORAGE)
    whole = failing_devices(CLUSTER, of.site)
    half = failing_devices(
        replace(CLUSTER, nodes=tuple(n.times(n.count // 2) for n in CLUSTER.nodes)), of.site
    )
    shares = [rate_per_s(c, of.site, half) / rate_per_s(c, of.site, whole) for c in (RACK, SWITCH, STORAGE)]
    assert shares == [0.5, 0.5, 1.0]
    assert 1 / rate_per_s(STORAGE, of.site, whole) == pytest.approx(27 * DAY)


def test_each_correlated_cause_costs_what_it_takes() -> None:
    """A rack its nodes, a switch more of them, an outage its hours before a restart."""
    of = world(RACK, SWITCH, STORAGE)
    levels = bare_course(job(), of, CLUSTER).levels
    by_name = {h.name: h for h in hazards_of(of, failing_devices(CLUSTER, of.site), levels)}
    rack, switch = by_name["crash, loses rack of a rack"], by_name["crash, loses rack of a switch"]
    assert (rack.nodes, switch.nodes) == (4, 32)
    assert rack.repair_s == switch.repair_s == of.times.rack_back.seconds
    longest = max(hazard.restart_s for hazard in by_name.values())
    assert longest == of.times.storage_back.seconds + of.times.swap.seconds


def test_correlated_failures_ask_for_more_spares_and_leave_less() -> None:
    """Racks of four; the spares hold at least one more of them."""
    often = replace(RACK, events=100)
    alone, racks = course_of(job(), world(), CLUSTER), course_of(job(), world(often), CLUSTER)
    assert racks.spares > alone.spares
    assert expected(racks).useful < expected(alone).useful


def test_outside_its_validity_the_simulation_answers_and_says_so() -> None:
    """Six racks in 54 days are too few for a steady number of racks in repair."""
    found = campaign(job(), world(RACK), CLUSTER, step_band_s=(4.0, 7.0), least_bytes=1e12, runs=30)
    assert found.by == "simulation"
    assert any("racks or switches" in note for note in found.notes)


def test_preempted_nodes_save_first_where_the_warning_suffices() -> None:
    """Two minutes are enough for 57 s of writing; ten seconds are not, and work is lost."""
    spot = Spot(per_hour=1e-4, warning_s=120.0, replaced=Duration(seconds=HOUR))
    courses = [
        course_of(job(), replace(WORLD, spot=replace(spot, warning_s=s)), CLUSTER) for s in (120.0, 10.0)
    ]
    taken = [next(h for h in course.hazards if h.name == "preemption") for course in courses]
    assert [hazard.warned for hazard in taken] == [True, False]
    assert taken[0].per_s == pytest.approx(2048 * 1e-4 / HOUR)
    shares = [expected(course).useful for course in courses]
    assert shares[1] < shares[0] < expected(course_of(job(), WORLD, CLUSTER)).useful


@pytest.mark.parametrize(
    "cause",
    [replace(RACK), Cause(name="odd", events=1, device="gpu", loses="rack")],
)
def test_a_cause_that_takes_a_number_of_nodes_must_say_how_many(cause: Cause) -> None:
    """Refused with the fields that say it."""
    with pytest.raises(InputError, match="is not said") as refused:
        replace(WORLD, site=replace(WORLD.site, causes=(cause,)))
    assert "nodes_per_rack" in refused.value.fix
