"""Seconds of one kernel on one GPU: measured tables where there are any, carried over elsewhere.

Legend: m tokens (rows), n outputs, k inputs of a GEMM; G experts on this GPU. All numeric arguments are
floats or arrays and broadcast. Every function returns a `KernelTime`, which says which entries were
extrapolated. Attention has its own file, `costmodel.kernels.attention`, and is re-exported here.
"""

import numpy as np
from numpy.typing import ArrayLike

from costmodel.kernels.attention import attention_decode, attention_prefill, decode_launch_s
from costmodel.kernels.grids import KernelTime, floats, interpolate, outside, stacked
from costmodel.kernels.precisions import PRECISIONS
from costmodel.kernels.stand_ins import Reference, gemm_reference, stand_in
from costmodel.kernels.tables import Calibration, measured_ratio
from topology.base.arrays import Floats, Mask
from topology.hardware.gpu import Gpu

__all__ = [
    "KernelTime",
    "attention_decode",
    "attention_prefill",
    "busiest_rank_load",
    "decode_launch_s",
    "elementwise_time",
    "gemm_time",
    "grouped_gemm_time",
    "moe_ffn",
]

TILE = 32  # elements: the narrowest tile edge of tensor-core GEMM kernels; partial tiles cost as full ones


def gemm_time(cal: Calibration, gpu: Gpu, dtype: str, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> KernelTime:
    """Seconds of C[m,n] = A[m,k]·B[k,n].

        log t = multilinear in (log m, log n, log k) between measured nodes; beyond them t ∝ m·n·k;
        n and k are rounded up to whole tiles

    Args:
        cal: tables.
        gpu: the GPU.
        dtype: bf16, fp16, fp8, mxfp8, fp4, …; int8 and int4 mean weight-only (bf16 math, narrow weights).
        m: rows (tokens), at least 1.
        n: outputs.
        k: inputs.

    Source: aiconfigurator-core GEMM tables (see `data/kernels/fits.json`).
    """
    shape = stacked(floats(m), floats(n), floats(k))
    np.maximum(shape, 1.0, out=shape)
    shape[1:] = np.ceil(shape[1:] / TILE) * TILE
    reference = gemm_reference(cal, gpu, dtype)
    seconds, beyond = _table_seconds(reference, shape)
    if cal.measurements:
        seconds = _corrected(cal, gpu, dtype, shape, seconds)
    return KernelTime(seconds=seconds, extrapolated=beyond, source=reference.source)


def grouped_gemm_time(
    cal: Calibration,
    gpu: Gpu,
    dtype: str,
    tokens_per_expert: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    num_local_experts: ArrayLike,
) -> KernelTime:
    """Seconds of the GEMMs of G experts, each [rows, k]·[k, n], in one launch.

        t = gemm(rows/hit, n·G·hit, k),   hit = 1 − exp(−rows)

    One launch fills the GPU as a single GEMM with the same flop and the same weight bytes does; with few
    rows per expert only a share `hit` of the experts is touched at all (Poisson arrivals). This is the ideal:
    measured fused serving kernels reach it with few rows and lose to it with many (`moe_ffn`).

    Args:
        cal: tables.
        gpu: the GPU.
        dtype: as in `gemm_time`.
        tokens_per_expert: mean rows per local expert (may be below 1).
        n: outputs of one expert.
        k: inputs of one expert.
        num_local_experts: G.
    """
    rows = np.maximum(floats(tokens_per_expert), 1e-9)
    hit = -np.expm1(-rows)
    outputs = floats(n) * floats(num_local_experts) * hit
    kernel_time = gemm_time(cal, gpu, dtype, rows / hit, outputs, k)
    source = f"{kernel_time.source}; grouped as one launch"
    return KernelTime(seconds=kernel_time.seconds, extrapolated=kernel_time.extrapolated, source=source)


def elementwise_time(cal: Calibration, gpu: Gpu, moved_bytes: ArrayLike) -> KernelTime:
    """Seconds of memory-bound passes that read and write `moved_bytes` in all: bytes / (e_b·bandwidth).

    e_b is the share of the data-sheet bandwidth that the largest memory-bound kernels of the tables reach.
    Launches are not counted here: the host side of a stack knows how many there are.
    """
    name = stand_in(cal, gpu)
    rate = cal.fits()["gpus"][name]["memory_efficiency"] * gpu.memory_bandwidth_bytes_per_s
    moved = floats(moved_bytes)
    seconds = moved / rate
    mine = cal.measured("elementwise", gpu)
    if mine:
        points = np.array([[m.inputs["bytes"] for m in mine]])
        ratios = np.array([m.value for m in mine]) * rate / points[0]
        seconds = seconds * measured_ratio(points, ratios, np.maximum(moved, 1.0)[None])
    known = np.full(seconds.shape, name != gpu.name)
    return KernelTime(seconds=seconds, extrapolated=known, source=f"memory efficiency of {name}")


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
    """Seconds of the gated FFN of routed experts on the busiest rank (routing and dispatch apart).

        rows = tokens·top_k/E · (load of the busiest rank)
        t = t_f + r(rows/hit, F/tp) · [grouped(rows, 2F/tp, H) + grouped(rows, H, F/tp)]

    t_f is what routing and permuting cost at least; r is measured over ideal time of fused kernels.

    Args:
        cal: tables.
        gpu: the GPU.
        dtype: as in `gemm_time`.
        tokens: tokens entering the layer from all ranks that share these experts.
        hidden_size: H.
        intermediate_size: F of one expert, before moe_tp.
        top_k: experts per token.
        num_experts: E, routed experts.
        moe_tp: ranks that split one expert.
        moe_ep: ranks that split the set of experts; G = E/moe_ep.
        skew: exponent of the power law of expert popularity; 0 is balanced.
    """
    experts, ranks = floats(num_experts), floats(moe_ep)
    inner = floats(intermediate_size) / floats(moe_tp)
    local = experts / ranks
    rows = floats(tokens) * floats(top_k) / experts * busiest_rank_load(experts, ranks, skew)
    up = grouped_gemm_time(cal, gpu, dtype, rows, 2 * inner, hidden_size, local)
    down = grouped_gemm_time(cal, gpu, dtype, rows, hidden_size, inner, local)
    ideal = up.seconds + down.seconds
    ratio, fixed, source = _fused_moe(cal, gpu, dtype, rows, inner)
    flagged = up.extrapolated | down.extrapolated | (source is None)
    return KernelTime(seconds=fixed + ratio * ideal, extrapolated=flagged, source=source or up.source)


def busiest_rank_load(num_experts: ArrayLike, ranks: ArrayLike, skew: float) -> Floats:
    """Load of the busiest rank over the mean load (≥ 1), experts dealt round-robin by popularity.

        p_j ∝ j^(−skew), j = 1…E;   load = ranks · Σ_i p_{1 + i·ranks}

    >>> float(busiest_rank_load(8, 8, 0.0))
    1.0
    >>> float(busiest_rank_load(4, 2, 1.0).round(3))
    1.28
    """
    e, r = np.broadcast_arrays(floats(num_experts), floats(ranks))
    if skew == 0.0:
        return np.ones(e.shape)
    pairs = list(zip(e.ravel().tolist(), r.ravel().tolist(), strict=True))
    loads = {pair: _load(*pair, skew) for pair in set(pairs)}
    return np.array([loads[pair] for pair in pairs]).reshape(e.shape)


def _load(num_experts: float, ranks: float, skew: float) -> float:
    popularity = np.arange(1, int(num_experts) + 1, dtype=np.float64) ** -skew
    return float(ranks * popularity[:: max(int(ranks), 1)].sum() / popularity.sum())


def _fused_moe(
    cal: Calibration, gpu: Gpu, dtype: str, rows: Floats, inner: Floats
) -> tuple[Floats, float, str | None]:
    """Return measured over ideal time of fused MoE kernels, fixed seconds, and the table (None: no data)."""
    name = stand_in(cal, gpu)
    table = PRECISIONS[dtype].moe_table if dtype in PRECISIONS else dtype
    grid = cal.grid(name, f"moe_{table}", ("moe_rows", "moe_inner"))
    if grid is None:
        return np.ones(()), 0.0, None
    rows = np.maximum(rows, 1e-9)
    ratio = np.exp(interpolate(grid, stacked(rows / -np.expm1(-rows), np.maximum(inner, 1.0))))
    return ratio, float(cal.fits()["moe_fixed_s"][name][table]), f"MoE {table} table of {name}"


def _table_seconds(reference: Reference, shape: Floats) -> tuple[Floats, Mask]:
    """Return seconds off the table, proportional to work beyond its end, and where that is no measurement."""
    grid = reference.grid
    last = grid.last.reshape((-1,) + (1,) * (shape.ndim - 1))
    seconds = np.exp(interpolate(grid, shape)) * np.maximum(shape / last, 1.0).prod(axis=0)
    return seconds, outside(grid, shape) if reference.exact else np.ones(seconds.shape, dtype=bool)


def _corrected(cal: Calibration, gpu: Gpu, dtype: str, shape: Floats, seconds: Floats) -> Floats:
    """Return `seconds` pulled to the user's own GEMM measurements of this GPU and dtype, if any."""
    mine = cal.measured("gemm", gpu, dtype)
    if not mine:
        return seconds
    points = np.array([[m.inputs[axis] for m in mine] for axis in ("m", "n", "k")])
    modelled, _ = _table_seconds(gemm_reference(cal, gpu, dtype), points)
    return seconds * measured_ratio(points, np.array([m.value for m in mine]) / modelled, shape)
