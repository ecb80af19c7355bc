"""Days, dollars and limits of a run are one number each: on the command line, in files, and on every page."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import pytest

from app.analysis.plan_diff import diff_answer
from app.analysis.sweep import sweep_answer
from app.figures.capacity import cell_words
from app.limits import kept_words
from app.pages.answer.headline import numbers
from app.pages.answer.money import limit_words
from app.pages.compare import run_cells
from app.reports import plan_headline
from app.reports.answer import render
from app.reports.plan import plan_answer
from costmodel.campaign.record import KEPT, Campaign
from planner.analysis.capacity import Limits, capacity
from planner.analysis.diff import diff
from planner.analysis.sweep import Point
from planner.campaign.finish import campaign_or_none
from planner.plan import Plan, from_json
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from tests.app.page_reading import SMALL
from topology.base.units import DAY, three_digits

ROUNDED = 0.006
"""Of a number of three digits."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What one surface shows of a run: days, dollars, and the words of its verdicts; None where it has none."""

    where: str
    days: float | None = None
    usd: float | None = None
    deadline: str | None = None


@pytest.fixture(scope="module")
def questions() -> tuple[tuple[Plan, Limits], ...]:
    """Twenty runs with a deadline and a budget between hopeless and easy, on few plans."""
    r, found = Random(35), []
    plans = [_plan(gpus) for gpus in ("4", "8", "24")]
    for _ in range(20):
        plan = r.choice(plans)
        tokens = r.choice((3, 10, 40)) * 10**10 * plan.layout.num_gpus
        job = replace(plan.request.job, total_tokens=tokens)
        alone = campaign_or_none(replace(plan, request=replace(plan.request, job=job)))
        assert alone is not None
        assert alone.usd is not None
        deadline_s = alone.days.p50 * DAY * r.choice((0.7, 0.95, 1.0, 1.1, 1.5))
        job = replace(job, deadline_s=deadline_s)
        budget_usd = alone.usd.p50 * r.choice((0.8, 1.0, 1.05, 1.4))
        limits = Limits(deadline_s=deadline_s, budget_usd=budget_usd)
        found.append((replace(plan, request=replace(plan.request, job=job)), limits))
    return tuple(found)


def _plan(gpus: str) -> Plan:
    found = search(understand(Flags(**{**SMALL, "gpus": gpus, "top": "1"})).request)
    assert isinstance(found, Plan)
    return found


def surfaces(plan: Plan, limits: Limits) -> Iterator[Shown]:
    """What every surface shows, read from what it writes by its label."""
    answer = plan_answer(plan)
    for form in ("table", "markdown"):
        yield _of_facts(f"{form}: time to train", _row(render(answer, form), "time to train"))
        yield _of_facts(f"{form}: campaign", _row(render(answer, form), "median"))
    document = json.loads(answer.document())
    run = document["campaign"]
    yield Shown(
        where="json",
        days=run["days"]["p50"],
        usd=run["usd"]["p50"],
        deadline=kept_words(run["deadline_chance"]),
    )
    again = from_json(answer.document()).campaign
    assert again is not None
    yield Shown(where="library", days=again.days.p50, usd=_p50_usd(again))
    tiles = {number.label: number.text for number in numbers(plan)}
    yield Shown(where="tiles", days=_days(tiles["Time to train"]), usd=_usd(tiles["$ for all tokens"]))
    words = limit_words(plan, limits)
    yield Shown(where="verdict under the tiles", deadline=re.search(r"Deadline of [^:]*: ([^;]*);", words)[1])
    (cell,) = capacity(plan.request, (), (plan.request.cluster.num_gpus,), lambda _: plan)
    yield Shown(where="map", days=_days(cell_words(cell, limits)), usd=_usd(cell_words(cell, limits)))
    assert cell.offer is not None
    assert cell.offer.days is not None
    yield Shown(where="time against money", days=cell.offer.days.p50, usd=cell.offer.usd.p50)
    compared = run_cells(plan, dated=True)
    yield Shown(
        where="compare",
        days=float(compared["days"]),
        usd=_usd(compared["$ of the run"]),
        deadline=compared["deadline"],
    )
    point = Point(request=plan.request, plan=plan, scaling_efficiency=1.0)
    yield Shown(where="sweep as data", days=point.row()["days"], usd=point.row()["usd"])
    (table,) = sweep_answer([point]).sections
    row = dict(zip(table.columns, table.rows[0], strict=True))
    yield Shown(where="sweep", days=float(row["days"]), usd=_usd(row["$ in all"]), deadline=row["deadline"])
    quantities = json.loads(diff_answer(plan, plan).document())["quantities"]
    yield Shown(where="diff", days=quantities["days"]["first"], usd=quantities["usd"]["second"])


def contradictions(plan: Plan, limits: Limits) -> list[str]:
    """Surfaces that show another number, or other words, than the run of the plan."""
    run = campaign_or_none(plan)
    assert run is not None
    assert run.deadline_chance is not None
    wrong = []
    for shown in surfaces(plan, limits):
        pairs = ((shown.days, run.days.p50), (shown.usd, _p50_usd(run)))
        wrong += [
            f"{shown.where}: {a} for {b}"
            for a, b in pairs
            if a is not None and a != pytest.approx(b, rel=ROUNDED)
        ]
        if shown.deadline not in (None, kept_words(run.deadline_chance)):
            wrong.append(f"{shown.where}: {shown.deadline}")
    return wrong


def test_every_surface_shows_the_same_days_dollars_and_verdict(
    questions: tuple[tuple[Plan, Limits], ...],
) -> None:
    """Twenty questions: no number of a run has two values."""
    assert [wrong for plan, limits in questions for wrong in contradictions(plan, limits)] == []


def test_kept_stands_only_for_nine_in_ten(questions: tuple[tuple[Plan, Limits], ...]) -> None:
    """The word alone needs the chance; all three verdicts occur, of both limits."""
    verdicts = set()
    for plan, limits in questions:
        run = campaign_or_none(plan)
        assert run is not None
        for name, chance in limits.chances(run).items():
            words = kept_words(chance)
            assert words.startswith("kept (") == (chance >= KEPT)
            assert words.startswith("missed") == (chance <= 1 - KEPT)
            assert f"{name.capitalize()} of" in limit_words(plan, limits)
            assert words in limit_words(plan, limits)
            verdicts.add((name, words.split(" ")[0], words.startswith("kept with")))
    assert len(verdicts) == 6


def test_steps_alone_are_called_so(questions: tuple[tuple[Plan, Limits], ...]) -> None:
    """What steps take without failures stands in one row, under that name."""
    plan, _ = questions[0]
    text = render(plan_answer(plan), "markdown")
    assert "nothing failing" in _row(text, "steps alone")
    assert "of steps alone" in _row(text, "money, energy")


def test_a_surface_without_failures_is_seen(
    questions: tuple[tuple[Plan, Limits], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A headline that counts its steps alone contradicts all the others."""
    plan, limits = questions[0]

    def steps_only(asked: Plan) -> str:
        run = campaign_or_none(asked)
        assert run is not None
        alone = 0.97 * run.days.p50
        return f"{three_digits(alone)} days in the median · $1 · deadline of 3 days kept (chance > 99 %)"

    monkeypatch.setattr(plan_headline, "finish_words", steps_only)
    assert any(wrong.startswith("table: time to train") for wrong in contradictions(plan, limits))


def _of_facts(where: str, text: str) -> Shown:
    """Days, dollars and verdict of a row of facts."""
    deadline = re.search(r"deadline of [\d.,]+ \w+ (.*)$", text)
    return Shown(
        where=where, days=_days(text), usd=_usd(text), deadline=deadline[1].strip(" |") if deadline else None
    )


def _row(text: str, label: str) -> str:
    """The row of a label, its continued lines joined."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip(" |*-").startswith(label))
    taken: list[str] = []
    for line in lines[at + 1 :]:
        if not line.startswith(" " * 10) or not line.strip():
            break
        taken.append(line.strip())
    return " ".join([lines[at].strip(), *taken])


def _days(text: str) -> float:
    """The first number of days of a text."""
    return float(re.search(r"([\d.,]+) days", text)[1].replace(",", ""))


def _usd(text: str) -> float:
    """The first dollars of a text."""
    found = re.search(r"\$([\d.,]+)( [MB])?", text)
    factor = {None: 1.0, " M": 1e6, " B": 1e9}[found[2]]
    return float(found[1].replace(",", "")) * factor


def _p50_usd(run: Campaign) -> float:
    """Median dollars of a run with a price."""
    assert run.usd is not None
    return run.usd.p50


def test_a_plan_without_an_end_has_no_bill_and_a_known_price(
    questions: tuple[tuple[Plan, Limits], ...],
) -> None:
    """Beside a run with an end, the bill of one without is blank, as its days are."""
    plan, _ = questions[0]
    run = campaign_or_none(plan)
    assert run is not None
    endless = replace(
        plan,
        request=replace(plan.request, job=replace(plan.request.job, total_tokens=None, deadline_s=None)),
        campaign=None,
    )
    text = render(diff_answer(replace(plan, campaign=run), endless), "table")
    assert "$ of the whole run" in text
    assert "no price" not in text


def test_switches_that_were_set_are_told_apart(questions: tuple[tuple[Plan, Limits], ...]) -> None:
    """Two plans that differ in a switch say so, and the question names it."""
    plan, _ = questions[0]
    other = replace(
        plan, request=replace(plan.request, switches={"attention_kernel": "fa2", "loss": "chunked:8"})
    )
    choices = diff(plan, other).choices
    assert choices["switch.attention_kernel"] == ("native", "fa2")
    assert choices["switch.loss"][1] == "chunked:8"
    assert "attention_kernel fa2 · loss chunked:8" in plan_headline.headline_of(other)
    assert not diff(other, other).choices
