"""What kernel and collective times keep for every shape: sign, order, continuity, broadcasting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.kernels import compute
from costmodel.kernels.collectives import OPS, collective_time
from costmodel.kernels.tables import load_calibration
from topology import catalog
from topology.base.units import MIB
from topology.builders import default_cluster

CAL = load_calibration()
GPUS = {
    name: catalog.gpu(name) for name in ("a100-sxm-80gb", "h100-sxm", "b200-sxm", "l40s", "mi300x", "gb200")
}
HIERARCHIES = {name: default_cluster(name, 512).hierarchy for name in ("h100-sxm", "a100-sxm-80gb", "mi300x")}
gpus = st.sampled_from(sorted(GPUS))
dtypes = st.sampled_from(["bf16", "fp8", "fp4", "int8", "int4"])
sizes = st.integers(1, 100_000)


@settings(max_examples=100, deadline=None)
@given(gpus, dtypes, sizes, sizes, sizes, st.floats(1.0, 4.0))
def test_a_larger_gemm_never_takes_less_time(gpu, dtype, m, n, k, factor):
    """Growing any side of a GEMM never shortens it."""
    shapes = np.array([[m, n, k], [m * factor, n, k], [m, n * factor, k], [m, n, k * factor]], dtype=float)
    seconds = compute.gemm_time(CAL, GPUS[gpu], dtype, *shapes.T).seconds
    assert (seconds[1:] >= seconds[0] * (1 - 1e-9)).all()


@settings(max_examples=100, deadline=None)
@given(gpus, dtypes, st.floats(1.0, 60_000.0), sizes, sizes)
def test_gemm_time_is_continuous_in_tokens(gpu, dtype, m, n, k):
    """A thousandth more tokens is less than half a percent more time."""
    a, b = compute.gemm_time(CAL, GPUS[gpu], dtype, [m, 1.001 * m], n, k).seconds
    assert a <= b <= 1.005 * a


@settings(max_examples=60, deadline=None)
@given(gpus, st.integers(1, 64), st.sampled_from([8, 16, 40, 96]), st.floats(32, 60_000), st.floats(1.0, 2.0))
def test_attention_grows_with_length_and_batch(gpu, batch, heads, tokens, factor):
    """Longer sequences and larger batches never take less time, in prefill and in decode."""
    length = np.array([tokens, tokens * factor, tokens])
    count = np.array([batch, batch, batch * factor])
    shape = {"batch": count, "heads": heads, "kv_heads": 8, "kv_tokens": length, "head_dim": 128}
    for cache_write in (False, True):
        prefill = compute.attention_prefill(
            CAL, GPUS[gpu], **shape, query_tokens=length, cache_write=cache_write
        ).seconds
        assert (prefill[1:] >= prefill[0] * (1 - 1e-9)).all()
    decode = compute.attention_decode(CAL, GPUS[gpu], **shape).seconds
    assert (decode[1:] >= decode[0] * (1 - 1e-9)).all()


@settings(max_examples=60, deadline=None)
@given(
    gpus,
    st.sampled_from(["bf16", "fp8", "int4"]),
    st.floats(1, 30_000),
    st.sampled_from([(128, 8), (8, 2), (256, 8)]),
)
def test_twice_the_tokens_never_make_experts_faster(gpu, dtype, tokens, experts):
    """A fused MoE layer takes no less time with twice the tokens."""
    count, chosen = experts
    seconds = compute.moe_ffn(
        CAL,
        GPUS[gpu],
        dtype,
        tokens=[tokens, 2 * tokens],
        hidden_size=4096,
        intermediate_size=2048,
        top_k=chosen,
        num_experts=count,
    ).seconds
    assert seconds[1] >= seconds[0]


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(HIERARCHIES)),
    st.sampled_from(OPS),
    st.floats(1.0, 1e4),
    st.sampled_from([2, 3, 4, 8, 16, 32, 64]),
    st.sampled_from([1, 2, 4, 8]),
)
def test_collectives_are_positive_and_continuous_in_bytes(gpu, op, mebibytes, size, stride):
    """Any group's time is positive, and a thousandth more bytes is less than a percent more time."""
    h = HIERARCHIES[gpu]
    a, b = collective_time(CAL, h, op, np.array([1.0, 1.001]) * mebibytes * MIB, size, stride)
    assert 0 < a < b < 1.01 * a


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=20))
def test_one_call_equals_many(shapes):
    """A vector of shapes gets the same times as one shape at a time."""
    m, n, k = (np.array(side, dtype=float) for side in zip(*shapes, strict=True))
    together = compute.gemm_time(CAL, GPUS["h100-sxm"], "bf16", m, n, k).seconds
    alone = [float(compute.gemm_time(CAL, GPUS["h100-sxm"], "bf16", *shape).seconds) for shape in shapes]
    assert together.tolist() == pytest.approx(alone, rel=1e-12)
