"""A cache of eight bits beside the proposal: what it saves, as its own question answers it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.reports.serving.plan import serving_answer
from planner.analysis.serving.fleets import find_fleet
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving
from planner.serving.plan import ServingPlan

LOAD = ServeFlags(
    model="8b", gpu="h100-sxm", weights="bf16", mode="aggregated", rate="60/s", input_tokens="8000",
    output_tokens="1000", ttft="2s", tpot="25ms", percentile="90",
)  # fmt: skip


def planned(flags: ServeFlags) -> ServingPlan:
    """The answer to a question."""
    return find_fleet(understand_serving(flags))


def test_a_narrower_cache_saves_what_its_own_question_answers() -> None:
    """The row is that of `--kv fp8`, with its note on quality, and is not proposed."""
    plan = planned(LOAD)
    (row,) = [fleet for fleet in plan.other_fleets if fleet.kv_dtype]
    narrow = planned(replace(LOAD, kv_dtype="fp8"))
    assert (plan.kv_dtype, narrow.kv_dtype) == ("bf16", "fp8")
    assert (row.num_gpus, row.usd_per_hour, row.proposed) == (
        narrow.num_gpus,
        narrow.estimate.usd_per_hour,
        False,
    )
    assert plan.estimate.usd_per_hour is not None
    assert narrow.estimate.usd_per_hour is not None
    assert row.saved == pytest.approx(1 - narrow.estimate.usd_per_hour / plan.estimate.usd_per_hour)
    pairs = dict(serving_answer(plan).sections[0].pairs)  # type: ignore[union-attr]  # the first is of pairs
    assert "--kv fp8" in pairs["narrower cache"]
    assert "changes answers" in pairs["narrower cache"]


@pytest.mark.parametrize("flags", [{"kv_dtype": "fp8"}, {"kv_dtype": "bf16"}, {"gpu": "a100-sxm-80gb"}])
def test_a_format_that_was_named_or_that_a_gpu_has_not_is_compared_with_nothing(
    flags: dict[str, str],
) -> None:
    """A question that names its cache has its answer."""
    plan = planned(replace(LOAD, **flags, rate="5/s", tpot="60ms"))
    assert not any(fleet.kv_dtype for fleet in plan.other_fleets)
