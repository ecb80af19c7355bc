"""Tensor ranks that outnumber heads of keys and values: what is cut, gathered and computed, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.ops.layer import ShardShape, layer_ops
from costmodel.ops.op import Op, OpKind
from costmodel.stack import stack
from costmodel.switches.profile import with_switches

S = 4096.0
JOB = TrainingJob(sequence_length=4096, global_batch_size=8)
SPEC = model("qwen3-30b-a3b")
"""32 query heads over 4 heads of keys and values, of 128 numbers each."""
WIDTH = (32 + 2 * 4) * 128


def ops_of(tp: object, spec: ModelSpec = SPEC, **switches: str) -> dict[str, Op]:
    """Operations of the first layer over so many tensor ranks, by name."""
    profile = with_switches(stack("megatron-core"), switches)
    shard = ShardShape(sequence_length=S, tp=tp, sequence_parallel=True)
    found = layer_ops(Workload(model=spec, job=JOB, stack=profile), layer_runs(spec)[0].kind, shard)
    return {op.name: op for op in found}


def test_ranks_cut_the_product_and_gather_it_whole() -> None:
    """At tp 8 over 4 heads a rank multiplies an eighth of q, k and v, and every rank gets all of it."""
    ops = ops_of(8)
    assert ops["qkv"].n == WIDTH / 8
    whole = 2 * S * WIDTH
    gather, scatter = ops["qkv_gather"], ops["qkv_gradient_scatter"]
    assert (gather.collective, gather.phase, gather.collective_bytes) == ("all_gather", "forward", whole)
    assert (scatter.collective, scatter.phase, scatter.collective_bytes) == (
        "reduce_scatter",
        "backward",
        whole,
    )
    assert ops["qkv_order"].bytes == 2 * whole
    core = next(op for op in ops.values() if op.kind is OpKind.ATTENTION)
    assert (core.heads, core.kv_heads) == (4, 1)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_nothing_is_gathered_where_ranks_have_heads_of_their_own(tp: int) -> None:
    """Up to as many ranks as heads the layer is that of an engine that cannot gather."""
    assert ops_of(tp) == ops_of(tp, key_heads="whole")


def test_parameters_of_all_ranks_are_those_of_the_model() -> None:
    """No head is stored twice: shards of the product are cut without copies."""
    assert 8 * ops_of(8)["qkv"].parameters == ops_of(1)["qkv"].parameters


def test_layouts_side_by_side_are_each_its_own() -> None:
    """A table of layouts gathers in those rows alone whose ranks outnumber the heads."""
    rows = ops_of(np.array([2.0, 4.0, 8.0, 16.0]))["qkv_gather"].collective_bytes
    assert np.array_equal(np.asarray(rows) > 0, [False, False, True, True])


def test_a_gate_is_cut_and_gathered_with_its_query() -> None:
    """Gated queries are twice as wide in the product that is gathered."""
    plain, gated = (ops_of(8, replace(SPEC, attention_gate=gate))["qkv_gather"] for gate in (False, True))
    assert gated.collective_bytes - plain.collective_bytes == 2 * S * 32 * 128
