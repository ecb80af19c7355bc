"""Ranges of GPUs: which numbers are planned, and that the best of them is taken."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.actions.plan import plan_asked
from app.cli import run
from costmodel.campaign.record import KEPT
from planner.campaign.finish import campaign_or_none
from planner.plan import Plan
from planner.questions.flags import Flags
from planner.questions.gpu_ranges import read_gpu_range, suited_gpus
from planner.questions.training import understand
from planner.search.search import search
from topology.base.errors import InputError, NoFeasiblePlanError


@given(
    low=st.integers(1, 600), more=st.integers(0, 600), batch=st.integers(1, 4096),
    node=st.sampled_from((1, 4, 8)), most=st.integers(3, 8),
)  # fmt: skip
def test_the_numbers_planned_share_most_with_the_batch(
    low: int, more: int, batch: int, node: int, most: int
) -> None:
    """In the range, of whole nodes or parts of one, and none left out shares more than one that is taken."""
    high = low + more
    found = suited_gpus(low, high, batch, node, most)
    every = [n for n in range(low, high + 1) if n % node == 0 or (n < node and node % n == 0)]
    assert high in found
    assert len(found) <= most
    assert set(found) <= {*every, high}
    inner = [n for n in found if n not in (high, min(every, default=high))]
    left = set(every) - set(found)
    if inner and left:
        assert min(math.gcd(n, batch) for n in inner) >= max(math.gcd(n, batch) for n in left)


def test_the_default_batch_takes_the_gpus_that_divide_it(capsys: pytest.CaptureFixture[str]) -> None:
    """576 GPUs and 512 sequences: 512 GPUs, none idle, and as fast as any number planned alone."""
    assert run(["--model", "8b", "--gpus", "..576", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    alone = {}
    for number in suited_gpus(1, 576, 512, 8):
        found = search(understand(Flags(model="8b", gpus=str(number))).request)
        if isinstance(found, Plan):
            alone[number] = found.estimate.step_time_s
    assert plan["request"]["cluster"]["nodes"][0]["count"] * 8 == 512
    assert plan["estimate"]["step_time_s"] == min(alone.values())


def test_ranges_of_both_are_planned_together() -> None:
    """Of 8 to 24 GPUs and 48 to 96 sequences, one plan, whose note says the numbers tried."""
    plan, _ = plan_asked(Flags(model="8b", gpus="8..24", global_batch_size="48..96", top="1"))
    assert plan.request.cluster.num_gpus == 24
    assert "24 GPUs, of 3 numbers planned between 8 and 24" in plan.assumptions[-1]


@pytest.mark.parametrize("text", ["9..8", "..", "0..8", "8..x"])
def test_what_is_no_range_of_gpus_is_refused(text: str) -> None:
    """The smaller end first, both numbers."""
    with pytest.raises(InputError):
        read_gpu_range(text, 1024)


@pytest.mark.parametrize(("gpus", "rented"), [("..8", 8), ("2..16", 8), ("..4", 4)])
def test_nodes_are_rented_whole_in_a_range_too(gpus: str, rented: int) -> None:
    """Half a node costs what all of it does: cheapest is a whole one, where the range holds one."""
    asked = Flags(model="llama-3.2-1b", gpus=gpus, objective="cost", tokens="10B", sequence_length="2048")
    result = plan_asked(asked)[0]
    assert isinstance(result, Plan)
    assert result.request.cluster.num_gpus >= rented


def test_the_cheapest_run_keeps_its_deadline() -> None:
    """Fewer GPUs are cheaper and too slow: the cheapest that keep the deadline are taken, else it is refused."""
    asked = Flags(model="8b", gpus="32", objective="cost", tokens="20B", top="1")
    slow, _ = plan_asked(asked)
    run_of_slow = campaign_or_none(slow)
    assert run_of_slow is not None
    hours = 24 * run_of_slow.days.p50 / 2
    quick, _ = plan_asked(replace(asked, deadline=f"{hours:.0f}h"))
    run_of_quick = campaign_or_none(quick)
    assert run_of_quick is not None
    assert run_of_quick.deadline_chance is not None
    assert run_of_quick.deadline_chance >= KEPT
    assert quick.layout.num_gpus > slow.layout.num_gpus
    with pytest.raises(NoFeasiblePlanError, match="keeps the deadline"):
        plan_asked(replace(asked, deadline="1h"))
