"""Seconds of the routed experts of one layer.

Measured kernels where the shape was measured, carried over elsewhere.

The fused expert kernels of the engines neither stream weights nor multiply as well as plain GEMMs do, and
by how much depends on the shape. So the closed form of `kernels.moe_ffn` is multiplied by measured/modelled
of the nearest measured shape, at the same rows per expert:

    t = model(shape, tokens) · measured(near, tokens')/model(near, tokens'),   tokens'·k'/E' = tokens·k/E

which is the measurement itself when the shape is in the table.

Legend: ``H`` hidden, ``F`` width of an expert, ``k`` experts per token, ``E`` experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from costmodel.calibration import Calibration
from costmodel.grids import Floats
from costmodel.kernel_time import KernelTime, floats
from costmodel.kernels import moe_ffn
from costmodel.references import stand_in
from topology.gpu import Gpu

MEASURED_SKEW: Final = 1.01  # routing of the measured tables: popularity falls as rank^−1.01
TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "bf16": ("bfloat16",),
    "fp16": ("bfloat16",),
    "fp8": ("fp8_block", "fp8"),
    "mxfp8": ("fp8_block", "fp8"),
    "fp4": ("nvfp4", "w4a8_mxfp4_mxfp8", "w4a16_mxfp4"),
    "int4": ("int4_wo", "w4a16_mxfp4"),
    "int8": ("fp8", "bfloat16"),
}
"""Measured kernels that stand for a number format, best first; a shape in an earlier one is preferred."""
WEIGHT_ONLY_FP4: Final = ("w4a16_mxfp4", "int4_wo")
"""The same for fp4 weights on GPUs without fp4 units."""

NATIVE_FP4_GAIN: Final = 0.5
"""Time of a kernel that multiplies fp4 natively over the tabulated one that unpacks to bf16 (w4a16_mxfp4),
on GPUs with fp4 units. Fitted on gpt-oss-120b on b200-sxm in serving_runs.csv: 0.49 (trtllm, 71 runs) and
0.50 (vllm, 56 runs)."""

SAME_MODEL, SPLIT = 4.0, 1.0  # weight of a different model shape against a different split, in log distance


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
    """
    shape = (hidden_size, intermediate_size, top_k, num_experts, moe_tp)
    modelled = _modelled(cal, gpu, dtype, floats(tokens), shape, moe_ep)
    found = _nearest(cal, gpu, dtype, shape)
    if found is None:
        return modelled
    near, log_seconds = found
    table_tokens = _remembered(cal, _table_name(cal, gpu))["tokens"]
    rows = np.clip(
        floats(tokens) * (top_k * near[3] / (num_experts * near[2])), table_tokens[0], table_tokens[-1]
    )
    measured = np.exp(np.interp(np.log(rows), np.log(table_tokens), log_seconds))
    if near == shape and moe_ep == 1 and gpu.name == stand_in(cal, gpu):
        beyond = np.maximum(floats(tokens) / table_tokens[-1], 1.0)
        return KernelTime(seconds=measured * beyond, extrapolated=beyond > 1.0, source="measured experts")
    ratio = measured / _modelled(cal, gpu, dtype, rows, near, 1).seconds
    source = f"experts carried over from H={near[0]} F={near[1]} k={near[2]} E={near[3]} tp={near[4]}"
    return KernelTime(
        seconds=modelled.seconds * ratio, extrapolated=np.ones_like(ratio, dtype=bool), source=source
    )


def _modelled(
    cal: Calibration, gpu: Gpu, dtype: str, tokens: Floats, shape: tuple[int, ...], ep: int
) -> KernelTime:
    """Closed form of the experts of a shape."""
    hidden, inner, top_k, experts, tp = shape
    return moe_ffn(
        cal,
        gpu,
        dtype,
        tokens=tokens,
        hidden_size=hidden,
        intermediate_size=inner,
        top_k=top_k,
        num_experts=experts,
        moe_tp=tp,
        moe_ep=ep,
        skew=MEASURED_SKEW,
    )


def _table_name(cal: Calibration, gpu: Gpu) -> str:
    """Name of the expert table of a GPU, or of the GPU that stands for it."""
    return f"moe-{stand_in(cal, gpu)}"


def _nearest(
    cal: Calibration, gpu: Gpu, dtype: str, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], Floats] | None:
    """The measured shape nearest to `shape` in log distance, with its log seconds.

    Remembered in `cal.tables`.
    """
    key = ("moe", gpu.name, dtype, *(str(size) for size in shape))
    if key not in cal.tables:
        cal.tables[key] = _search(cal, gpu, dtype, shape)
    found: tuple[tuple[int, ...], Floats] | None = cal.tables[key]
    return found


def _search(
    cal: Calibration, gpu: Gpu, dtype: str, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], Floats] | None:
    """Search the tables of `dtype` for the nearest shape."""
    name = _table_name(cal, gpu)
    arrays = _remembered(cal, name)
    if not arrays:
        return None
    weight = np.array([SAME_MODEL] * 4 + [SPLIT])
    distance = np.abs(np.log(arrays["shapes"] / np.array(shape, dtype=float))) @ weight
    tables = WEIGHT_ONLY_FP4 if dtype == "fp4" and "fp4" not in gpu.peak_flop_per_s else TABLES.get(dtype, ())
    for rank, table in enumerate(tables):
        distance = np.where(arrays["dtypes"] == table, distance + 1e-3 * rank, distance)
    known = np.isin(arrays["dtypes"], tables)
    if not known.any():
        return None
    best = int(np.where(known, distance, np.inf).argmin())
    unpacks = arrays["dtypes"][best] == "w4a16_mxfp4" and "fp4" in gpu.peak_flop_per_s
    gain = np.log(NATIVE_FP4_GAIN) if unpacks else 0.0
    return tuple(int(size) for size in arrays["shapes"][best]), arrays["log_seconds"][best].astype(
        float
    ) + gain


def _remembered(cal: Calibration, name: str) -> Mapping[str, Floats]:
    """Arrays of a table, decompressed once."""
    key = ("moe", name)
    if key not in cal.tables:
        cal.tables[key] = {member: cal.arrays(name)[member] for member in cal.arrays(name)}
    arrays: Mapping[str, Floats] = cal.tables[key]
    return arrays
