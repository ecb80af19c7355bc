"""A difference is coloured where the model can tell it, and grey where it decides nothing."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

from app.pages.answer.headline import delta, numbers, tile_difference
from app.pages.executor import difference_to_plan
from app.store.run_log import RunStep
from costmodel.training.bands import tie_ratio
from planner.plan import Plan
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from tests.trees import nodes_of

ROOT = Path(__file__).parents[4]


def plan_of(gpus: str) -> Plan:
    """A plan of the default batch."""
    request = understand(Flags(model="llama-3.1-8b", gpus=gpus, global_batch_size="64", tokens="1T")).request
    found = search(request)
    assert isinstance(found, Plan)
    return found


@pytest.fixture(scope="module")
def pair() -> tuple[Plan, Plan]:
    """Plans on 8 and on 16 GPUs: one is twice as fast, and per GPU about as good."""
    return plan_of("8"), plan_of("16")


@pytest.mark.parametrize("gain", [0.5, 0.97, 0.9964, 1.0036, 1.03, 2.0])
def test_each_number_is_grey_within_the_band_by_itself(pair: tuple[Plan, Plan], gain: float) -> None:
    """Tokens per second and GPU, utilisation and money tie although the jobs' speeds do not, and the reverse."""
    baseline, plan = pair
    speed = baseline.estimate.tokens_per_s_per_gpu
    step_s = baseline.estimate.step_time_s / 2 / gain  # twice the GPUs, each `gain` times as good
    changed = replace(
        plan.estimate,
        step_time_s=step_s,
        tokens_per_s_per_gpu=speed * gain,
        mfu=baseline.estimate.mfu * gain,
        usd_per_billion_tokens=(baseline.estimate.usd_per_billion_tokens or 1.0) / gain,
    )
    now = replace(plan, estimate=changed)
    tied = max(gain, 1 / gain) <= tie_ratio()
    for number in numbers(now):
        text, colour = delta(now, baseline, number)
        if number.label in {"Tokens/s/GPU", "MFU"} or number.label.startswith("$"):
            assert (colour == "off", "a tie" in str(text)) == (tied, tied), number.label
        if number.label in {"Step time", "Time to train"}:
            whole = max(2 * gain, 1 / (2 * gain)) <= tie_ratio()
            assert (colour == "off") == whole, number.label


def test_more_memory_than_a_baseline_is_no_gain(pair: tuple[Plan, Plan]) -> None:
    """Alone the tile of the peak is green where it fits; beside a baseline it is coloured as its change is."""
    less, more = sorted(pair, key=lambda plan: plan.estimate.peak_memory_bytes)
    (number,) = (each for each in numbers(more) if each.label == "Peak memory")
    assert tile_difference(more, None, number) == (None, "green")
    change, colour = tile_difference(more, less, number)
    assert (str(change)[0], colour) == ("+", "inverse")


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("beyond", [-0.01, 0.01])
def test_a_measured_step_is_grey_within_the_band_of_its_plan(
    pair: tuple[Plan, Plan], share: float, beyond: float
) -> None:
    """Beyond an end of the band it is coloured; where nothing was predicted there is no difference."""
    plan = pair[0]
    estimate = plan.estimate
    inside = estimate.lower_s + share * (estimate.upper_s - estimate.lower_s)
    end = estimate.lower_s if beyond < 0 else estimate.upper_s
    for step_s, colour in ((inside, "off"), (end * (1 + beyond), "inverse")):
        step = RunStep(step=1, loss=1.0, step_time_s=step_s, tokens_per_s=1.0, peak_memory_bytes=0.0)
        assert difference_to_plan(step, plan) == (None, "off")
        compared = replace(step, predicted_step_time_s=estimate.step_time_s)
        text, found = difference_to_plan(compared, plan)
        assert (found, "within the band" in str(text)) == (colour, colour == "off")
        assert difference_to_plan(compared, None)[1] == "inverse"


def test_every_metric_with_a_difference_says_how_it_is_coloured() -> None:
    """No page leaves it to the default, which is green and red of any difference."""
    calls = [
        (path.name, node)
        for path in sorted((ROOT / "app" / "pages").rglob("*.py"))
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "metric"
    ]
    coloured = [
        (name, node) for name, node in calls if len(node.args) > 2 or "delta" in map(_word, node.keywords)
    ]
    assert {name for name, _ in coloured} == {"headline.py", "executor.py", "campaign.py"}
    for name, node in coloured:
        (given,) = [word.value for word in node.keywords if word.arg == "delta_color"]
        assert not isinstance(given, ast.Constant), name


def _word(keyword: ast.keyword) -> str:
    """Name of a keyword."""
    return keyword.arg or ""
