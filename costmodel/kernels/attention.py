"""Seconds of fused attention: prefill (and training forward) over whole sequences, decode over a KV cache.

Legend: B batch, a query heads and g key/value heads of this GPU (after TP), q query tokens, s key/value
tokens, d head size, w window. Tables hold causal bf16 attention with d = 128; other shapes are carried over
by the work they do.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.kernels.grids import Grid, KernelTime, floats, interpolate, outside, stacked
from costmodel.kernels.measurement import REQUIRED_INPUTS
from costmodel.kernels.stand_ins import achievable, stand_in
from costmodel.kernels.tables import Calibration, measured_ratio
from topology.base.arrays import Floats, Mask
from topology.base.units import GIB
from topology.hardware.datasheets import generation_of, generations, gpu_sheets
from topology.hardware.gpu import Gpu

TABLE_HEAD_DIM = 128
HEAD_DIM_STEP = 32  # fused kernels are compiled for head sizes in steps of 32
PREFILL_AXES = ("prefill_batch_heads", "prefill_tokens")
UNCACHED_BYTES = GIB
"""Of a cache that no L2 holds: those of the tables' GPUs are of 40 to 134 MB."""
DECODE_AXES = ("decode_batch_kv_heads", "decode_tokens", "decode_group")


def visible_pairs(query_tokens: ArrayLike, kv_tokens: ArrayLike, window: float | None = None) -> Floats:
    """Query–key pairs of causal attention of the last q of s tokens, each seeing at most w keys.

        pairs = F(s) − F(s − q),   F(x) = x²/2 up to w, then w²/2 + w·(x − w)

    >>> float(visible_pairs(4.0, 4.0))
    8.0
    >>> float(visible_pairs(2.0, 4.0))
    6.0
    >>> float(visible_pairs(4.0, 4.0, window=1.0))
    3.5
    """
    s = floats(kv_tokens)
    before = s - floats(query_tokens)
    if window is None:
        return np.asarray((s**2 - before**2) / 2)
    return _seen(s, window) - _seen(before, window)


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
    cache_write: bool = False,
) -> KernelTime:
    """Seconds of fused attention forward of the last q of s tokens.

        t = t0 + (T(B·a, S') − t0)·(⌈d⌉ + h)/(128 + h') + c·(bytes of K and V)/bandwidth,   S' = √(2·pairs)

    T is the measured time of square causal attention, S' the square with the same number of pairs. Softmax
    costs as much as h channels of matmul per score, and h' on the GPU of the table, so small heads run at
    lower and large ones at higher utilisation. c counts the passes that a serving kernel makes to fill the
    KV cache.

    Args:
        cal: tables.
        gpu: the GPU.
        batch: B sequences.
        heads: a query heads of this GPU.
        kv_heads: g key/value heads of this GPU.
        query_tokens: q.
        kv_tokens: s ≥ q (equal, except in chunked prefill and context parallelism).
        head_dim: d.
        causal: each query sees the keys before it; otherwise all s.
        window: sliding window w, or None.
        cache_write: include writing K and V to a cache, as serving does.

    Source: aiconfigurator-core context-attention tables; h: FlashAttention-3 (Shah et al. 2024), exp units
    against matmul units.
    """
    name, grid = _table(cal, gpu, "prefill", PREFILL_AXES)
    everything = floats(query_tokens) * floats(kv_tokens)
    pairs = visible_pairs(query_tokens, kv_tokens, window) if causal else everything
    at = stacked(floats(batch) * floats(heads), np.sqrt(2 * pairs))
    padded = np.ceil(floats(head_dim) / HEAD_DIM_STEP) * HEAD_DIM_STEP
    channels = generation_of(gpu).softmax_channels
    tabled = channels if name == gpu.name else generations()[gpu_sheets()[name].architecture].softmax_channels
    work = (padded + channels) / (TABLE_HEAD_DIM + tabled)
    measured, beyond = _clamped(grid, at, (1.0, 2.0))
    floor = np.minimum(cal.fits()["gpus"][name]["launch_s"], measured)
    seconds = floor + (measured - floor) * work * _compute_ratio(cal, gpu, name)
    if cal.measurements:
        seconds = _corrected(cal, gpu, stacked(*at, floats(head_dim)), seconds)
    if cache_write:
        moved = 4 * floats(batch) * floats(kv_heads) * floats(query_tokens) * floats(head_dim)
        cache_writes = cal.fits()["attention"]["cache_write_passes"][name]
        seconds = seconds + cache_writes * moved / gpu.memory_bandwidth_bytes_per_s
    flagged = beyond | (padded != TABLE_HEAD_DIM) | (name != gpu.name)
    return KernelTime(seconds=seconds, extrapolated=flagged, source=f"prefill attention table of {name}")


def _corrected(cal: Calibration, gpu: Gpu, at: Floats, seconds: Floats) -> Floats:
    """Return prefill seconds pulled to the user's own measurements, if any; `at` is (B·a, S', d)."""
    mine = cal.measured("attention_prefill", gpu, "bf16")
    if not mine:
        return seconds
    names = REQUIRED_INPUTS["attention_prefill"]
    inputs: dict[str, Any] = {name: np.array([m.inputs[name] for m in mine]) for name in names}
    plain = Calibration(directory=cal.directory, tables=cal.tables)
    ratios = np.array([m.value for m in mine]) / attention_prefill(plain, gpu, **inputs).seconds
    pairs = visible_pairs(inputs["query_tokens"], inputs["kv_tokens"])
    points = np.stack([inputs["batch"] * inputs["heads"], np.sqrt(2 * pairs), inputs["head_dim"]])
    return seconds * measured_ratio(points, ratios, np.maximum(at, 1.0))


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
    """Seconds of one decode step of attention: one new token per sequence over a cache of s tokens.

        t = t0 + (T(B·g, s, a/g) − t0)·(d·bytes)/(128·2),   never less than flop/(e·peak)
                                                             nor than bytes/(e_b·bandwidth)

    Tables time a kernel again and again on a cache that may stay in the L2. Between two reads of a layer's
    cache a server streams all others, so it comes from memory: e_b is the largest share of the bandwidth at
    which the table's kernel reads caches that no L2 holds.

    Args:
        cal: tables.
        gpu: the GPU.
        batch: B sequences.
        heads: a query heads of this GPU.
        kv_heads: g key/value heads of this GPU.
        kv_tokens: s, mean cache length (after any window).
        head_dim: d; for one shared latent (MLA) half the latent's size, since K and V are the same bytes.
        kv_dtype_bytes: bytes per cached element.

    Source: aiconfigurator-core generation-attention tables.
    """
    name, grid = _table(cal, gpu, "decode", DECODE_AXES)
    b, a, g, s, d = (floats(x) for x in (batch, heads, kv_heads, kv_tokens, head_dim))
    at = stacked(b * g, s, a / g)
    measured, beyond = _clamped(grid, at, (1.0, 1.0, 0.0))
    facts = cal.fits()["gpus"][name]
    bandwidth_ratio = facts["memory_bandwidth_bytes_per_s"] / gpu.memory_bandwidth_bytes_per_s
    work = d * kv_dtype_bytes / (TABLE_HEAD_DIM * 2)
    floor = np.minimum(decode_launch_s(cal, gpu), measured)
    rate = _streamed_share(cal, name, grid) * gpu.memory_bandwidth_bytes_per_s
    streamed = 2 * b * g * s * d * kv_dtype_bytes / rate
    memory = np.maximum(floor + (measured - floor) * work * bandwidth_ratio, streamed)
    compute = 4 * b * a * s * d / (achievable(cal, gpu) * gpu.peak("bf16"))
    known = (name == gpu.name) & (work == 1.0)
    flagged = np.asarray(beyond | ~known)
    return KernelTime(
        seconds=np.maximum(memory, compute), extrapolated=flagged, source=f"decode attention table of {name}"
    )


def _streamed_share(cal: Calibration, name: str, grid: Grid) -> float:
    """Largest share of its bandwidth at which a decode table reads caches of `UNCACHED_BYTES` and more."""
    key = ("decode_streamed_share", name)
    if key not in cal.tables:
        heads, tokens, _ = (cal.arrays(name)[axis].astype(np.float64) for axis in DECODE_AXES)
        read = (2 * 2 * TABLE_HEAD_DIM * heads[:, None] * tokens)[..., None]
        seconds = np.exp(grid.log_values.reshape(len(heads), len(tokens), -1))
        bandwidth = cal.fits()["gpus"][name]["memory_bandwidth_bytes_per_s"]
        cal.tables[key] = float((read / seconds / bandwidth)[(read >= UNCACHED_BYTES)[..., 0]].max())
    share: float = cal.tables[key]
    return share


def decode_launch_s(cal: Calibration, gpu: Gpu) -> float:
    """Seconds that the tabulated decode kernels take with nothing to read: launch and reduction."""
    return float(cal.fits()["attention"]["decode_launch_s"][stand_in(cal, gpu)])


def _seen(x: Floats, window: float) -> Floats:
    """Return Σ min(position, w) over the first x tokens, in the continuum."""
    full = np.minimum(x, window)
    return np.asarray(full**2 / 2 + window * (x - full))


def _table(cal: Calibration, gpu: Gpu, kind: str, axes: tuple[str, ...]) -> tuple[str, Grid]:
    name = stand_in(cal, gpu)
    grid = cal.grid(name, kind, axes)
    if grid is None:
        raise LookupError(f"{name}.npz has no {kind} table")
    return name, grid


def _clamped(grid: Grid, at: Floats, powers: tuple[float, ...]) -> tuple[Floats, Mask]:
    """Return seconds off the table, growing with the given power of each coordinate beyond its last node."""
    np.maximum(at, 1e-9, out=at)
    shape = (-1,) + (1,) * (at.ndim - 1)
    excess = np.maximum(at / grid.last.reshape(shape), 1.0) ** np.asarray(powers).reshape(shape)
    return np.exp(interpolate(grid, at)) * excess.prod(axis=0), outside(grid, at)


def _compute_ratio(cal: Calibration, gpu: Gpu, name: str) -> float:
    """Return seconds per flop on `gpu` over those on the measured GPU, at equal utilisation."""
    if name == gpu.name:
        return 1.0
    fits = cal.fits()
    there = fits["gpus"][name]["peak_flop_per_s"]["bf16"] * fits["achievable_share"][name]
    return float(there / (gpu.peak("bf16") * achievable(cal, gpu)))
