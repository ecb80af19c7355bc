"""Seconds of the routed experts of one layer.

Measured kernels where the shape was measured, carried over elsewhere.

The fused expert kernels of the engines neither stream weights nor multiply as well as plain GEMMs do, and
by how much depends on the shape. So the closed form of `kernels.moe_ffn` is multiplied by measured/modelled
of the nearest measured shape, at the same rows per expert:

    t = model(shape, tokens) · measured(near, tokens")/model(near, tokens'),   tokens'·k'/E' = tokens·k/E

which is the measurement itself when the shape is in the table. Kernels of ranks that divide the experts were
timed with every token on every rank, as tensor-parallel attention leaves them, and on the rank with the most
rows. They are read at the tokens" that give it as many rows as the busiest rank has here. Ranks that exchange
tokens have the rows of their own experts alone: kernels of undivided experts, at as many rows each, but no
less than kernels of divided ones at few tokens.

Legend: ``H`` hidden, ``F`` width of an expert, ``k`` experts per token, ``E`` experts.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from costmodel.kernels.compute import busiest_rank_load, moe_ffn
from costmodel.kernels.grids import KernelTime, floats
from costmodel.kernels.stand_ins import stand_in
from costmodel.kernels.tables import Calibration
from topology.base.arrays import Floats
from topology.hardware.datasheets import generation_of
from topology.hardware.gpu import Gpu

ROUTING_SKEW: Final = 0.5
"""Popularity of experts falls as rank^−0.5 between the ranks that split them. Fitted on the rows of
serving_runs.csv with expert parallelism; the tables' rank^−1.01 would load the busiest of 32 ranks six times
the mean, which trained routers and the engines' load balancers avoid."""
TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "bf16": ("bfloat16",),
    "fp16": ("bfloat16",),
    "fp8": ("fp8_block",),
    "mxfp8": ("fp8_block",),
    "fp4": ("nvfp4", "w4a8_mxfp4_mxfp8", "w4a16_mxfp4"),
    "int4": ("int4_wo", "w4a16_mxfp4"),
    "int8": ("fp8_block",),
}
"""Measured kernels that stand for a number format, best first; a shape in an earlier one is preferred."""
OTHERWISE: Final[Mapping[str, str]] = {"fp8": "fp8", "bfloat16": "bf16"}
"""Kernels that stand in where a GPU's tables have none of the above, and their own number format, in which
they are compared with the closed form. The per-tensor fp8 kernels come last: on Hopper they were measured at
two to three times bf16 of the same shape, which no engine would choose."""
WEIGHT_ONLY_FP4: Final = ("w4a16_mxfp4", "int4_wo")
"""The same for fp4 weights on GPUs without fp4 units."""

MXFP4: Final = "w4a16_mxfp4"
NATIVE_MXFP4: Final = "w4a8_mxfp4_mxfp8"
"""Kernels that multiply four bits by eight: those of MXFP4 experts on GPUs with four-bit units. They were
measured at other shapes, and are carried over."""
MXFP4_BYTES: Final = 17 / 32
"""Of a weight: four bits, and a scale of eight for every 32."""
SIZES: Final = ("H", "F", "k", "E", "tp", "ep")
Shape = tuple[int, ...]
"""Sizes of routed experts and of their split, in the order of `SIZES`."""
Shares = tuple[float, float, bool]
"""Time of an engine's kernels over the tabulated ones: of all but MXFP4's, and of those; `warp_products`."""
Measured = tuple[Shape, Floats, str]

HOPPER: Final = 9
"""Major compute capability of the GPUs whose peak takes instructions of four warps together."""
WARP_PRODUCTS: Final = 0.629
"""Share of Hopper's peak that instructions of one warp (mma) reach, where those of four (wgmma) reach all of
it: Luo et al. 2024 (arXiv 2402.13499). Marlin, written for Ampere, has none but the former."""

FEW_TOKENS: Final = 256.0
"""Up to so many tokens, kernels of divided experts read weights: tokens of others cost them little.
Ranks that exchange tokens take at least as long as with so few."""

NATIVE_FP4_GAIN: Final = 0.56
"""Time of a kernel that multiplies fp4 natively over one of the same shape that unpacks to bf16, with few
rows per expert: the median of nvfp4 over int4_wo in the tables of b200-sxm, gb200, b300-sxm and gb300 at up
to 96 tokens (0.50 to 0.60). With many rows it is the ratio of the peaks."""

SAME_MODEL, SPLIT = 4.0, 1.0  # weight of a different model shape against different splits, in log distance


def routed_experts(
    cal: Calibration,
    gpu: Gpu,
    dtype: str,
    *,
    tokens: ArrayLike,
    hidden_size: int,
    intermediate_size: int,
    top_k: int,
    num_experts: int,
    moe_tp: int = 1,
    moe_ep: int = 1,
    exchanged: bool = False,
    share: float = 1.0,
    mxfp4_share: float = 1.0,
    warp_products: bool = False,
) -> KernelTime:
    """Seconds of the gated experts on the busiest rank; `tokens` are those of all ranks that share them.

    Args:
        cal: tables.
        gpu: the GPU.
        dtype: bf16, fp8, fp4, int8 or int4.
        tokens: tokens entering the layer, any shape.
        hidden_size: H.
        intermediate_size: F of a whole expert.
        top_k: k.
        num_experts: E.
        moe_tp: ranks that split one expert.
        moe_ep: ranks that split the set of experts.
        exchanged: each of these ranks has the rows of its experts alone, from an exchange; else every token.
        share: time of the engine's expert kernels over the tabulated ones.
        mxfp4_share: the same of its MXFP4 kernels, which are another library's, as far as they read weights.
        warp_products: those that unpack multiply by instructions of one warp, as Marlin's do.
    """
    shape = (hidden_size, intermediate_size, top_k, num_experts, moe_tp, moe_ep)
    kernels = functools.partial(
        _kernels, cal, gpu, dtype, shape=shape, shares=(share, mxfp4_share, warp_products)
    )
    if not exchanged or moe_ep == 1:
        return kernels(floats(tokens), like=shape)
    undivided = kernels(floats(tokens), like=(*shape[:5], 1))
    divided = kernels(np.minimum(floats(tokens), FEW_TOKENS), like=shape)
    return dataclasses.replace(undivided, seconds=np.maximum(undivided.seconds, divided.seconds))


def _kernels(
    cal: Calibration, gpu: Gpu, dtype: str, tokens: Floats, *, shape: Shape, like: Shape, shares: Shares
) -> KernelTime:
    """Experts of `shape` by the measured kernels nearest to `like`."""
    nearest = _nearest(cal, gpu, dtype, like)
    share, mxfp4_share, warp_products = shares
    if nearest is None:
        modelled = _modelled(cal, gpu, dtype, tokens, shape)
        return dataclasses.replace(modelled, seconds=modelled.seconds * share)
    known, log_seconds, table = nearest
    table_tokens = _remembered(cal, _table_name(cal, gpu))["tokens"]
    rows = tokens * shape[2] / shape[3]
    alike = rows * known[3] / known[2]
    wanted = alike * _load(alike, known) / drawn_load(alike, known[2], known[3], known[5])
    read = np.clip(wanted, table_tokens[0], table_tokens[-1])
    of_mxfp4 = table in (MXFP4, NATIVE_MXFP4)
    if table == MXFP4 and warp_products and generation_of(gpu).capability[0] == HOPPER:
        share = share / WARP_PRODUCTS
    engine = share * ((mxfp4_share / share) ** _share_of_reading(gpu, rows) if of_mxfp4 else 1.0)
    measured = engine * np.exp(np.interp(np.log(read), np.log(table_tokens), log_seconds))
    table_dtype = dtype if table in _tables(gpu, dtype) else OTHERWISE[table]
    if known == shape and table_dtype == dtype and gpu.name == stand_in(cal, gpu):
        beyond = np.maximum(wanted / table_tokens[-1], 1.0)
        return KernelTime(seconds=measured * beyond, extrapolated=beyond > 1.0, source="measured experts")
    modelled = _modelled(cal, gpu, dtype, tokens, shape)
    ratio = measured / _modelled(cal, gpu, table_dtype, alike * read / wanted, known).seconds
    sizes = " ".join(f"{name}={size}" for name, size in zip(SIZES, known, strict=True))
    return KernelTime(
        seconds=modelled.seconds * ratio,
        extrapolated=np.ones_like(ratio, dtype=bool),
        source=f"experts carried over from {sizes}",
    )


def _share_of_reading(gpu: Gpu, rows: Floats) -> Floats:
    """Share of an expert's time that reads weights, of so many rows: ridge/(ridge + rows).

    An engine's other kernels read better or worse than the tabulated ones; products run at the peak of
    either. The ridge is the number of rows at which both take as long, the products in sixteen bits.
    """
    ridge = gpu.peak("bf16") / gpu.memory_bandwidth_bytes_per_s * MXFP4_BYTES / 2
    return ridge / (ridge + rows)


def chance_load(rows: Floats, ranks: int) -> Floats:
    """Rows of the busiest rank over the mean when chance alone decides where they go.

    1 + √(2·ln(ranks)/rows): the expected maximum of `ranks` Poisson counts, in the Gaussian limit.

    >>> chance_load(np.array([16.0, 1600.0]), 8).round(2).tolist()
    [1.51, 1.05]
    """
    return np.asarray(1 + np.sqrt(2 * np.log(ranks) / np.maximum(rows, 1.0)))


def drawn_load(tokens: Floats, top_k: int, num_experts: int, ranks: int) -> Floats:
    """Rows of the busiest rank over the mean where the tables' routing was drawn.

    aiconfigurator's `power_law_logits_v3` draws the popularity of every expert from 1/x between 1 and 0.8 of
    the tokens, or 0.01 and 2 of few, deals experts to ranks as they are numbered, and times the rank that has
    most. A sum of n such numbers is close to a gamma law of shape n/cv², cv² = ln(r)/2 · (r + 1)/(r − 1) − 1,
    r the ratio of the ends; its expected maximum of so many ranks is near the quantile 1 − e^−γ/ranks.

    >>> drawn_load(np.array([64.0, 8192.0]), 8, 256, 8).round(2).tolist()
    [1.28, 1.51]
    >>> drawn_load(np.array([64.0, 8192.0]), 8, 256, 1).tolist()
    [1.0, 1.0]
    """
    if ranks == 1:
        return np.ones_like(tokens)
    ratio = np.where(tokens * top_k > num_experts, np.maximum(0.8 * tokens, 2.0), 200.0)
    variance = np.log(ratio) / 2 * (ratio + 1) / (ratio - 1) - 1
    shape = num_experts / ranks / variance
    score = NormalDist().inv_cdf(1 - math.exp(-np.euler_gamma) / ranks)
    return np.asarray((1 - 1 / (9 * shape) + score / (3 * np.sqrt(shape))) ** 3)


def _load(tokens: Floats, shape: Shape) -> Floats:
    """Rows of the busiest rank of a shape over the mean: popularity, and chance."""
    _, _, top_k, experts, _, ep = shape
    return busiest_rank_load(experts, ep, ROUTING_SKEW) * chance_load(tokens * top_k / ep, ep)


def _modelled(cal: Calibration, gpu: Gpu, dtype: str, tokens: Floats, shape: Shape) -> KernelTime:
    """Closed form of the experts of a shape on the busiest rank."""
    hidden, inner, top_k, experts, tp, ep = shape
    return moe_ffn(
        cal,
        gpu,
        dtype,
        tokens=tokens * chance_load(tokens * top_k / ep, ep),
        hidden_size=hidden,
        intermediate_size=inner,
        top_k=top_k,
        num_experts=experts,
        moe_tp=tp,
        moe_ep=ep,
        skew=ROUTING_SKEW,
    )


def _table_name(cal: Calibration, gpu: Gpu) -> str:
    """Name of the expert table of a GPU, or of the GPU that stands for it."""
    return f"moe-{stand_in(cal, gpu)}"


def _nearest(cal: Calibration, gpu: Gpu, dtype: str, shape: Shape) -> Measured | None:
    """The measured shape nearest to `shape` in log distance, with its log seconds and its table.

    Remembered in `cal.tables`.
    """
    key = ("moe", gpu.name, dtype, *(str(size) for size in shape))
    if key not in cal.tables:
        cal.tables[key] = _search(cal, gpu, dtype, shape)
    nearest: Measured | None = cal.tables[key]
    return nearest


def _search(cal: Calibration, gpu: Gpu, dtype: str, shape: Shape) -> Measured | None:
    """Search the tables of `dtype` for the nearest shape."""
    name = _table_name(cal, gpu)
    arrays = _remembered(cal, name)
    if not arrays:
        return None
    weight = np.array([SAME_MODEL] * 4 + [SPLIT] * 2)
    distance = np.abs(np.log(arrays["shapes"] / np.array(shape, dtype=float))) @ weight
    tables = _tables(gpu, dtype)
    if not np.isin(arrays["dtypes"], tables).any():
        tables = tuple(OTHERWISE)
    for rank, table in enumerate(tables):
        distance = np.where(arrays["dtypes"] == table, distance + 1e-3 * rank, distance)
    known = np.isin(arrays["dtypes"], tables)
    if not known.any():
        return None
    best = int(np.where(known, distance, np.inf).argmin())
    log_seconds = arrays["log_seconds"][best].astype(float)
    table = str(arrays["dtypes"][best])
    if table == MXFP4 and dtype == "fp4" and "fp4" in gpu.peak_flop_per_s:
        native = arrays["dtypes"] == NATIVE_MXFP4
        if native.any():
            best, table = int(np.where(native, distance, np.inf).argmin()), NATIVE_MXFP4
            log_seconds = arrays["log_seconds"][best].astype(float)
        else:
            log_seconds = log_seconds + np.log(_native_gain(gpu, arrays["tokens"], log_seconds))
    return tuple(int(size) for size in arrays["shapes"][best]), log_seconds, table


def _tables(gpu: Gpu, dtype: str) -> tuple[str, ...]:
    """The measured kernels that stand for a number format on a GPU, best first."""
    native = dtype != "fp4" or "fp4" in gpu.peak_flop_per_s
    return TABLES.get(dtype, ()) if native else WEIGHT_ONLY_FP4


def _native_gain(gpu: Gpu, tokens: Floats, log_seconds: Floats) -> Floats:
    """Time of a native fp4 kernel over that of one that unpacks to bf16, by tokens.

    gain = g·(1 − c) + (bf16 peak/fp4 peak)·c,   c = arithmetic's share of the time: what the largest batch
    costs per token, over what this one costs
    """
    per_token = log_seconds - np.log(tokens)
    arithmetic = np.exp(np.minimum(per_token[-1] - per_token, 0.0))
    gain = NATIVE_FP4_GAIN * (1 - arithmetic) + gpu.peak("bf16") / gpu.peak("fp4") * arithmetic
    return np.asarray(gain, dtype=np.float64)


def _remembered(cal: Calibration, name: str) -> Mapping[str, Floats]:
    """Arrays of a table, decompressed once."""
    key = ("moe", name)
    if key not in cal.tables:
        cal.tables[key] = {member: cal.arrays(name)[member] for member in cal.arrays(name)}
    arrays: Mapping[str, Floats] = cal.tables[key]
    return arrays
