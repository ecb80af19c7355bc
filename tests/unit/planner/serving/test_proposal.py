"""What is proposed keeps every limit with nine tenths and was measured; the daring fleet stands beside it."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.reports.serving.plan import serving_answer
from app.reports.trade_offs.compared import comparison_table
from planner.analysis.serving import fleets
from planner.analysis.serving.fleets import find_fleet
from planner.deployment.folder import folder
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving
from planner.serving.plan import ROUNDING, SURE, ServingPlan, serving_from_json, serving_to_json
from planner.serving.replica import WHOLE
from planner.serving.sure import Requirement
from topology.base.errors import InputError
from topology.base.units import format_chance

PAGE = ServeFlags(
    model="70b", gpu="h100-sxm", input_tokens="2000", output_tokens="300", ttft="1s", tpot="50ms", rate="2/s",
    mode="aggregated",
)  # fmt: skip
QUESTIONS = {
    "page": PAGE,
    "small": ServeFlags(
        model="8b", gpu="h100-sxm", input_tokens="1000", output_tokens="200", ttft="500ms", tpot="20ms",
        rate="20/s",
    ),
    "sized": ServeFlags(
        model="8b", gpu="h100-sxm", gpus="4", input_tokens="1000", output_tokens="200", ttft="500ms", weights="fp8"
    ),
    "pools": ServeFlags(
        model="8b", gpu="h200", input_tokens="4000", output_tokens="200", ttft="1s", tpot="20ms", rate="20/s",
        weights="fp8", mode="disaggregated", engine="sglang",
    ),
    "narrow": ServeFlags(
        model="8b", gpu="h100-sxm", input_tokens="1000", output_tokens="200", ttft="500ms", tpot="6ms",
        rate="1/s", weights="bf16",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def plans() -> dict[str, ServingPlan]:
    """The answers."""
    return {name: find_fleet(understand_serving(flags)) for name, flags in QUESTIONS.items()}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_proposal_is_sure_and_measured_or_says_that_it_is_not(
    plans: dict[str, ServingPlan], name: str
) -> None:
    """Nine tenths and runs behind it, else the shortfall stands in the headline, and nothing is proven there."""
    plan = plans[name]
    answer = serving_answer(plan)
    sure = Requirement(chance=SURE, with_runs=True).is_met(plan)
    assert sure or plan.chance < SURE or not plan.evidence.rows
    has_shortfall = f"chance of keeping the limits {format_chance(plan.chance)}" in answer.headline
    assert has_shortfall is (plan.chance < SURE - ROUNDING)
    text = "\n".join([answer.headline, *map(str, answer.sections)])
    assert not has_shortfall or "proven" not in text
    assert plan.optimality.status != ("best-under-cost-model" if plan.is_sure else "proven")
    earlier = replace(plan, optimality=replace(plan.optimality, status="proven"))
    again = serving_from_json(serving_to_json(earlier)).optimality.status
    assert again == ("proven" if plan.is_sure else "best-under-cost-model")
    if plan.daring is not None:
        assert plan.daring.saved > 0
        assert plan.daring.chance < SURE or plan.daring.not_measured or not plan.daring.rows


@pytest.mark.parametrize("name", QUESTIONS)
def test_no_measured_fleet_at_the_bill_is_surer(plans: dict[str, ServingPlan], name: str) -> None:
    """Of the fleets that are compared, those with runs behind them at the same dollars keep the limits no better."""
    plan = plans[name]
    for other in plan.other_fleets:
        same = other.proposed and not other.why_not and other.usd_per_hour == plan.estimate.usd_per_hour
        if same and other.rows and plan.request.job.request_rate_per_s is not None:
            assert (other.chance or 0.0) <= plan.chance + 0.005


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_surface_has_one_chance_and_one_number_of_runs(
    plans: dict[str, ServingPlan], name: str
) -> None:
    """The facts, the first line of the comparison, the document and the saved folder."""
    plan = plans[name]
    chance, runs = format_chance(plan.chance), f"{plan.evidence.rows or 'no'} run"
    measured = f"{plan.evidence.rows or 'no'} measured run"
    facts = dict(serving_answer(plan).sections[0].pairs)  # type: ignore[union-attr]  # the configuration
    assert facts["chance of limits"].startswith(chance)
    assert facts["measured"].startswith(measured)
    assert chance in comparison_table(plan).rows[0]
    assert comparison_table(plan).rows[0][-1].startswith(runs)
    document = plan.to_dict()
    assert min(one["chance"] for one in document["estimate"]["limits"].values()) == plan.chance
    assert document["evidence"]["rows"] == plan.evidence.rows
    readme = " ".join(folder(plan)["README.md"].split())
    assert f"Behind it: {measured}" in readme


def test_the_question_of_the_page_is_answered_by_what_was_measured(plans: dict[str, ServingPlan]) -> None:
    """One machine of H100s holds three GPUs of pipeline stages as well as a measured layout, at one bill."""
    plan = plans["page"]
    assert plan.chance >= SURE - 1e-6
    assert plan.evidence.rows > 0
    assert plan.decode.layout.pp == 1
    assert plan.rental is not None
    assert plan.rental.machines == 1


REFUSED = {
    "memory": ServeFlags(
        model="405b", gpu="h100-sxm", gpus="4", input_tokens="1000", output_tokens="100", mode="aggregated"
    ),
    "eight bits": ServeFlags(
        model="70b", gpu="h100-sxm", gpus="1", input_tokens="1000", output_tokens="100", weights="bf16",
        mode="aggregated",
    ),
    "four bits are too slow": ServeFlags(
        model="70b", gpu="h100-sxm", gpus="1", input_tokens="4000", output_tokens="100", weights="bf16",
        ttft="300ms",
    ),
    "pools in a closed loop": ServeFlags(
        model="8b", gpu="h100-sxm", gpus="4", input_tokens="1000", output_tokens="100", concurrency="64",
        mode="disaggregated", ttft="60ms",
    ),
    "limit": ServeFlags(model="8b", gpu="h100-sxm", gpus="1", ttft="1ms"),
    "rate": ServeFlags(model="8b", gpu="h100-sxm", gpus="1", rate="5000/s", mode="disaggregated"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_refusal_advises_is_answered(name: str) -> None:
    """Every flag with a value that the help names, typed in place of what was asked."""
    with pytest.raises(InputError) as refused:
        find_fleet(understand_serving(REFUSED[name]))
    for flag, values in re.findall(r"--(\w+) ((?:\w+ or )*\w+)", refused.value.fix):
        for value in values.split(" or ") if flag in ("weights", "mode") else ():
            assert find_fleet(understand_serving(replace(REFUSED[name], **{flag: value}))).num_gpus


def test_no_text_advises_a_limit_that_was_not_asked_for(plans: dict[str, ServingPlan]) -> None:
    """A tighter limit may be out of reach, so none is advised."""
    for plan in plans.values():
        text = "\n".join(str(section) for section in serving_answer(plan).sections)
        text = text.partition("Commands")[0]
        assert not re.search(r"--(ttft|tpot|e2e|rate|gpus) \S", text)


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_saved_folder_keeps_the_doubts(plans: dict[str, ServingPlan], name: str) -> None:
    """The chance of every limit, the band's end, and the runs behind the plan stand in its README."""
    plan = plans[name]
    readme = " ".join(folder(plan)["README.md"].split())
    assert all(
        f"chance of {format_chance(check.chance)}" in readme for check in plan.estimate.limits.values()
    )
    assert f"Behind it: {plan.evidence.rows or 'no'} measured run" in readme


def test_options_under_tighter_limits_serve_no_more_than_before() -> None:
    """Their bounds and batches are at most those under the limits themselves, and none has stages."""
    from costmodel.kernels.tables import load_calibration
    from planner.serving.board import enumerate_options

    request, hierarchy = understand_serving(QUESTIONS["small"]).requests[0]
    board = enumerate_options(load_calibration(), request, hierarchy)
    sure = Requirement(chance=SURE, with_runs=True).part(board)
    before = {
        (option.label, option.phase): (option.rules.max_batch, ceiling)
        for option, ceiling in zip(board.options, board.ceilings_per_s, strict=True)
    }
    assert sure.options
    for option, ceiling in zip(sure.options, sure.ceilings_per_s, strict=True):
        batch, most = before[option.label, option.phase]
        assert option.deployment.layout.pp == 1
        assert option.rules.max_batch <= batch
        assert ceiling <= most
        assert option.phase != WHOLE or (option.job.ttft_s or 0) < (request.job.ttft_s or 0)


def test_what_more_machines_cannot_make_sure_is_bought_by_its_chance() -> None:
    """Prompts of 8,012 tokens at p99 leave 500 ms no room: no fleet is sure, and ten times the bill adds little."""
    plan = find_fleet(
        understand_serving(
            ServeFlags(
                model="llama-3.3-70b", gpu="h100-sxm", rate="10/s", ttft="500ms", tpot="50ms",
                input_tokens="2000", output_tokens="300", mode="aggregated",
            )
        )
    )  # fmt: skip
    assert SURE > plan.chance > 0.5
    assert plan.num_gpus <= 48
    assert f"chance of keeping the limits {format_chance(plan.chance)}" in serving_answer(plan).headline


LADDERS = [
    # (chance, dollars) of the best by prediction, then of the cheapest at 90, 80, 70, 60 and 50 %, and what is proposed
    ((0.53, 4.6), [(0.9, 267.0), (0.82, 106.0), (0.71, 23.0), (0.65, 18.4), (0.51, 9.2)], 0.53, [0.65, 0.71, 0.82, 0.9]),
    ((0.50, 165.0), [(0.92, 385.0), (0.85, 275.0), (0.72, 220.0), (0.61, 200.0), (0.55, 180.0)], 0.85, [0.92]),
    ((0.60, 100.0), [(0.9, 200.0), (0.8, 150.0), None, None, None], 0.9, []),
    ((0.95, 100.0), [(0.92, 120.0), None, None, None, None], 0.92, []),
    ((0.70, 10.0), [None, None, (0.72, 50.0), (0.72, 50.0), (0.71, 40.0)], 0.70, [0.71, 0.72, 0.72]),
    ((0.70, 10.0), [None, None, None, None, None], 0.70, []),
]  # fmt: skip


@pytest.mark.parametrize(("daring", "rungs", "proposed", "surer"), LADDERS, ids=str)
def test_a_chance_costs_at_most_as_much_again_as_the_prediction(
    daring: tuple[float, float],
    rungs: list[tuple[float, float] | None],
    proposed: float,
    surer: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The surest measured fleet within twice the bill of the best by prediction; what is dearer is told."""

    def plan_of(chance: float, dollars: float) -> SimpleNamespace:
        return SimpleNamespace(chance=chance, estimate=SimpleNamespace(usd_per_hour=dollars), num_gpus=1)

    asked = iter(rungs)
    monkeypatch.setattr(fleets, "requirements_of", lambda *_, **__: rungs)
    monkeypatch.setattr(fleets, "_cheapest", lambda *_: next(asked))
    monkeypatch.setattr(fleets, "_plan_of", lambda rung: plan_of(*rung))
    contender: Any = SimpleNamespace(best=object(), plan=plan_of(*daring), board=None, request=None)
    monkeypatch.setattr(fleets, "_Candidate", lambda **_: daring)
    chosen, dearer = fleets._chosen([], contender, None)
    chance, _ = cast("tuple[float, float]", chosen)
    assert chance == proposed
    assert sorted(plan.chance for plan in dearer if plan.chance > chance) == surer
