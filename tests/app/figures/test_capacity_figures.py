"""The map of what could be bought, and what overflows: the numbers of the plans, and of the memory model."""

import re
from dataclasses import replace

import pytest

from app.figures import campaign, link_heat
from app.figures import capacity as capacity_figure
from app.figures.capacity import capacity_map, cell_words
from app.figures.cell_text import colour_at, contrast, ink_on
from app.figures.curves import pareto_chart
from app.figures.memory import overflow_bars
from app.figures.style import alt_text
from app.pages.answer.money import limit_words
from costmodel.campaign.record import Band
from costmodel.kernels.tables import load_calibration
from planner.analysis.capacity import MEMORY, Cell, Limits, capacity
from planner.analysis.what_if import Purchase, bought
from planner.campaign.finish import with_campaign
from planner.plan import Plan, problem_of
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.infeasible import Infeasible, leanest_layout
from planner.search.search import search
from tests.app.page_reading import SMALL
from topology.base.units import DAY, GIB

REQUEST = understand(Flags(**SMALL, tokens="1T")).request


def test_a_field_is_the_whole_run_of_the_plan_of_its_gpus():
    """Time and dollars are medians of the run, failures included; without tokens they are those of a step."""
    (cell_of_plan,) = capacity(REQUEST, (), (8,), search)
    plan = search(REQUEST)
    assert isinstance(plan, Plan)
    run = with_campaign(plan).campaign
    mine = cell_of_plan
    assert (mine.seconds, mine.usd, mine.run) == (run.days.p50 * DAY, run.usd.p50, run)
    assert (mine.offer.days, mine.offer.usd) == (run.days, run.usd)
    endless = replace(REQUEST, job=replace(REQUEST.job, total_tokens=None))
    (step,) = capacity(endless, (), (8,), search)
    assert (step.seconds, step.usd, step.run) == (plan.estimate.step_time_s, plan.estimate.usd_per_step, None)


def test_a_field_without_a_plan_says_what_is_in_the_way():
    """Where the leanest layout overflows it is memory, not a gap."""
    large = understand(Flags(model="llama-3.1-405b", gpus="16", tokens="1T")).request
    (found,) = capacity(large, (), (16,), search)
    assert (found.seconds, found.why) == (None, MEMORY)
    assert cell_words(found, Limits()) == "nothing fits"


def test_fields_say_which_limits_they_break_and_the_plans_own_is_ringed():
    """Colour is the logarithm of dollars; words are days, dollars, and what is not kept nine times in ten."""
    cells = [
        cell("a", 8, days=20, usd=1000.0),
        cell("a", 16, days=10, usd=10_000.0),
        Cell(gpu="b", num_gpus=8, why=MEMORY),
        cell("b", 16, days=5, usd=100_000.0),
        cell("a", 32, days=12, usd=10_000.0),
        Cell(gpu="b", num_gpus=32, why=MEMORY),
    ]
    limits = Limits(deadline_s=12 * DAY, budget_usd=20_000.0)
    picture = capacity_map(cells, ("a", 16), limits)
    (heat,) = picture.data
    assert [list(row) for row in heat.z] == [[3.0, 4.0, 4.0], [None, 5.0, None]]
    assert [list(row) for row in heat.text] == [
        ["20 days<br>$1,000<br>late", "10 days<br>$10,000", "12 days<br>$10,000<br>deadline 50 %"],
        ["", "5 days<br>$100,000<br>over budget", ""],
    ]
    *inside, unfit, unfit_too = picture.layout.annotations
    assert (unfit.x, unfit.y, unfit.text) == (0, 1, "nothing fits")
    assert (unfit_too.x, unfit_too.y) == (2, 1)
    words = [re.fullmatch(r'<span style="color:#[0-9A-F]{6}">(.*)</span>', note.text)[1] for note in inside]
    assert words == [text for row in heat.text for text in row if text]
    (ring,) = picture.layout.shapes
    assert (ring.x0 + 0.5, ring.y0 + 0.5) == (1, 0)
    assert "1 of 6 keep every limit nine times in ten; nothing fits in 2" in alt_text(picture)


def cell(gpu: str, num_gpus: int, *, days: float, usd: float) -> Cell:
    """A field whose run takes these days and dollars in the median, a tenth less or more in the extreme."""
    ends = tuple(days * (0.9 + 0.002 * percent) for percent in range(101))
    run = replace(
        with_campaign(search(REQUEST)).campaign,
        days=Band(p10=ends[10], p50=days, p90=ends[90]),
        usd=Band(p10=0.92 * usd, p50=usd, p90=1.08 * usd),
        percentile_days=ends,
    )
    return Cell(gpu=gpu, num_gpus=num_gpus, seconds=days * DAY, usd=usd, run=run)


def test_other_kinds_are_bought_in_their_usual_nodes_and_own_ones_as_described():
    """The request's own kind and number is the request."""
    assert bought(REQUEST, "h100-sxm", 8) is REQUEST
    assert bought(REQUEST, "a100-sxm-80gb", 16).cluster.num_gpus == 16


def test_the_overflow_is_that_of_the_rule_in_the_way():
    """Bars sum to what the rule counts on the fullest stage; the number above is what is too much, in GiB."""
    request = understand(Flags(model="llama-3.1-405b", gpus="16")).request
    found = search(request)
    assert isinstance(found, Infeasible)
    (rule,) = found.violations
    problem = problem_of(request, load_calibration())
    layout, stages = leanest_layout(problem, {})
    assert layout.num_gpus == 16
    assert max(stage.total_bytes for stage in stages) == rule.have
    assert problem.memory_budget_bytes == pytest.approx(rule.need)
    picture = overflow_bars(stages, problem.cluster.gpu.memory_bytes, rule.need, "lean", 0.95)
    assert "does not fit, 95.0 % chance of OOM" in alt_text(picture)
    texts = [text for trace in picture.data if trace.type == "scatter" for text in trace.text]
    assert max(float(text) for text in texts if text) == pytest.approx(
        (rule.have - rule.need) / GIB, rel=5e-3
    )
    named = [trace for trace in picture.data if trace.name and trace.name.startswith("GPU memory")]
    assert (len(named), picture.layout.annotations) == (1, ()), "the line's name is no text on the bars"


def test_limits_are_told_of_the_plan_at_hand():
    """Deadline and budget are those of the whole run, each with the chance of keeping it."""
    plan = search(REQUEST)
    run = with_campaign(plan).campaign
    kept = limit_words(plan, Limits(deadline_s=1.01 * run.days.p90 * DAY, budget_usd=run.usd.p50))
    assert "kept (chance 9" in kept
    assert "kept with a chance of 50 %; nine runs in ten take up to $" in kept
    steps_s = -(-REQUEST.job.total_tokens // REQUEST.job.tokens_per_step) * plan.estimate.step_time_s
    assert "kept with a chance of" in limit_words(plan, Limits(deadline_s=1.001 * steps_s))
    assert limit_words(plan, Limits()) == ""


@pytest.mark.parametrize("scale", [capacity_figure.SCALE, link_heat.SCALE, campaign.SCALE])
def test_words_on_a_coloured_field_can_be_read(scale):
    """Contrast of 4.5 and more (WCAG 2.2, 1.4.3) on every colour of a map; the renderer's own ink had 3."""
    for step in range(101):
        colour = colour_at(step / 100, scale)
        ink = tuple(int(ink_on(colour)[start : start + 2], 16) for start in (1, 3, 5))
        assert contrast(ink, colour) >= 4.5, step


def test_limits_are_named_at_their_lines():
    """Axes are logarithmic, where a note stands at the logarithm: both names were off the paper."""
    offers = [
        Purchase(
            gpu="a", num_gpus=n, step_time_s=8e4 / n, usd_per_billion_tokens=n / 8, layout="",
            days=Band(p10=7e4 / n, p50=8e4 / n, p90=9e4 / n), usd=Band(p10=n / 9, p50=n / 8, p90=n / 7),
        )
        for n in (8192, 16384)
    ]  # fmt: skip
    picture = pareto_chart(offers, None, latest_s=8.0 * DAY, dearest_usd=1500.0)
    deadline, budget = picture.layout.annotations
    assert (deadline.text, 10**deadline.x, budget.text, 10**budget.y) == (
        "deadline", pytest.approx(8.0), "budget", pytest.approx(1500.0)
    )  # fmt: skip
    assert [text for trace in picture.data for text in trace.text or ()] == ["8,192", "16,384"]
