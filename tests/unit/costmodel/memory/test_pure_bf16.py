"""State of weights that are kept and updated in sixteen bits, and gradients that take the place of activations."""

from dataclasses import replace

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
