"""Compare fused MoE kernels with the ideal grouped GEMM of `costmodel.kernels.compute` (development only).

`tools/build_calibration.py` calls this last, when the GEMM tables exist. Only rows of one rank holding all
experts are used: how the published expert-parallel rows place tokens differs between kernels.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from costmodel.kernels.compute import grouped_gemm_time
from costmodel.kernels.tables import load_calibration
from topology.base.arrays import Floats
from topology.hardware.gpu import Gpu

ROWS = 2.0 ** np.arange(0, 12)
ROUTING = "power_law_1.01"  # the nearest to what real routers do
INNER = 2.0 ** np.arange(5, 15)
TABLE_NAMES = {"bfloat16": "bf16", "fp8_block": "fp8", "nvfp4": "fp4", "int4_wo": "int4"}
REACH = 0.7  # octaves: how far a row counts towards a node


def moe_tables(data: Path, gpu: Gpu) -> tuple[dict[str, Floats], dict[str, float]]:
    """Return log (measured/ideal) by rows per touched expert and inner width, and fixed seconds, by dtype."""
    frame = pd.read_parquet(data / "kernels" / "moe_ffn.parquet")
    frame = frame[(frame.gpu == gpu.name) & (frame.moe_ep_size == 1) & (frame.distribution == ROUTING)]
    keys = [column for column in frame.columns if column != "latency_s"]
    frame = frame.groupby(keys).latency_s.median().reset_index()
    tables: dict[str, Floats] = {}
    fixed: dict[str, float] = {}
    for name, dtype in TABLE_NAMES.items():
        rows = frame[(frame.moe_dtype == name) & (frame.inter_size // frame.moe_tp_size >= INNER[0])]
        if rows.empty:
            continue
        ideal, per_expert, inner = ideal_seconds(gpu, dtype, rows)
        single = rows.num_tokens.to_numpy() == 1
        overhead = np.quantile((rows.latency_s.to_numpy() - ideal)[single], 0.25)
        fixed[dtype] = float(f"{max(overhead, 0.0):.2g}")
        ratio = np.log(np.maximum(rows.latency_s.to_numpy() - fixed[dtype], 1e-7) / ideal)
        tables[f"moe_{dtype}"] = smoothed(np.log2(per_expert), np.log2(inner), ratio)
    return {**tables, "moe_rows": ROWS, "moe_inner": INNER}, fixed


def ideal_seconds(gpu: Gpu, dtype: str, rows: pd.DataFrame) -> tuple[Floats, Floats, Floats]:
    """Return the ideal seconds of both grouped GEMMs, rows per touched expert, width of an expert's shard."""
    cal = load_calibration()
    mean = (rows.num_tokens * rows.topk / rows.num_experts).to_numpy(dtype=np.float64)
    inner = (rows.inter_size / rows.moe_tp_size).to_numpy(dtype=np.float64)
    hidden, experts = rows.hidden_size.to_numpy(), rows.num_experts.to_numpy()
    up = grouped_gemm_time(cal, gpu, dtype, mean, 2 * inner, hidden, experts).seconds
    down = grouped_gemm_time(cal, gpu, dtype, mean, hidden, inner, experts).seconds
    return up + down, mean / -np.expm1(-mean), inner


def smoothed(x: Floats, y: Floats, values: Floats) -> Floats:
    """Return a local mean of `values` at the nodes of (ROWS, INNER): Gaussian weights over octaves."""
    nodes_x, nodes_y = np.meshgrid(np.log2(ROWS), np.log2(INNER), indexing="ij")
    far = (nodes_x[..., None] - x) ** 2 + (nodes_y[..., None] - y) ** 2
    weight = np.exp(-far / (2 * REACH**2)) + 1e-12 / (1 + far)
    return np.asarray((weight * values).sum(axis=-1) / weight.sum(axis=-1))
