"""One measure of faster on every surface: the ratio of tokens per second, as a share with its sign."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from app.analysis.plan_diff import diff_answer
from app.quantities import format_share
from app.reports.explain import explanation_answer
from app.reports.plan import alternatives_table
from costmodel.estimate import throughput_change
from costmodel.kernels.tables import load_calibration
from planner.analysis.compare import tokens_per_s
from planner.analysis.explain import explain
from planner.plan import Plan
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from tests.trees import nodes_of

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan with alternatives."""
    found = search(understand(Flags(model="llama-3.1-8b", gpus="16")).request)
    assert isinstance(found, Plan)
    return found


@pytest.mark.parametrize(
    ("before_s", "after_s", "change"), [(114, 82, 0.3902), (82, 114, -0.2807), (1, 1, 0)]
)
def test_a_change_is_that_of_tokens_per_second(before_s: float, after_s: float, change: float) -> None:
    """114 s to 82 s for the same tokens is 39 % more of them in a second; the way back is 28 % fewer."""
    found = throughput_change(before_s, after_s)
    assert found == pytest.approx(change, abs=1e-4)
    assert (1 + found) * (1 + throughput_change(after_s, before_s)) == pytest.approx(1)


def test_alternatives_and_their_difference_tell_one_number(plan: Plan) -> None:
    """The table of alternatives, the runner-up's explanation and `plan diff` agree to the last digit shown."""
    other = plan.alternatives[0]
    slower = replace(
        plan, layout=other.layout, estimate=replace(plan.estimate, step_time_s=other.step_time_s)
    )
    told = format_share(tokens_per_s(slower) / tokens_per_s(plan) - 1, signed=True)
    table = alternatives_table(plan)
    assert table.rows[0][table.columns.index("tokens/s")].removesuffix(" (tie)") == told
    assert f"({told})" in diff_answer(plan, slower).headline
    runner_up = next(
        each
        for each in explanation_answer(plan, explain(plan, load_calibration())).sections
        if "runner-up" in str(getattr(each, "title", ""))
    )
    assert f"{told} tokens/s" in runner_up.note


def test_what_helps_is_told_in_tokens_per_second(plan: Plan) -> None:
    """Where a change keeps the tokens of a step, its gain is the ratio of steps."""
    kept = [one for one in explain(plan, load_calibration()).what_if if "microbatch" not in one.change]
    assert any(
        one.faster_by == pytest.approx(throughput_change(plan.estimate.step_time_s, one.step_time_s))
        for one in kept
    )


def test_no_table_has_a_column_of_another_measure() -> None:
    """Columns of tables that say "faster" or "slower" name no measure; tokens/s does."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for path in sorted((ROOT / "app").rglob("*.py"))
        for node in nodes_of(path)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and any(word in node.value for word in ("faster per", "slower by", "× as fast", "times as fast"))
    ]
    assert found == []
