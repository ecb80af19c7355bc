"""The map of what could be bought, and what overflows: the numbers of the plans, and of the memory model."""

import re

import pytest

from app.figures import campaign, link_heat
from app.figures import capacity as capacity_figure
from app.figures.capacity import capacity_map, cell_words
from app.figures.cell_text import colour_at, contrast, ink_on
from app.figures.curves import pareto_chart
from app.figures.memory import overflow_bars
from app.figures.style import alt_text
from app.pages.answer.money import limit_words
from costmodel.kernels.saved import calibration_for
from planner.analysis.capacity import MEMORY, Cell, Limits, capacity
from planner.analysis.what_if import Offer, bought
from planner.plan import Plan
from planner.problem import setting_of
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.infeasible import Infeasible, leanest_layout
from planner.search.search import search
from tests.app.page_reading import SMALL
from topology.base.units import BILLION, DAY, GIB

REQUEST = understand(Flags(**SMALL, tokens="1T")).request


def test_a_field_is_the_whole_run_of_the_plan_of_its_gpus():
    """Seconds are steps times the step, dollars those of all tokens; the own field is the plan's headline."""
    (cell,) = capacity(REQUEST, (), (8,), search)
    plan = search(REQUEST)
    assert isinstance(plan, Plan)
    steps = -(-REQUEST.job.total_tokens // REQUEST.job.tokens_per_step)
    assert cell.seconds == steps * plan.estimate.step_time_s
    assert cell.usd == pytest.approx(steps * plan.estimate.usd_per_step)
    assert cell.offer.usd_per_billion_tokens * steps * REQUEST.job.tokens_per_step / BILLION == cell.usd


def test_a_field_without_a_plan_says_what_is_in_the_way():
    """Where the leanest layout overflows it is memory, not a gap."""
    large = understand(Flags(model="llama-3.1-405b", gpus="16", tokens="1T")).request
    (cell,) = capacity(large, (), (16,), search)
    assert (cell.seconds, cell.why) == (None, MEMORY)
    assert cell_words(cell, Limits()) == "nothing fits"


def test_fields_say_which_limits_they_break_and_the_plans_own_is_ringed():
    """Colour is the logarithm of dollars; words are days, dollars, and what is not kept."""
    cells = [
        Cell(gpu="a", num_gpus=8, seconds=20 * DAY, usd=1000.0),
        Cell(gpu="a", num_gpus=16, seconds=10 * DAY, usd=10_000.0),
        Cell(gpu="b", num_gpus=8, why=MEMORY),
        Cell(gpu="b", num_gpus=16, seconds=5 * DAY, usd=100_000.0),
    ]
    limits = Limits(deadline_s=12 * DAY, budget_usd=20_000.0)
    picture = capacity_map(cells, ("a", 16), limits)
    (heat,) = picture.data
    assert [list(row) for row in heat.z] == [[3.0, 4.0], [None, 5.0]]
    assert [list(row) for row in heat.text] == [
        ["20 days<br>$1,000<br>late", "10 days<br>$10,000"],
        ["", "5 days<br>$100,000<br>over budget"],
    ]
    *inside, unfit = picture.layout.annotations
    assert (unfit.x, unfit.y, unfit.text) == (0, 1, "nothing fits")
    words = [re.fullmatch(r'<span style="color:#[0-9A-F]{6}">(.*)</span>', note.text)[1] for note in inside]
    assert words == [text for row in heat.text for text in row if text]
    (ring,) = picture.layout.shapes
    assert (ring.x0 + 0.5, ring.y0 + 0.5) == (1, 0)
    assert "1 of 4 keep every limit; nothing fits in 1" in alt_text(picture)


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
    setting = setting_of(request)
    layout, stages = leanest_layout(setting, {}, calibration_for(request.cluster))
    assert layout.num_gpus == 16
    assert max(stage.total_bytes for stage in stages) == rule.have
    assert setting.memory_budget_bytes == pytest.approx(rule.need)
    picture = overflow_bars(stages, setting.cluster.gpu.memory_bytes, rule.need, "lean")
    texts = [text for trace in picture.data if trace.type == "scatter" for text in trace.text]
    assert max(float(text) for text in texts if text) == pytest.approx(
        (rule.have - rule.need) / GIB, rel=5e-3
    )
    named = [trace for trace in picture.data if trace.name and trace.name.startswith("GPU memory")]
    assert (len(named), picture.layout.annotations) == (1, ()), "the line's name is no text on the bars"


def test_limits_are_told_of_the_plan_at_hand():
    """The deadline is that of the whole run, the budget that of all tokens."""
    plan = search(REQUEST)
    steps = -(-REQUEST.job.total_tokens // REQUEST.job.tokens_per_step)
    run_s, usd = steps * plan.estimate.step_time_s, steps * plan.estimate.usd_per_step
    kept = limit_words(plan, Limits(deadline_s=run_s + 5 * DAY, budget_usd=usd - 3000))
    assert kept.endswith("exceeded by $3,000.")
    assert "kept with 5 days left" in kept
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
        Offer(gpu="a", num_gpus=n, step_time_s=8e4 / n, usd_per_billion_tokens=n / 8, layout="")
        for n in (8192, 16384)
    ]
    picture = pareto_chart(offers, None, latest_s=8.0, dearest_usd=1500.0)
    deadline, budget = picture.layout.annotations
    assert (deadline.text, 10**deadline.x, budget.text, 10**budget.y) == (
        "deadline", pytest.approx(8.0), "budget", pytest.approx(1500.0)
    )  # fmt: skip
    assert [text for trace in picture.data for text in trace.text or ()] == ["8,192", "16,384"]
