"""Compressed gradients: less traffic, the work and memory of packing, and who may say so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import meshplan
from costmodel.job import TrainingJob
from costmodel.models.parameters import parameter_count
from costmodel.ops.compressed import spared_parameters
from costmodel.ops.op import gemm
from costmodel.updates.compression import parse_compression
from planner.engines.contracts import CONTRACTS
from planner.plan import Plan
from topology.base.errors import InputError, NoFeasiblePlanError

PINS = {"layout.zero_stage": 0, "layout.dp": 32, "layout.tp": 1, "layout.pp": 1}


def estimate(how: str | None, **pins: Any) -> Plan:
    """Thirty-two replicas on four nodes, whose gradients are sent so."""
    said = {} if how is None else {"job.gradient_compression": how}
    words: dict[str, Any] = {"gpu": "a100-sxm-80gb", "gpus": 32, "seq": "1k", "batch": 64, "engine": "any"}
    return meshplan.estimate("llama-3.2-1b", **words, set=PINS | pins | said)


def moved_s(plan: Plan) -> float:
    """Seconds of replica traffic, hidden or not."""
    time = plan.estimate.time
    return time.dp_s + time.hidden_s.get("dp", 0.0)


def test_sixteen_bits_halve_the_traffic_of_thirty_two() -> None:
    """Large messages: seconds follow bytes; a moment more is the latency, which stays."""
    assert moved_s(estimate("fp16")) / moved_s(estimate(None)) == pytest.approx(0.5, abs=0.02)
    assert moved_s(estimate("int8")) < moved_s(estimate("bf16")) == moved_s(estimate("fp16"))


def test_packing_takes_the_passes_that_it_is_made_of() -> None:
    """Reading four bytes and writing two, and back: 12 bytes of a parameter at the rate of an update."""
    plain, narrow = estimate(None), estimate("fp16")
    more = narrow.estimate.time.optimizer_s / plain.estimate.time.optimizer_s
    factored = estimate("powersgd:4").estimate.time.optimizer_s / plain.estimate.time.optimizer_s
    assert (factored - 1) / (more - 1) == pytest.approx(36 / 12)


def test_factors_keep_the_error_of_every_parameter() -> None:
    """Four bytes of a parameter, on every replica; casts keep nothing."""
    plain, narrow, factored = (
        estimate(how).estimate.memory_by_stage[0] for how in (None, "fp16", "powersgd:4")
    )
    parameters = parameter_count(meshplan.model("llama-3.2-1b"))
    assert narrow == plain
    assert factored.optimizer_bytes - plain.optimizer_bytes == pytest.approx(4 * parameters)


def test_small_matrices_are_sent_whole() -> None:
    """A factorization that does not halve a matrix is not made: 4·(8 + 8) values for 64."""
    small, wide = (gemm("w", m=1, n=n, k=n, saved_elements=0, output_elements=0) for n in (8, 1024))
    how = parse_compression("powersgd:4")
    assert spared_parameters([small], how, experts=False) == 0
    assert spared_parameters([wide], how, experts=False) == 1024**2 - 4 * (1024 + 1024)
    assert spared_parameters([wide], how, experts=True) == 0


@pytest.mark.parametrize(
    "text", ["zip", "powersgd", "powersgd:0", "powersgd:1000", "fp16:2", "int8:", "powersgd:²"]
)
def test_what_is_no_compression_is_refused(text: str) -> None:
    """A job says so before anything is searched."""
    with pytest.raises(InputError, match=r"job\.gradient_compression = .* is no compression of gradients"):
        TrainingJob(sequence_length=1, global_batch_size=1, gradient_compression=text)


def test_sharded_state_is_refused_and_so_are_adapters() -> None:
    """Replicas that share state reduce other messages; adapters are small."""
    with pytest.raises(NoFeasiblePlanError, match="share no state"):
        estimate("fp16", **{"layout.zero_stage": 1})
    job = TrainingJob(sequence_length=1, global_batch_size=1, gradient_compression="fp16")
    adapter = meshplan.plan("8b", gpus=1, seq="1k", batch=1, adapter="lora:r=8").request.job.adapter
    with pytest.raises(InputError, match="adapters"):
        replace(job, adapter=adapter)


def test_no_engine_is_told_it_and_each_refuses() -> None:
    """A plan for an engine that would sum whole gradients is another plan."""
    assert [name for name, one in CONTRACTS.items() if all(x.name != "compression" for x in one.limits)] == []
    assert any("statistical effect is not modelled" in line for line in estimate("int8").estimate.assumptions)
