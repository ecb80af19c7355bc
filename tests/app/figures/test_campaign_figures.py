"""Pictures of a run to its last token: their numbers are those of the campaign, and its parts sum to its clock."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from app.figures.campaign import finish_frontier, run_timeline, useful_heat
from app.figures.style import alt_text
from costmodel.campaign.checkpoint import CheckpointState
from costmodel.campaign.closed_form import expected
from costmodel.campaign.compose import CampaignJob, course_of
from costmodel.campaign.course import Course
from costmodel.campaign.failures import default_model
from costmodel.campaign.record import Band
from costmodel.campaign.simulate import simulate
from planner.analysis.campaign.run_to_end import (
    MAP_SEED,
    SIMULATED,
    Finish,
    finishes,
    one_run,
    useful_map,
    useful_share,
)
from planner.campaign.finish import with_campaign
from planner.plan import Plan
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from tests.app.page_reading import SMALL
from topology.base.units import DAY
from topology.builders import default_cluster


@pytest.fixture(scope="module")
def course() -> Course:
    """A month of 4,096 GPUs, with the interval and spares that are best."""
    state = CheckpointState(
        total_bytes=5.6e12, per_rank_bytes=5.6e12 / 4096, weights_per_rank_bytes=7e9, writers=4096
    )
    job = CampaignJob(work_s=30 * DAY, step_s=6.0, gpus=4096, replica_gpus=128, checkpoint=state)
    return course_of(job, default_model("h100-sxm"), default_cluster("h100-sxm", 4096).spec)


def test_the_cell_of_the_plan_is_the_closed_form_of_its_course(course):
    """Every cell is the expected useful share with that interval and those spares, in percent when drawn."""
    found = useful_map(course)
    row, column = found.chosen
    assert found.useful[row][column] == expected(course).useful
    assert (found.spares[row], found.every_s[column]) == (course.spares, course.every_s[-1])
    other = replace(course, spares=found.spares[1], every_s=(found.every_s[0],))
    assert found.useful[1][0] == expected(other).useful
    (heat,) = useful_heat(found).data
    assert np.asarray(heat.z) == pytest.approx(100 * np.asarray(found.useful))
    (ring,) = useful_heat(found).layout.shapes
    assert (ring.x0 + 0.5, ring.y0 + 0.5) == (column, row)


def test_the_chosen_interval_is_the_best_and_a_spare_never_hurts(course):
    """Of a row the plan's own interval leaves most useful; down a column it only grows."""
    found = useful_map(course)
    useful = np.asarray(found.useful)
    assert useful[found.chosen[0]].argmax() == found.chosen[1]
    assert (np.diff(useful, axis=0) >= -1e-12).all()


def test_a_run_in_which_little_fails_is_simulated(course):
    """Where the closed form does not hold, a cell is the mean of simulated runs of that interval and spares."""
    short = replace(course, work_s=course.work_s / 1000)
    drawn = useful_map(short)
    row, column = drawn.chosen
    assert drawn.by == "simulation"
    assert drawn.useful[row][column] == simulate(short, SIMULATED, MAP_SEED).useful_share.mean()
    assert f"{SIMULATED} simulated runs" in alt_text(useful_heat(drawn))


def test_where_both_answer_the_simulation_is_the_closed_form(course):
    """The chosen interval, within the error of the mean of as many runs."""
    shares = simulate(course, SIMULATED, MAP_SEED).useful_share
    error = shares.std() / math.sqrt(SIMULATED)
    assert useful_share(course, "closed form") == pytest.approx(
        useful_share(course, "simulation"), abs=5 * error + 0.005
    )


def test_the_moments_of_a_run_are_of_one_run_and_its_parts_sum_to_its_clock(course):
    """The last is the simulation of the same work and seed; work and losses are the clock at every moment."""
    run = one_run(course, 3)
    last = simulate(replace(course, work_s=run[-1].work_s), 1, 3)
    assert (run[-1].wall_s, run[-1].interruptions) == (last.wall_s[0], last.interruptions[0])
    for moment in run:
        parts_s = moment.work_s + sum(moment.lost_s.values())
        assert parts_s == pytest.approx(moment.wall_s, rel=1e-9, abs=1e-3)
    for before, after in itertools.pairwise(run):
        assert after.wall_s - before.wall_s >= after.work_s - before.work_s - 1e-6
        assert after.interruptions >= before.interruptions


def test_the_line_of_a_run_is_in_days_and_every_interruption_has_a_mark(course):
    """Marks stand where interruptions were counted, and hold all of them."""
    run = one_run(course, 3)
    _, line, marks = run_timeline(run, course.work_s).data
    assert list(line.x) == [moment.wall_s / DAY for moment in run]
    assert list(line.y) == [moment.work_s / DAY for moment in run]
    told = sum(int(text.split(" ")[0]) for text in marks.hovertext)
    assert told == run[-1].interruptions > 0


def finish(num_gpus: int, days: float, usd: float | None) -> Finish:
    """A run with bands of a tenth to each side."""
    money = None if usd is None else Band(p10=0.9 * usd, p50=usd, p90=1.1 * usd)
    band = Band(p10=0.9 * days, p50=days, p90=1.1 * days)
    return Finish(num_gpus=num_gpus, layout="tp 8", days=band, usd=money, useful_share=0.9)


def test_the_frontier_draws_middles_and_bands_and_keeps_a_deadline_at_its_ninetieth():
    """Days across, dollars up; a deadline is kept by the numbers whose late run keeps it."""
    found = [finish(64, 20.0, 300.0), finish(32, 38.0, 290.0)]
    picture = finish_frontier(found, 64, 40 * DAY)
    line, ring = picture.data
    assert (list(line.x), list(line.y)) == ([38.0, 20.0], [290.0, 300.0])
    assert list(line.error_x.array) == pytest.approx([3.8, 2.0])
    assert list(line.error_y.arrayminus) == pytest.approx([29.0, 30.0])
    assert (ring.x, ring.y) == ((20.0,), (300.0,))
    assert picture.layout.shapes[0].x0 == 40.0
    assert (
        "cheapest: 32 GPUs in 38 days for $290; 40 days are kept nine times in ten with 64 GPUs"
        in alt_text(picture)
    )


def test_other_numbers_of_gpus_are_planned_and_run_to_their_end():
    """The plan's own number comes to its own campaign; a number without a plan is left out."""
    request = understand(Flags(**SMALL, tokens="1T")).request
    known: dict[int, Plan] = {}

    def planner(asked) -> Plan | None:
        found = search(asked)
        if isinstance(found, Plan):
            known[asked.cluster.num_gpus] = found
        return found if isinstance(found, Plan) else None

    found = list(finishes(request, (1, 8), planner, with_campaign))
    own = with_campaign(known[8]).campaign
    assert [one.num_gpus for one in found] == sorted(known)
    assert (found[-1].days, found[-1].usd) == (own.days, own.usd)
