"""State of weights that are kept and updated in sixteen bits, and gradients that take the place of activations."""

from dataclasses import replace
from typing import Any

import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.memory.stage import memory_by_stage
from costmodel.models.catalog import model
from costmodel.models.parameters import parameter_count
from costmodel.models.spec import layer_runs
from costmodel.stack import SoftwareStack, stack
from costmodel.switches.profile import with_switches

PURE = {"weight_dtype": "bf16", "gradient_dtype": "bf16", "master_dtype": "none", "moment_dtype": "bf16"}
SPEC = model("llama-3.1-8b")


def state_per_parameter(profile: SoftwareStack, layout: ParallelLayout) -> float:
    """Bytes of weights, gradients and optimizer of a parameter, of the only stage."""
    job = TrainingJob(sequence_length=512, global_batch_size=layout.dp)
    layers = tuple(run.count for run in layer_runs(SPEC))
    (stage,) = memory_by_stage(Workload(model=SPEC, job=job, stack=profile), layout, [layers], [layers])
    return (stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes) / parameter_count(SPEC)


@pytest.mark.parametrize("order", [tuple(PURE), tuple(reversed(PURE))])
@pytest.mark.parametrize("name", ["pytorch", "pytorch-plain", "torchtitan"])
def test_a_parameter_takes_eight_bytes_in_whatever_order_its_types_are_said(
    name: str, order: tuple[str, ...]
) -> None:
    """Weight, gradient and two moments of two bytes each, whole on one GPU and on every replica."""
    profile = with_switches(stack(name), {switch: PURE[switch] for switch in order})
    for layout in (ParallelLayout(), ParallelLayout(dp=8)):
        assert state_per_parameter(profile, layout) == pytest.approx(8.0, rel=1e-9)


@pytest.mark.parametrize("name", ["pytorch", "torchtitan"])
def test_shards_of_it_are_an_eighth_beside_what_is_gathered(name: str) -> None:
    """At ZeRO-3 all of it is sharded; at ZeRO-2 whole weights are gathered from their shards."""
    profile = with_switches(stack(name), PURE)
    sharded = {stage: ParallelLayout(dp=8, zero_stage=stage, shard_degree=8) for stage in (2, 3)}
    assert state_per_parameter(profile, sharded[3]) == pytest.approx(8.0 / 8, rel=1e-9)
    assert state_per_parameter(profile, sharded[2]) == pytest.approx(2.0 + 8.0 / 8, rel=1e-9)


@pytest.mark.parametrize("length", [512, 4096, 65_536])
def test_the_only_microbatch_keeps_what_its_gradients_leave(length: int) -> None:
    """max(A, G) of recomputed layers in place of A + G, while layers run backward; of two microbatches both."""
    layers = tuple(run.count for run in layer_runs(SPEC))

    def peak(profile: SoftwareStack, batch: int) -> float:
        work = Workload(
            model=SPEC, job=TrainingJob(sequence_length=length, global_batch_size=batch), stack=profile
        )
        (stage,) = memory_by_stage(work, ParallelLayout(recompute="full"), [layers], [layers])
        return stage.allocated_bytes

    usual = stack("pytorch")
    demand = replace(usual, memory=replace(usual.memory, frees_loss=False))  # the moment of the layers alone
    ahead = replace(demand, memory=replace(demand.memory, gradients_on_demand=False))
    of_layers = parameter_count(SPEC) - 2 * SPEC.vocab_size * SPEC.hidden_size
    kept = sum(layers) * length * SPEC.hidden_size * 2.0
    spared = min(kept, of_layers * demand.memory.gradient_bytes)
    assert peak(ahead, 1) - peak(demand, 1) == pytest.approx(spared, rel=0.01)
    assert peak(ahead, 2) == pytest.approx(peak(demand, 2), rel=1e-9)


def with_memory(profile: SoftwareStack, **changed: Any) -> SoftwareStack:
    """A profile whose memory is kept otherwise."""
    return replace(profile, memory=replace(profile.memory, **changed))


def test_paged_moments_are_none_of_the_allocators_and_master_weights_are() -> None:
    """Weight and gradient of two bytes each are left of eight; of sixteen the moments alone go."""
    pure = with_switches(stack("pytorch"), PURE)
    assert state_per_parameter(with_memory(pure, pages_moments=True), ParallelLayout()) == pytest.approx(4.0)
    wide = stack("megatron-core")
    whole, paged = (
        state_per_parameter(each, ParallelLayout()) for each in (wide, with_memory(wide, pages_moments=True))
    )
    assert whole - paged == pytest.approx(wide.memory.moment_bytes)


def test_updates_in_the_backward_leave_the_gradient_of_the_largest_unit() -> None:
    """Llama 3.1 8B: its head of 128,256 × 4,096 is larger than any layer; the other gradients go as they come."""
    pure = with_switches(stack("pytorch"), PURE)
    lean = state_per_parameter(with_memory(pure, updates_in_backward=True), ParallelLayout())
    gradients = 2.0 * 128_256 * 4_096 / parameter_count(SPEC)
    assert lean == pytest.approx(6.0 + gradients, rel=1e-9)


def test_a_second_copy_of_weights_is_beside_what_all_ranks_share() -> None:
    """ZeRO-3 over 64 ranks with hpZ of 8: sixteen bytes over 64, and two of sixteen-bit weights over 8."""
    profile = with_memory(stack("deepspeed"), second_shard=8)
    layout = ParallelLayout(dp=64, zero_stage=3, shard_degree=64)
    more = state_per_parameter(profile, layout) - state_per_parameter(stack("deepspeed"), layout)
    assert more == pytest.approx(2.0 / 8)
    assert state_per_parameter(profile, replace(layout, zero_stage=2)) == state_per_parameter(
        stack("deepspeed"), replace(layout, zero_stage=2)
    )
