"""Layers with a recurrence agree with counts by hand: operations, shards, saved activations, state."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.memory.activations import saved_bytes
from costmodel.models.catalog import model
from costmodel.models.parameters import layer_parameters
from costmodel.models.recurrence import Recurrence
from costmodel.models.spec import (
    LayerKind,
    ModelSpec,
    layer_order,
    layer_runs,
    recurrence_of,
)
from costmodel.ops.layer import ShardShape, forward_flop, layer_ops, model_flop_per_step
from costmodel.ops.op import Op, OpKind
from costmodel.stack import stack
from costmodel.training.op_times import kernel_times
from topology.base.errors import InputError
from topology.catalog import gpu

S = 4096.0
JOB = TrainingJob(sequence_length=4096, global_batch_size=8)
HYBRIDS = (
    "nemotron-h-8b",
    "nemotron-3-nano-30b-a3b",
    "qwen3-next-80b-a3b",
    "kimi-linear-48b-a3b",
    "minimax-text-01",
)


def recurrent(spec: ModelSpec) -> LayerKind:
    """The first kind of layer with a recurrence."""
    return next(run.kind for run in layer_runs(spec) if run.kind.attention == "recurrence")


def ops_of(spec: ModelSpec, kind: LayerKind, name: str = "megatron-core", **degrees: float) -> tuple[Op, ...]:
    """Operations of one layer."""
    return layer_ops(
        Workload(model=spec, job=JOB, stack=stack(name)), kind, ShardShape(sequence_length=S, **degrees)
    )


def test_a_mamba_2_layer_computes_what_its_shapes_say() -> None:
    """Nemotron-H-8B: projections to 2·8192 + 2·8·128 + 128, a scan in chunks of 128, and back from 8192."""
    spec = model("nemotron-h-8b")
    projections = 2 * 4096 * (2 * 8192 + 2 * 8 * 128 + 128) + 2 * 8192 * 4096
    inside = 2 * 128 * (8 * 128 + 128 * 64)  # scores of 8 groups and outputs of 128 heads, over a chunk
    states = 4 * 128 * 128 * 64  # into and out of the state of every head
    assert forward_flop(ops_of(spec, recurrent(spec))) == S * (projections + inside + states)


@pytest.mark.parametrize("name", ["mamba2-1.3b", "mamba2-2.7b", "mamba-codestral-7b"])
def test_mamba_2_computes_what_megatron_counts_of_it(name: str) -> None:
    """`mamba_layer_flops` of Megatron-LM's training.py: projections, 7 FLOP a number of the state, and the head.

    It takes the scan as sequential; squares inside chunks make up to 1 % of all more.
    """
    spec = model(name)
    r, H = recurrence_of(spec), spec.hidden_size
    inner = 2 * H
    layer = 2 * H * (2 * inner + 2 * r.key_width + r.value_heads) + 7 * inner * r.key_dim + 2 * inner * H
    counted = S * (spec.num_layers * layer + 2 * H * spec.vocab_size)
    assert model_flop_per_step(spec, JOB) / JOB.global_batch_size / 3 == pytest.approx(counted, rel=0.01)


def test_a_gated_delta_layer_computes_what_its_shapes_say() -> None:
    """Qwen3-Next: a scan of 32 heads of 128 by 128 in chunks of 64, whose triangular inverse costs 64³/3."""
    spec = model("qwen3-next-80b-a3b")
    scan = next(op for op in ops_of(spec, recurrent(spec)) if op.kind is OpKind.SCAN)
    squares = 2 * 64 * 5 * 128  # K·Kᵀ, inverse·K, Q·Kᵀ over keys; inverse·V, scores·V over values
    assert scan.flop == pytest.approx(S * 32 * (squares + 64 * 64 / 3 + 6 * 128 * 128))


def test_a_lightning_layer_computes_what_its_shapes_say() -> None:
    """MiniMax-Text-01: scores and outputs of 64 heads inside blocks of 256, and the state twice."""
    spec = model("minimax-text-01")
    scan = next(op for op in ops_of(spec, recurrent(spec)) if op.kind is OpKind.SCAN)
    assert scan.flop == S * 64 * (4 * 256 * 128 + 4 * 128 * 128)


@pytest.mark.parametrize("name", HYBRIDS)
def test_ranks_share_a_recurrence_by_its_heads(name: str) -> None:
    """Over 4 ranks everything of a mixer adds up, but for what each rank holds whole."""
    spec = model(name)
    r, kind = spec.recurrence, replace(recurrent(spec), mlp="none")
    assert r is not None
    whole, shard = (sum(op.parameters for op in ops_of(spec, kind, tp=tp)) for tp in (1, 4))
    held = r.whole_parameters(spec.hidden_size) + spec.hidden_size  # and the norm before it
    assert (whole, 4 * shard - 3 * held) == (layer_parameters(spec, kind), pytest.approx(whole))
    one, four = (forward_flop(ops_of(spec, kind, tp=tp)) for tp in (1, 4))
    gates = 2 * S * spec.hidden_size * sum(r.shape.gate_ranks)
    assert 4 * four - 3 * gates == pytest.approx(one)


def test_a_mamba_2_layer_keeps_what_its_fused_kernel_keeps() -> None:
    """The layer's input, the normed input, what was projected, decays, and the output before and after its norm."""
    spec = model("nemotron-h-8b")
    kept = saved_bytes(ops_of(spec, recurrent(spec)), "none", ShardShape(sequence_length=S), 4096)
    projected = 2 * (2 * 8192 + 2 * 8 * 128 + 128)
    assert kept == S * (2 * 4096 + 2 * 4096 + projected + 4 * 128 + 2 * 8192 + 2 * 8192)


def test_a_scan_takes_its_roofline() -> None:
    """Forward it takes as long as its bytes, or its operations at the peak rate, whichever is longer."""
    cal, h100, spec = load_calibration(), gpu("h100-sxm"), model("nemotron-h-8b")
    scan = next(op for op in ops_of(spec, recurrent(spec)) if op.kind is OpKind.SCAN)
    busy = replace(scan, bytes=0.0)
    (found,) = kernel_times(cal, h100, [[busy]], 1)
    assert found.elementwise_s[0] == pytest.approx(scan.flop / h100.peak("bf16"))
    (moved,) = kernel_times(cal, h100, [[replace(scan, flop=0.0)]], 1)
    assert moved.elementwise_s[0] >= scan.bytes / h100.memory_bandwidth_bytes_per_s


def test_the_order_of_layers_is_that_of_the_pattern() -> None:
    """Kimi-Linear: one dense layer, then attention on every fourth and on the last."""
    kinds = [kind for kind, count in layer_order(model("kimi-linear-48b-a3b")) for _ in range(count)]
    attention = [layer for layer, kind in enumerate(kinds, 1) if kind == 2]
    assert (kinds[0], attention) == (0, [4, 8, 12, 16, 20, 24, 27])


def test_a_sparse_layer_scores_all_keys_and_attends_to_a_few() -> None:
    """DeepSeek-V3.2 at 8,192 tokens: 64 small heads score half the square, 128 heads attend to 2,048 keys."""
    spec, long = model("deepseek-v3.2"), TrainingJob(sequence_length=8192, global_batch_size=8)
    shard, kind = ShardShape(sequence_length=8192.0), layer_runs(spec)[-1].kind
    ops = {
        op.name: op
        for op in layer_ops(Workload(model=spec, job=long, stack=stack("megatron-core")), kind, shard)
    }
    pairs = 8192 * 2048 - 2048**2 / 2
    assert ops["index_scores"].flop == 2 * 64 * 128 * 8192**2 / 2
    assert ops["attention"].flop == 2 * 128 * pairs * (
        ops["attention"].head_dim + ops["attention"].value_head_dim
    )


def test_heads_that_do_not_group_are_refused() -> None:
    """A pattern without its recurrence, or 32 value heads of 5 key heads, is no model."""
    spec = model("qwen3-next-80b-a3b")
    odd = Recurrence(kind="gated-delta", key_heads=5, value_heads=32, key_dim=128, value_dim=128)
    for change in (
        {"recurrence": None},
        {"recurrence": odd},
        {"layer_pattern": "AX"},
        {"num_dense_layers": 1},
    ):
        with pytest.raises(InputError, match="is not possible"):
            replace(spec, **change)


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_recurrence_that_is_recomputed_keeps_its_input_alone(name: str) -> None:
    """Every operation of the mixer runs again; layers of attention stay as they are."""
    spec, plain = model(name), stack("megatron-core")
    again = replace(plain, timing=replace(plain.timing, recomputed_modules=("gdn",)))
    none = replace(plain, timing=replace(plain.timing, recomputed_modules=()))
    for kind in {run.kind for run in layer_runs(spec)}:
        kept, whole = (
            layer_ops(Workload(model=spec, job=JOB, stack=each), kind, ShardShape(sequence_length=S))
            for each in (again, none)
        )
        if kind.attention != "recurrence":
            assert kept == whole
            continue
        mixer = [op for op in kept if op.repeated]
        assert {op.kind for op in mixer} >= {OpKind.GEMM, OpKind.SCAN}
        inputs = 2 * S * spec.hidden_size
        assert sum(float(op.saved_bytes_selective) for op in mixer) == inputs
        assert sum(float(op.saved_bytes_selective) for op in kept) < sum(
            float(op.saved_bytes_selective) for op in whole
        )


@pytest.mark.parametrize("name", ["nemotron-h-8b", "qwen3-next-80b-a3b"])
def test_context_ranks_swap_heads_for_tokens_around_the_state(name: str) -> None:
    """As megatron-core's `tensor_a2a_cp2hp` and back: what was projected goes out, the normed output returns.

    Each rank computes the scan of its share of the heads over the whole sequence: FLOP of its tokens. On one
    rank nothing is sent; forward and backward send alike.
    """
    spec, cp, tp = model(name), 4, 2
    r = recurrence_of(spec)
    alone = ops_of(spec, recurrent(spec), tp=tp, sequence_parallel=1)
    split = ops_of(spec, recurrent(spec), tp=tp, cp=cp, sequence_parallel=1)
    assert forward_flop(split) == pytest.approx(forward_flop(alone) / cp, rel=1e-12)
    sent = {op.name: float(op.collective_bytes) for op in split if op.axis == "cp" and op.collective_bytes}
    out, back = (2 * S / cp * width / tp for width in (r.shape.input_width, r.value_width))
    assert sent == {
        "recurrence_heads": out, "recurrence_heads_gradient": out,
        "recurrence_tokens": back, "recurrence_tokens_gradient": back,
    }  # fmt: skip
    assert not any(op.axis == "cp" and np.any(op.collective_bytes) for op in alone)
    assert {op.collective for op in split if op.axis == "cp"} == {"all_to_all"}


def test_ranks_beyond_the_groups_get_a_copy_of_one() -> None:
    """Nemotron-H-8B has 8 groups: at tp 4 and cp 8 each is sent four times (megatron-core `group_repeat_count`)."""
    spec = model("nemotron-h-8b")
    r = recurrence_of(spec)
    ops = {op.name: op for op in ops_of(spec, recurrent(spec), tp=4, cp=8, sequence_parallel=1)}
    width = r.shape.input_width + 2 * r.key_width * (4 * 8 / r.key_heads - 1)
    assert ops["recurrence_heads"].collective_bytes == 2 * S / 8 * width / 4
    assert (ops["recurrence_heads"].count, ops["recurrence_tokens"].count) == (5, 1)
