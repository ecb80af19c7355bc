"""Experts of a latent width agree with counts by hand: products, what is sent, what every rank holds."""

from dataclasses import replace

import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.models.catalog import model
from costmodel.models.parameters import layer_parameters
from costmodel.models.spec import LayerKind, ModelSpec, layer_runs
from costmodel.ops.layer import ShardShape, forward_flop, layer_ops
from costmodel.ops.op import Op
from costmodel.stack import stack

S, H, L, F, SHARED = 4096.0, 4096, 1024, 2688, 5376
EXPERTS, CHOSEN = 512, 22
JOB = TrainingJob(sequence_length=4096, global_batch_size=8)
SUPER = model("nemotron-3-super-120b-a12b")
WIDE = replace(SUPER, moe_latent_size=0)


def routed(spec: ModelSpec) -> LayerKind:
    """Its kind of layer with experts."""
    return next(run.kind for run in layer_runs(spec) if run.kind.mlp == "moe")


def ops_of(spec: ModelSpec, **degrees: float) -> dict[str, Op]:
    """Operations of its layer of experts by name."""
    ops = layer_ops(
        Workload(model=spec, job=JOB, stack=stack("megatron-core")),
        routed(spec),
        ShardShape(sequence_length=S, **degrees),
    )
    return {op.name: op for op in ops}


def test_a_layer_of_latent_experts_multiplies_what_its_shapes_say() -> None:
    """Router and projections at the width of the layer, 22 experts of two products at the latent one."""
    products = H * EXPERTS + 2 * H * L + CHOSEN * 2 * L * F + 2 * H * SHARED
    assert forward_flop(tuple(ops_of(SUPER).values())) == 2 * S * products


def test_operations_hold_the_parameters_of_the_layer() -> None:
    """Router biases are buffers of the operation, as they are of the layer."""
    assert sum(op.parameters for op in ops_of(SUPER).values()) == layer_parameters(SUPER, routed(SUPER))


@pytest.mark.parametrize("name", ["dispatch", "combine"])
def test_tokens_travel_at_the_latent_width(name: str) -> None:
    """A quarter of the bytes of the same experts at the width of the layer."""
    latent, wide = (ops_of(spec, ep=8)[name].collective_bytes for spec in (SUPER, WIDE))
    assert latent == wide * L / H > 0


def test_each_rank_projects_its_own_tokens_with_whole_matrices() -> None:
    """Of four tensor-parallel ranks each has a quarter of the tokens and all of both projections."""
    for name in ("latent_down", "latent_up"):
        op = ops_of(SUPER, tp=4, ep=8, sequence_parallel=True)[name]
        assert (op.m, op.parameters) == (S / 4, H * L)
    kept = {name: ops_of(SUPER)[name].saved_bytes for name in ("router", "latent_down", "latent_up")}
    assert kept == {"router": 2 * S * H, "latent_down": 0, "latent_up": 2 * S * L}
