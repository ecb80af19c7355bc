"""A user who pins full recomputation gets it: every layer, N layers of every rank, or what memory asks for."""

from dataclasses import replace

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.plan import Plan, PlanRequest, from_json, to_json
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.rules.check import user_pins
from planner.search.given_layout import plan_of_layout
from planner.search.search import search
from planner.search.verify import verify
from topology.base.errors import InputError
from topology.builders import default_cluster

CAL = load_calibration()
PINS = {"tp": "2", "pp": "2", "dp": "2", "microbatch_size": "1"}
REQUEST = PlanRequest(
    model=model("llama-3.1-8b"),
    cluster=default_cluster("h100-sxm", 8).spec,
    job=TrainingJob(sequence_length=4096, global_batch_size=32),
)


def given(**pins: str) -> Plan:
    """The plan of a layout that a user gives."""
    found = plan_of_layout(replace(REQUEST, pins=user_pins({**PINS, **pins})), CAL)
    assert isinstance(found, Plan)
    return found


def test_full_is_every_layer_of_a_given_layout() -> None:
    """All 32; HFU over MFU says the same: 4/3 but for the head, which is not repeated."""
    plan = given(recompute="full")
    assert (plan.layout.recompute, sum(plan.recompute_of_stage)) == ("full", 32)
    assert plan.recompute_of_stage == plan.layers_of_stage
    assert plan.estimate.hfu / plan.estimate.mfu == pytest.approx(4 / 3, rel=0.03)


def test_a_number_is_of_every_rank_and_auto_what_memory_asks_for() -> None:
    """Three of each rank's layers; an 8B on eight H100 need recompute nothing. More takes longer."""
    plans = [given(recompute=f"full{count}") for count in (":auto", ":3", "")]
    assert [plan.recompute_of_stage for plan in plans[:2]] == [(0, 0), (3, 3)]
    assert sum(plans[2].recompute_of_stage) == 32
    seconds = [plan.estimate.step_time_s for plan in plans]
    peaks = [plan.estimate.peak_memory_bytes for plan in plans]
    assert seconds == sorted(seconds)
    assert peaks == sorted(peaks, reverse=True)
    assert given().recompute_of_stage == (0, 0)


@pytest.mark.parametrize("pins", [{"recompute": "full"}, {"recompute": "full", "tp": "2", "pp": "2"}])
def test_a_search_keeps_to_every_layer_and_proves_it(pins: dict[str, str]) -> None:
    """Also by the slow path, and after the plan was written and read."""
    found = search(replace(REQUEST, pins=user_pins(pins)), CAL)
    assert isinstance(found, Plan)
    assert sum(found.recompute_of_stage) == 32
    assert found.optimality.status == "proven"
    assert [claim for claim in verify(from_json(to_json(found)), CAL).claims if not claim.holds] == []


def test_no_layout_of_a_search_is_better_than_it_says() -> None:
    """The layout that it chose, given, takes the same step; the search's own count takes less."""
    whole = search(replace(REQUEST, pins=user_pins({"recompute": "full"})), CAL)
    free = search(replace(REQUEST, pins=user_pins({"recompute": "full:auto"})), CAL)
    assert isinstance(whole, Plan)
    assert isinstance(free, Plan)
    x = whole.layout
    pins = {name: str(getattr(x, name)) for name in ("tp", "pp", "dp", "cp", "virtual_stages", "zero_stage")}
    pins |= {"microbatch_size": str(x.microbatch_size), "schedule": x.schedule, "recompute": "full"}
    again = plan_of_layout(replace(REQUEST, pins=user_pins(pins)), CAL)
    assert isinstance(again, Plan)
    assert again.estimate.step_time_s == pytest.approx(whole.estimate.step_time_s)
    assert free.estimate.step_time_s < whole.estimate.step_time_s


def test_a_search_cannot_keep_to_a_number() -> None:
    """It would be of stages that it has yet to cut."""
    with pytest.raises(InputError, match="a search cannot keep to a number"):
        search(replace(REQUEST, pins=user_pins({"recompute": "full:3"})), CAL)


@pytest.mark.parametrize("text", ["full:0", "full:-1", "full:some", "full:99999999999", "full:"])
def test_what_is_no_number_of_layers_is_refused(text: str) -> None:
    """With what may stand after the colon."""
    with pytest.raises(InputError, match=r"layout\.recompute cannot be"):
        user_pins({"recompute": text})


def test_a_published_run_of_2021_is_estimated_from_the_command_line() -> None:
    """Narayanan et al. (arXiv 2104.04473, table 1): 39.1B on 512 A100, every layer again, 138 TFLOP/s.

    A step of 1,536 sequences took 14.45 s.
    """
    sizes = {"num_layers": 48, "hidden_size": 8192, "intermediate_size": 32768, "num_attention_heads": 64}
    settings = {
        **{f"model.{name}": size for name, size in sizes.items()},
        "model.num_key_value_heads": 64, "model.head_dim": 128, "layout.tp": 8, "layout.pp": 2,
        "layout.microbatch_size": 4, "layout.zero_stage": 0, "layout.recompute": "full",
    }  # fmt: skip
    flags = Flags(
        model="megatron-22b", gpu="a100-sxm-80gb", gpus="512", global_batch_size="1536", precision="fp16",
        stack="megatron-lm-2021", settings=tuple(f"{name}={value}" for name, value in settings.items()),
    )  # fmt: skip
    found = plan_of_layout(understand(flags).request, CAL)
    assert isinstance(found, Plan)
    assert sum(found.recompute_of_stage) == 48
    assert found.estimate.step_time_s == pytest.approx(14.45, rel=0.08)
