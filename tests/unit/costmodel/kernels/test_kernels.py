"""Kernel times: levels that are measured facts, carry-over to other GPUs and precisions, and flags."""

import numpy as np
import pytest

from costmodel.kernels import compute
from costmodel.kernels.attention import visible_pairs
from costmodel.kernels.precisions import PRECISIONS
from costmodel.kernels.stand_ins import precision_on, stand_in
from costmodel.kernels.tables import load_calibration
from topology import catalog
from topology.base.errors import InputError

CAL = load_calibration()
H100 = catalog.gpu("h100-sxm")
ATTENTION = {"batch": 1, "heads": 32, "kv_heads": 8, "query_tokens": 4096, "kv_tokens": 4096, "head_dim": 128}


def gemm_share_of_peak(gpu_name, dtype, m, n, k):
    gpu = catalog.gpu(gpu_name)
    return float(2 * m * n * k / compute.gemm_time(CAL, gpu, dtype, m, n, k).seconds / gpu.peak(dtype))


@pytest.mark.parametrize(
    ("gpu_name", "dtype", "low", "high"),
    [
        ("a100-sxm-80gb", "bf16", 0.75, 0.90),
        ("h100-sxm", "bf16", 0.70, 0.85),
        ("h200-sxm", "bf16", 0.65, 0.85),
        ("b200-sxm", "bf16", 0.60, 0.80),
        ("l40s", "bf16", 0.45, 0.75),
        ("h100-sxm", "fp8", 0.45, 0.75),
        ("b200-sxm", "fp8", 0.35, 0.70),
    ],
)
def test_a_large_gemm_reaches_its_measured_share_of_peak(gpu_name, dtype, low, high):
    """A square GEMM of 8192 runs at the share of peak that the tables show for large shapes."""
    assert low < gemm_share_of_peak(gpu_name, dtype, 8192, 8192, 8192) < high


def test_thin_shards_run_below_the_rate_of_wide_ones():
    """A GEMM of n = k = 256 at 4096 tokens runs at less than half of the rate of n = k = 8192 (H100)."""
    thin = gemm_share_of_peak("h100-sxm", "bf16", 4096, 256, 256)
    assert thin < 0.5 * gemm_share_of_peak("h100-sxm", "bf16", 4096, 8192, 8192)


def test_a_single_row_gemm_is_bound_by_its_weights():
    """With one token, time is weight bytes over 65 to 95 % of the memory bandwidth."""
    seconds = compute.gemm_time(CAL, H100, "bf16", 1, 8192, 8192).seconds
    assert 0.65 < 2 * 8192 * 8192 / seconds / H100.memory_bandwidth_bytes_per_s < 0.95


def test_weight_only_precision_speeds_decode_and_not_prefill():
    """int4 weights make a one-token GEMM at least twice as fast, and leave a large one as it was."""
    bf16 = compute.gemm_time(CAL, H100, "bf16", [1, 8192], 8192, 8192).seconds
    int4 = compute.gemm_time(CAL, H100, "int4", [1, 8192], 8192, 8192).seconds
    assert int4[0] < 0.5 * bf16[0]
    assert int4[1] == pytest.approx(bf16[1])


def test_a_gpu_without_fp8_units_only_saves_the_weight_bytes():
    """fp8 on an A100 is read as 8-bit weights on bf16 arithmetic."""
    a100 = catalog.gpu("a100-sxm-80gb")
    assert precision_on(a100, "fp8") == PRECISIONS["int8"]
    fp8, int8 = (compute.gemm_time(CAL, a100, dtype, 64, 8192, 8192) for dtype in ("fp8", "int8"))
    assert float(fp8.seconds) == float(int8.seconds)


@pytest.mark.parametrize("name", sorted(catalog.gpus()))
def test_every_gpu_of_the_catalog_has_an_answer(name):
    """Each catalogued GPU gets positive finite times; those without a table of their own are flagged."""
    gpu = catalog.gpu(name)
    found = compute.gemm_time(CAL, gpu, "bf16", [1, 4096], 4096, 4096)
    assert (found.seconds > 0).all()
    assert np.isfinite(found.seconds).all()
    assert found.extrapolated.all() == (stand_in(CAL, gpu) != name)
    assert float(compute.attention_prefill(CAL, gpu, **ATTENTION).seconds) > 0
    assert float(compute.elementwise_time(CAL, gpu, 1e9).seconds) > 0


def test_carry_over_keeps_utilisation():
    """A GPU without a table reaches the same share of its own achievable peak as its stand-in."""
    h800 = catalog.gpu("h800-sxm")
    found = compute.gemm_time(CAL, h800, "bf16", 4096, 4096, 4096)
    assert float(found.seconds) == pytest.approx(
        float(compute.gemm_time(CAL, H100, "bf16", 4096, 4096, 4096).seconds)
    )
    assert bool(found.extrapolated)
    assert "carried over" in found.source


def test_inside_the_table_is_not_extrapolated_and_beyond_it_is():
    """Measured shapes are not flagged; a million tokens are, at time proportional to work."""
    inside = compute.gemm_time(CAL, H100, "bf16", 32768, 8192, 8192)
    beyond = compute.gemm_time(CAL, H100, "bf16", 32 * 32768, 8192, 8192)
    assert not inside.extrapolated
    assert beyond.extrapolated
    assert float(beyond.seconds) == pytest.approx(32 * float(inside.seconds))


def test_an_unknown_precision_is_answered_with_the_known_ones():
    """The error names what is known."""
    with pytest.raises(InputError, match="bf16"):
        compute.gemm_time(CAL, H100, "int3", 1, 1, 1)


@pytest.mark.parametrize(
    ("query", "kv", "window", "pairs"),
    [(4, 4, None, 8.0), (1, 4, None, 3.5), (4, 4, 100, 8.0), (8, 8, 2, 14.0), (2, 8, 2, 4.0)],
)
def test_visible_pairs_are_counted_in_the_continuum(query, kv, window, pairs):
    """Causal and windowed attention see Σ min(position, window) pairs."""
    assert float(visible_pairs(query, kv, window)) == pairs


def test_a_window_cuts_attention_to_its_pairs():
    """A window of 1024 over 16384 tokens is 8 times fewer pairs, and at least 5 times faster."""
    long = {**ATTENTION, "query_tokens": 16384, "kv_tokens": 16384}
    full = float(compute.attention_prefill(CAL, H100, **long).seconds)
    windowed = float(compute.attention_prefill(CAL, H100, **long, window=1024).seconds)
    assert 5 < full / windowed < 9


def test_attention_utilisation_grows_with_length():
    """H100 prefill runs at about .3 of peak at 1k tokens and .6 at 16k (32 heads)."""
    tokens = np.array([1024.0, 4096.0, 16384.0])
    sizes = {**ATTENTION, "query_tokens": tokens, "kv_tokens": tokens}
    share = (
        2 * 32 * tokens**2 * 128 / compute.attention_prefill(CAL, H100, **sizes).seconds / H100.peak("bf16")
    )
    assert share.tolist() == pytest.approx([0.30, 0.57, 0.65], abs=0.08)


def test_odd_head_sizes_pay_for_whole_tiles():
    """head_dim 108 costs as much as 128, and more per flop than 128; 64 costs less than 128."""
    by_size = {**ATTENTION, "head_dim": [64, 108, 128, 256]}
    small, odd, full, large = compute.attention_prefill(CAL, H100, **by_size).seconds
    assert odd == full
    assert full / 2 < small < full < large < 2 * full


def test_a_chunk_of_a_prompt_costs_its_share_of_the_pairs():
    """The second half of a prompt has three quarters of the pairs, and about that share of the time."""
    chunk = {**ATTENTION, "query_tokens": 4096, "kv_tokens": 8192}
    whole = {**ATTENTION, "query_tokens": 8192, "kv_tokens": 8192}
    ratio = (
        compute.attention_prefill(CAL, H100, **chunk).seconds
        / compute.attention_prefill(CAL, H100, **whole).seconds
    )
    assert 0.6 < float(ratio) < 0.85


def test_decode_attention_is_bound_by_the_cache():
    """At 4096 tokens and 8 KV heads decode reaches .3 of the bandwidth at batch 1 and .85 at batch 32."""
    batch = np.array([1.0, 32.0])
    found = compute.attention_decode(
        CAL, H100, batch=batch, heads=32, kv_heads=8, kv_tokens=4096, head_dim=128
    )
    share = 4 * batch * 8 * 4096 * 128 / found.seconds / H100.memory_bandwidth_bytes_per_s
    assert share.tolist() == pytest.approx([0.30, 0.87], abs=0.05)


def test_an_eight_bit_cache_nearly_halves_decode_attention():
    """A long cache in one byte per element takes between half and .6 of the time of two bytes."""
    sizes = {"batch": 64, "heads": 32, "kv_heads": 8, "kv_tokens": 16384, "head_dim": 128}
    two, one = (compute.attention_decode(CAL, H100, **sizes, kv_dtype_bytes=b).seconds for b in (2, 1))
    assert 0.5 < float(one / two) < 0.6


def test_grouped_gemm_with_many_rows_is_one_gemm_of_the_same_work():
    """With every expert busy, eight experts are one GEMM with eight times the outputs."""
    grouped = compute.grouped_gemm_time(CAL, H100, "bf16", 4096, 1024, 4096, 8).seconds
    assert float(grouped) == pytest.approx(
        float(compute.gemm_time(CAL, H100, "bf16", 4096, 8192, 4096).seconds)
    )


def test_few_tokens_touch_few_experts():
    """One token through 256 experts, 8 of them chosen, reads about 8 experts' weights and not 256."""
    sizes = {"hidden_size": 7168, "intermediate_size": 2048, "top_k": 8, "num_experts": 256}
    one, many = compute.moe_ffn(CAL, H100, "fp8", tokens=[1, 512], **sizes).seconds
    assert one < many / 8


@pytest.mark.parametrize(("skew", "load"), [(0.0, 1.0), (1.0, 3.14)])
def test_skewed_experts_load_one_rank_more(skew, load):
    """Popularity falling as 1/rank loads the busiest of 16 ranks 3.1 times the mean; uniform does not."""
    assert float(compute.busiest_rank_load(256, 16, skew)) == pytest.approx(load, abs=0.01)


def test_a_hundred_thousand_shapes_are_answered_in_one_call():
    """Vectorised GEMM times equal those asked one by one."""
    shapes = np.random.default_rng(0).integers(64, 20000, size=(3, 100_000))
    seconds = compute.gemm_time(CAL, H100, "bf16", *shapes).seconds
    sampled = np.arange(0, 100_000, 20_000)
    alone = [float(compute.gemm_time(CAL, H100, "bf16", *shapes[:, i]).seconds) for i in sampled]
    assert seconds[sampled] == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("name", ["l40s", "rtx-pro-6000", "h100-sxm", "b200-sxm"])
def test_no_cache_is_read_faster_than_memory_streams(name):
    """Tables of cards with large L2s time caches that stay in them, at up to 2.8 times their bandwidth."""
    gpu = catalog.gpu(name)
    batch = np.array([1.0, 16.0, 128.0])[:, None]
    tokens = np.array([64.0, 512.0, 1024.0, 8192.0])
    seconds = compute.attention_decode(
        CAL, gpu, batch=batch, heads=32, kv_heads=4, kv_tokens=tokens, head_dim=128
    ).seconds
    read = 2 * 2 * 128 * 4 * batch * tokens
    assert (read / seconds < gpu.memory_bandwidth_bytes_per_s).all()
