"""What is proposed keeps every limit with nine tenths and was measured; the daring fleet stands beside it."""

import pytest

from app.reports.serving.plan import serving_answer
from planner.analysis.serving.fleets import find_fleet
from planner.deployment.folder import serving_folder
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving
from planner.serving.plan import ServingPlan
from planner.serving.replica import WHOLE
from planner.serving.sure import SURE, is_sure, sure_part

PAGE = ServeFlags(
    model="70b", gpu="h100-sxm", input_tokens="2000", output_tokens="300", ttft="1s", tpot="50ms", rate="2/s",
)  # fmt: skip
QUESTIONS = {
    "page": PAGE,
    "small": ServeFlags(
        model="8b", gpu="h100-sxm", input_tokens="1000", output_tokens="200", ttft="500ms", tpot="20ms",
        rate="20/s",
    ),
    "sized": ServeFlags(
        model="8b", gpu="h100-sxm", gpus="4", input_tokens="1000", output_tokens="200", ttft="500ms"
    ),
    "pools": ServeFlags(
        model="8b", gpu="h200", input_tokens="4000", output_tokens="200", ttft="1s", tpot="20ms", rate="20/s",
        mode="disaggregated", engine="sglang",
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
    """Nine tenths and runs behind it, else the shortfall stands in the headline."""
    plan = plans[name]
    answer = serving_answer(plan)
    sure = is_sure(plan, with_runs=True)
    assert sure or plan.chance < SURE or not plan.evidence.rows
    assert ("are kept with a chance of" in answer.headline) is (plan.chance < SURE - 1e-6)
    if plan.daring is not None:
        assert plan.daring.saved > 0
        assert plan.daring.chance < SURE or plan.daring.not_measured or not plan.daring.rows


def test_the_question_of_the_page_is_answered_by_what_was_measured(plans: dict[str, ServingPlan]) -> None:
    """One machine of H100s holds three GPUs of pipeline stages as well as a measured layout, at one bill."""
    plan = plans["page"]
    assert plan.chance >= SURE - 1e-6
    assert plan.evidence.rows > 0
    assert plan.decode.layout.pp == 1
    assert plan.rental is not None
    assert plan.rental.machines == 1


def test_no_text_advises_a_limit_that_was_not_asked_for(plans: dict[str, ServingPlan]) -> None:
    """A tighter limit may be out of reach, so none is advised."""
    for plan in plans.values():
        text = "\n".join(str(section) for section in serving_answer(plan).sections)
        assert "plans for 90 %" not in text


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_saved_folder_keeps_the_doubts(plans: dict[str, ServingPlan], name: str) -> None:
    """The chance of every limit, the band's end, and the runs behind the plan stand in its README."""
    plan = plans[name]
    readme = serving_folder(plan)["README.md"]
    assert all(f"chance of {check.chance:.0%}" in readme for check in plan.estimate.limits.values())
    assert f"Measured runs behind it: {plan.evidence.rows or 'none'}" in readme


def test_options_under_tighter_limits_serve_no_more_than_before() -> None:
    """Their bounds and batches are at most those under the limits themselves, and none has stages."""
    from costmodel.kernels.tables import load_calibration
    from planner.serving.board import enumerate_options

    request, hierarchy = understand_serving(QUESTIONS["small"]).requests[0]
    board = enumerate_options(load_calibration(), request, hierarchy)
    sure = sure_part(board, SURE, with_runs=True)
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
