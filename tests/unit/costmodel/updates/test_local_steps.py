"""Workers that run apart: a part of the traffic, what the outer optimizer keeps, and where they may be."""

from __future__ import annotations

from typing import Any

import pytest

import meshplan
from costmodel.job import TrainingJob
from costmodel.models.parameters import parameter_count
from costmodel.updates.local_steps import parse_local_steps
from planner.plan import Plan
from topology.base.errors import InputError, NoFeasiblePlanError

PINS = {"layout.zero_stage": 0, "layout.dp": 32, "layout.tp": 1, "layout.pp": 1}
WORDS: dict[str, Any] = {"gpu": "a100-sxm-80gb", "gpus": 32, "seq": "1k", "batch": 64, "engine": "any"}
SITES = {"cluster.nic_bandwidth_bytes_per_s": "1Gbit/s"}


def estimate(how: str | None, **pins: Any) -> Plan:
    """Thirty-two replicas on four nodes that agree so."""
    said = {} if how is None else {"job.local_steps": how}
    return meshplan.estimate("llama-3.2-1b", **WORDS, set=PINS | pins | said)


def moved_s(plan: Plan) -> float:
    """Seconds of replica traffic, hidden or not."""
    time = plan.estimate.time
    return time.dp_s + time.hidden_s.get("dp", 0.0)


@pytest.mark.parametrize("steps", [1, 10, 500])
def test_of_a_step_is_the_part_of_what_is_exchanged(steps: int) -> None:
    """One exchange in H steps, spread over them."""
    assert moved_s(estimate(f"diloco:{steps}")) == pytest.approx(moved_s(estimate(None)) / steps)


def test_an_outer_optimizer_keeps_weights_and_momentum() -> None:
    """Eight bytes of a parameter on every worker; averages keep nothing."""
    plain, averaged, outer = (
        estimate(how).estimate.memory_by_stage[0] for how in (None, "average:8", "diloco:8")
    )
    parameters = parameter_count(meshplan.model("llama-3.2-1b"))
    assert averaged == plain
    assert outer.optimizer_bytes - plain.optimizer_bytes == pytest.approx(8 * parameters)


def test_sites_behind_a_slow_link_are_worth_using() -> None:
    """A gigabit between nodes: one node is the best together, all four where workers run apart."""
    words = {**WORDS, "batch": 512, "stack": "torchtitan"}
    together = meshplan.plan("llama-3.2-1b", **words, set=SITES)
    apart = meshplan.plan("llama-3.2-1b", **words, set={**SITES, "job.local_steps": "diloco:100"})
    assert (together.layout.num_gpus, apart.layout.num_gpus) == (8, 32)
    assert together.estimate.step_time_s > 3 * apart.estimate.step_time_s
    assert any("statistical effect is not modelled" in line for line in apart.assumptions)


def test_workers_that_share_state_are_refused() -> None:
    """ZeRO-1 shares it; the rule says so."""
    with pytest.raises(NoFeasiblePlanError, match="workers"):
        estimate("diloco:8", **{"layout.zero_stage": 1})


@pytest.mark.parametrize("text", ["diloco", "diloco:0", "sgd:8", "diloco:1e9", ""])
def test_what_is_no_way_to_run_apart_is_refused(text: str) -> None:
    """A kind that there is, and its steps."""
    with pytest.raises(InputError):
        parse_local_steps(text)


def test_compression_beside_it_is_refused() -> None:
    """What both would send is nowhere said."""
    with pytest.raises(InputError, match="no compressed gradients"):
        TrainingJob(
            sequence_length=8, global_batch_size=8, local_steps="diloco:8", gradient_compression="fp16"
        )
