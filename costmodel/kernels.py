"""Seconds of one kernel on one GPU: measured utilisation where there is a table, a roofline elsewhere.

Legend: m tokens (rows), n outputs, k inputs of a GEMM; all numeric arguments are floats or arrays and
broadcast. Every function returns a `KernelTime`, which says which entries were extrapolated.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from topology.gpu import Gpu

from costmodel.calibration import Calibration

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """Seconds of a kernel (array), where they were extrapolated (bool array), and from what."""

    seconds: Floats
    extrapolated: NDArray[np.bool_]
    source: str


def gemm(cal: Calibration, gpu: Gpu, dtype: str, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> KernelTime:
    """Seconds of C[m,n] = A[m,k]·B[k,n].

    dtype: bf16, fp16, fp8, mxfp8, fp4; int8 and int4 mean weight-only (bf16 math on narrow weights).
    """
    m, n, k = (np.asarray(x, dtype=np.float64) for x in (m, n, k))
    weight, act = _operand_bytes(dtype)
    return _roofline(cal, gpu, dtype, 2 * m * n * k, act * m * k + weight * n * k + 2 * m * n)


def grouped_gemm(
    cal: Calibration,
    gpu: Gpu,
    dtype: str,
    tokens_per_expert: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    num_local_experts: ArrayLike,
) -> KernelTime:
    """Seconds of `num_local_experts` GEMMs [tokens_per_expert, k]·[k, n] in one launch."""
    one = gemm(cal, gpu, dtype, tokens_per_expert, n, k)
    seconds = one.seconds * np.asarray(num_local_experts, dtype=np.float64)
    return KernelTime(seconds=seconds, extrapolated=np.ones_like(seconds, dtype=bool), source=one.source)


def attention_prefill(
    cal: Calibration,
    gpu: Gpu,
    *,
    batch: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    query_tokens: ArrayLike,
    kv_tokens: ArrayLike,
    head_dim: ArrayLike,
    causal: bool = True,
    window: float | None = None,
) -> KernelTime:
    """Seconds of fused attention forward over whole sequences; heads are those of one GPU (after TP)."""
    batch, heads, kv_heads, query_tokens, kv_tokens, head_dim = (
        np.asarray(x, dtype=np.float64) for x in (batch, heads, kv_heads, query_tokens, kv_tokens, head_dim)
    )
    seen = kv_tokens if not causal else kv_tokens - query_tokens / 2
    if window is not None:
        seen = np.minimum(seen, window)
    flop = 4 * batch * heads * query_tokens * seen * head_dim / 0.7
    bytes_ = 4 * batch * head_dim * (heads * query_tokens + kv_heads * kv_tokens)
    return _roofline(cal, gpu, "bf16", flop, bytes_)


def attention_decode(
    cal: Calibration,
    gpu: Gpu,
    *,
    batch: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    kv_tokens: ArrayLike,
    head_dim: ArrayLike,
    kv_dtype_bytes: float = 2.0,
) -> KernelTime:
    """Seconds of one decode step of attention: one query token per sequence over `kv_tokens` of cache."""
    batch, heads, kv_heads, kv_tokens, head_dim = (
        np.asarray(x, dtype=np.float64) for x in (batch, heads, kv_heads, kv_tokens, head_dim)
    )
    bytes_ = 2 * kv_dtype_bytes * batch * kv_heads * kv_tokens * head_dim
    return _roofline(cal, gpu, "bf16", 4 * batch * heads * kv_tokens * head_dim, bytes_)


def moe_ffn(
    cal: Calibration,
    gpu: Gpu,
    dtype: str,
    *,
    tokens: ArrayLike,
    hidden_size: ArrayLike,
    intermediate_size: ArrayLike,
    top_k: ArrayLike,
    num_experts: ArrayLike,
    moe_tp: ArrayLike = 1,
    moe_ep: ArrayLike = 1,
    skew: float = 0.0,
) -> KernelTime:
    """Seconds of the fused gated MoE FFN on one rank; `tokens` are those of the whole EP group.

    skew: exponent of the power law of expert popularity (0 balanced, 1.01 and 1.2 as measured).
    """
    tokens, hidden_size, intermediate_size, top_k, num_experts, moe_tp, moe_ep = (
        np.asarray(x, dtype=np.float64)
        for x in (tokens, hidden_size, intermediate_size, top_k, num_experts, moe_tp, moe_ep)
    )
    local = num_experts / moe_ep
    per_expert = tokens * top_k / num_experts * (1 + skew)
    inter = intermediate_size / moe_tp
    up = grouped_gemm(cal, gpu, dtype, per_expert, 2 * inter, hidden_size, local)
    down = grouped_gemm(cal, gpu, dtype, per_expert, hidden_size, inter, local)
    return KernelTime(
        seconds=up.seconds + down.seconds, extrapolated=up.extrapolated | down.extrapolated, source=up.source
    )


def elementwise(cal: Calibration, gpu: Gpu, moved_bytes: ArrayLike) -> KernelTime:
    """Seconds of memory-bound passes that move `moved_bytes` (read + written): bytes / (e_b · bandwidth)."""
    bytes_ = np.asarray(moved_bytes, dtype=np.float64)
    return _roofline(cal, gpu, "bf16", np.zeros_like(bytes_), bytes_)


def _roofline(cal: Calibration, gpu: Gpu, dtype: str, flop: Floats, bytes_: Floats) -> KernelTime:
    fits = cal.fits()["roofline"]
    fit = fits.get(gpu.architecture, fits["hopper"])
    peaks = gpu.peak_flop_per_s
    peak = peaks.get({"mxfp8": "fp8", "int8": "bf16", "int4": "bf16"}.get(dtype, dtype), peaks["bf16"])
    compute = flop / (fit["compute_efficiency"] * peak)
    memory = bytes_ / (fit["memory_efficiency"] * gpu.memory_bandwidth_bytes_per_s)
    seconds = np.maximum(compute, memory)
    seconds = seconds + np.where(seconds > 0, fit["launch_s"], 0.0)
    return KernelTime(seconds=seconds, extrapolated=np.ones_like(seconds, dtype=bool), source="roofline")


def _operand_bytes(dtype: str) -> tuple[float, float]:
    """Return bytes of one weight and of one activation entering a GEMM of `dtype`."""
    narrow = {"fp8": (1.0, 1.0), "mxfp8": (1.0, 1.0), "fp4": (0.5, 0.5), "int8": (1.0, 2.0), "int4": (0.5, 2.0)}
    return narrow.get(dtype, (2.0, 2.0))
