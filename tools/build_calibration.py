"""Build `costmodel/data/kernels/` from the measured kernel tables (development only; needs pandas, pyarrow).

    PYTHONPATH=. python tools/build_calibration.py ../shared/data

Reads gemm, attention, moe_ffn parquet files and the nccl CSV files; writes one `<gpu>.npz` per GPU with
log seconds on rectangular grids, and `fits.json` with the scalar constants, each with its source. Every
step is deterministic; nothing is read but the tables named here.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from build_moe_tables import moe_tables

from costmodel.kernels.grids import monotone
from topology.base.arrays import Floats
from topology.hardware.gpu import Gpu

OUTPUT = Path(__file__).resolve().parent.parent / "costmodel" / "data" / "kernels"
AS_OF = "2026-11-21"
TABLES = "aiconfigurator-core 0.12.0 measured tables (Apache-2.0)"

# Rows of GEMM: those that tile evenly; one row more runs another, often slower kernel and is not smooth.
GEMM_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 512, 768, 1024, 1280, 1536, 1792, 2048)
GEMM_ROWS += (2304, 2560, 2816, 3072, 3328, 3584, 3840, 4096, 4352, 8192, 16384, 32768)
ROUNDS = 3  # of isotonic fits over all axes
SPIKE = np.log(1.15)  # a node this far above what a larger problem takes is a measurement glitch
LARGER = tuple(2.0**power for power in range(30, 35))  # 1 to 16 GiB, beyond the single-node tables
LARGE_MESSAGES = {
    "a100-sxm-80gb": "8xA100 NVLink3",
    "h200-sxm": "8xH200 NVLink4",
    "b200-sxm": "p6-b200 8xB200 NVLink5 + 8x400G EFAv4",
}
WIDER_TWIN = {"gb200": "b200-sxm", "gb300": "b300-sxm"}  # 4-GPU trays, measured to 4: the HGX twin gives 8
NODE = 8
HEAD_DIM = 128  # of every attention table
GIGA, TERA = 10**9, 10**12
LARGE_BYTES = 2 * 10**8  # beyond every L2 cache here
CATALOG_NAMES = {
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "H100-SXM5-80GB": "h100-sxm",
    "H200-SXM-141GB": "h200-sxm",
    "B200-SXM": "b200-sxm",
    "L40S": "l40s",
}
ACHIEVED_NAMES = CATALOG_NAMES | {
    "A100-PCIe-80GB": "a100-pcie-80gb",
    "GH200-96GB": "gh200-96gb",
    "B300-SXM": "b300-sxm",
    "GB200": "gb200",
    "MI300X": "mi300x",
    "MI325X": "mi325x",
    "MI355X": "mi355x",
}
PUBLISHED_SHARES = {"t4": round(24 / 65, 3)}
"""Of 4,096 cubed in sixteen bits at 70 W, whose cap it is: forums.developer.nvidia.com 264462."""
COLLECTIVES = {"all_reduce": "all_reduce", "all_gather": "all_gather"}
COLLECTIVES |= {"reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}


def measured(data: Path, table: str, gpu: str) -> pd.DataFrame:
    """Return the rows of a parquet table that were measured on a GPU."""
    frame = pd.read_parquet(data / "kernels" / f"{table}.parquet")
    return frame[frame.gpu == gpu]


def nodes(frame: pd.DataFrame, axes: list[str]) -> tuple[list[Floats], Floats]:
    """Return the axes of `frame` and log median latency on their grid, with NaN in its holes."""
    values = [np.sort(frame[axis].unique()) for axis in axes]
    full = pd.MultiIndex.from_product(values, names=axes)
    latency = frame.groupby(axes).latency_s.median().reindex(full)
    shape = [len(v) for v in values]
    return [v.astype(np.float64) for v in values], np.log(latency.to_numpy(dtype=np.float64)).reshape(shape)


def filled(log_values: Floats, axes: list[Floats], powers: Sequence[float] = (1.0, 1.0, 1.0)) -> Floats:
    """Fill holes from a neighbour, scaled by a power of the coordinate that separates them."""
    while np.isnan(log_values).any():
        before = np.isnan(log_values).sum()
        for index, axis in enumerate(axes):
            shape = [-1 if j == index else 1 for j in range(len(axes))]
            for step in (1, -1):
                neighbour = np.roll(log_values, step, index)
                edge: list[slice | int] = [slice(None)] * len(axes)
                edge[index] = 0 if step == 1 else -1
                neighbour[tuple(edge)] = np.nan
                ratio = powers[index] * np.log(axis / np.roll(axis, step)).reshape(shape)
                log_values = np.where(np.isnan(log_values), neighbour + ratio, log_values)
        if np.isnan(log_values).sum() == before:
            raise SystemExit("error: a table has a hole that no neighbour can fill")
    return log_values


def steadied(log_values: Floats, axes: list[int]) -> Floats:
    """Cut spikes above the time of any larger problem (which could be padded to), then make monotone.

    Least-squares isotonic fits along one axis after another, repeated, leave next to nothing for the
    envelopes that end it exactly monotone.
    """
    lower = log_values
    for axis in axes:
        lower = np.flip(np.minimum.accumulate(np.flip(lower, axis), axis=axis), axis)
    steady = np.minimum(log_values, lower + SPIKE)
    for _ in range(ROUNDS):
        for axis in axes:
            steady = np.apply_along_axis(isotonic, axis, steady)
    return monotone(steady, axes)


def isotonic(values: Floats) -> Floats:
    """Return the nearest rising sequence in least squares (pool adjacent violators)."""
    if (np.diff(values) >= 0).all():
        return values
    means: list[float] = []
    sizes: list[int] = []
    for value in values:
        means.append(float(value))
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            size = sizes[-2] + sizes[-1]
            means[-2] = (means[-2] * sizes[-2] + means[-1] * sizes[-1]) / size
            sizes[-2] = size
            means.pop()
            sizes.pop()
    return np.repeat(means, sizes)


def gemm_tables(data: Path, gpu: str) -> dict[str, Floats]:
    """Return the GEMM grids of a GPU by dtype, of the rows in `GEMM_ROWS`."""
    frame = measured(data, "gemm", gpu)
    frame = frame[frame.m.isin(GEMM_ROWS)]
    out: dict[str, Floats] = {}
    for dtype, rows in frame.groupby("dtype"):
        axes, log_values = nodes(rows, ["m", "n", "k"])
        out[f"gemm_{dtype}"] = steadied(filled(log_values, axes), [0, 1, 2])
        out |= {"gemm_m": axes[0], "gemm_n": axes[1], "gemm_k": axes[2]}
    return out


def prefill_table(data: Path, gpu: str, bandwidth: float) -> tuple[dict[str, Floats], float]:
    """Return the prefill grid of a GPU, and the passes over K and V that its measurements include.

    The measured kernels also write the KV cache: seconds = T(batch·heads, tokens) + c·(K,V bytes)/bandwidth,
    with the c that leaves the smallest spread among shapes of equal batch·heads.
    """
    frame = measured(data, "attention_prefill", gpu)
    frame = frame.assign(prefill_batch_heads=frame.batch_size * frame.num_heads)
    frame = frame.rename(columns={"query_tokens": "prefill_tokens"})
    axes = ["prefill_batch_heads", "prefill_tokens"]
    cache = 4 * HEAD_DIM * frame.batch_size * frame.prefill_tokens * frame.num_key_value_heads / bandwidth
    best: tuple[float, float, pd.DataFrame] | None = None
    for half_writes in range(13):
        bare = frame.assign(
            latency_s=np.maximum(frame.latency_s - half_writes / 2 * cache, frame.latency_s / 5)
        )
        middle = bare.groupby(axes).latency_s.transform("median") + half_writes / 2 * cache
        spread = float((middle / frame.latency_s - 1).abs().mean())
        if best is None or spread < best[0]:
            best = (spread, half_writes / 2, bare)
    assert best is not None  # noqa: S101 - the loop ran
    grid_axes, log_values = nodes(best[2], axes)
    table = steadied(filled(log_values, grid_axes, (1.0, 2.0)), [0, 1])
    return {"prefill": table, **dict(zip(axes, grid_axes, strict=True))}, best[1]


def decode_table(data: Path, gpu: str) -> dict[str, Floats]:
    """Return the decode grid of a GPU: batch·kv_heads, cached tokens, query heads per kv head."""
    frame = measured(data, "attention_decode", gpu)
    group = frame.num_heads // frame.num_key_value_heads
    frame = frame.assign(
        decode_batch_kv_heads=frame.batch_size * frame.num_key_value_heads,
        decode_group=2 ** np.round(np.log2(group)).astype(int),
    )
    frame = frame[np.log2(frame.decode_batch_kv_heads) % 1 == 0]
    frame = frame.rename(columns={"kv_tokens": "decode_tokens"})
    axes = ["decode_batch_kv_heads", "decode_tokens", "decode_group"]
    grid_axes, log_values = nodes(frame, axes)
    table = steadied(filled(log_values, grid_axes, (1.0, 1.0, 0.0)), [0, 1, 2])
    return {"decode": table, **dict(zip(axes, grid_axes, strict=True))}


def collective_tables(data: Path) -> dict[str, dict[str, Floats]]:
    """Return per GPU one log-seconds table per collective: GPUs in the group × message bytes."""
    frame = pd.read_csv(data / "kernels" / "nccl_single_node.csv").query("dtype == 'half'")
    frame = frame.assign(op=frame.collective.map(COLLECTIVES))
    out: dict[str, dict[str, Floats]] = {}
    for gpu, rows in frame.groupby("gpu"):
        tables: dict[str, Floats] = {}
        for op, of_op in rows.groupby("op"):
            (counts, sizes), log_values = nodes(of_op, ["num_gpus", "bytes"])
            tables[f"nccl_{op}"] = continued(log_values, sizes)
            tables |= {"nccl_gpus": counts, "nccl_bytes": np.append(sizes, LARGER)}
        out[str(gpu)] = tables
    for gpu, system in LARGE_MESSAGES.items():
        out[gpu]["nccl_all_reduce"][-1, -len(LARGER) :] = large_all_reduce(data, system, out[gpu])
    for gpu, twin in WIDER_TWIN.items():
        for op in COLLECTIVES.values():
            own, other = out[gpu][f"nccl_{op}"], out[twin][f"nccl_{op}"]
            out[gpu][f"nccl_{op}"] = np.vstack([own, other[-1] + own[-1] - other[-2]])
        out[gpu]["nccl_gpus"] = out[twin]["nccl_gpus"]
    return out


def continued(log_values: Floats, sizes: Floats) -> Floats:
    """Append the sizes of `LARGER`, where time keeps growing as over the last measured interval."""
    last, before = np.exp(log_values[:, -1]), np.exp(log_values[:, -2])
    slope = (last - before) / (sizes[-1] - sizes[-2])
    beyond = last[:, None] + slope[:, None] * (np.array(LARGER) - sizes[-1])
    return np.hstack([log_values, np.log(beyond)])


def large_all_reduce(data: Path, system: str, tables: dict[str, Floats]) -> Floats:
    """Return log seconds at `LARGER` from a published run, at the level our own table has at 512 MiB."""
    frame = pd.read_csv(data / "kernels" / "nccl_published.csv")
    rows = frame[(frame.system == system) & (frame.n_nodes == 1) & (frame.n_gpus == NODE)]
    rows = rows[rows.notes.str.contains("nccl-tests|NVLS on|torch", na=False)].set_index("bytes")
    seconds = 2 * (NODE - 1) / NODE * rows.index / (rows.busbw_GBps * GIGA)
    level = tables["nccl_all_reduce"][-1, -len(LARGER) - 1] - np.log(seconds[LARGER[0] / 2])
    return np.log(seconds[list(LARGER)].to_numpy()) + level


def single(tables: dict[str, Floats]) -> dict[str, np.ndarray]:
    """Return tables in single precision, which is finer than any measurement."""
    return {name: table.astype(np.float32) for name, table in tables.items()}


def hardware(data: Path) -> pd.DataFrame:
    """Return datasheet facts of the measured GPUs by their catalog name."""
    frame = pd.read_csv(data / "hardware.csv").set_index("name")
    return frame.loc[list(CATALOG_NAMES)].rename(index=CATALOG_NAMES)


def peaks(facts: pd.Series) -> dict[str, float]:
    """Return dense peaks by dtype in flop/s."""
    found = {dtype: facts[f"{dtype}_tflops"] * TERA for dtype in ("fp32", "tf32", "bf16", "fp8", "fp4")}
    return {dtype: float(peak) for dtype, peak in found.items() if peak == peak}  # noqa: PLR0124 - NaN


def memory_efficiency(frame: pd.DataFrame, bandwidth: float) -> float:
    """Return the share of the data-sheet bandwidth that large memory-bound GEMMs reach (90th percentile)."""
    width = frame.dtype.map({"bf16": 2, "fp8": 1})
    moved = width * (frame.m * frame.k + frame.n * frame.k) + 2 * frame.m * frame.n
    large = (frame.m <= 16) & (moved > LARGE_BYTES)
    return float((moved[large] / frame.latency_s[large] / bandwidth).quantile(0.9))


def gpu_fits(data: Path, facts: pd.DataFrame) -> dict[str, dict[str, object]]:
    """Return peaks, launch floor and memory efficiency of every GPU that has a GEMM table."""
    frame = pd.read_parquet(data / "kernels" / "gemm.parquet")
    out: dict[str, dict[str, object]] = {}
    for gpu, rows in frame.groupby("gpu"):
        bandwidth = float(facts.loc[gpu, "mem_bw_gbps"]) * GIGA
        out[str(gpu)] = {
            "peak_flop_per_s": peaks(facts.loc[gpu]),
            "memory_bandwidth_bytes_per_s": bandwidth,
            "launch_s": float(f"{rows.latency_s.quantile(0.001):.3g}"),
            "memory_efficiency": round(memory_efficiency(rows, bandwidth), 3),
        }
    return out


def achievable_shares(data: Path) -> dict[str, float]:
    """Return the measured share of the dense bf16 peak that a large matmul reaches, by catalog name."""
    frame = pd.read_csv(data / "hardware.csv").dropna(subset=["mamf_bf16_tflops"])
    shares = frame.mamf_bf16_tflops / frame.bf16_tflops
    names = frame.name.map(ACHIEVED_NAMES)
    found = {name: round(float(share), 3) for name, share in zip(names, shares, strict=True)}
    of_table = {"l40s": large_gemm_share(data, "l40s", float(frame_peak(data, "L40S")))}
    return found | of_table | PUBLISHED_SHARES


def frame_peak(data: Path, name: str) -> float:
    """Return the dense bf16 peak of a datasheet row in flop/s."""
    return float(pd.read_csv(data / "hardware.csv").set_index("name").loc[name, "bf16_tflops"]) * TERA


def large_gemm_share(data: Path, gpu: str, peak: float) -> float:
    """Return the 99th percentile of achieved over peak flop/s in a GPU's bf16 GEMM table."""
    frame = measured(data, "gemm", gpu)
    frame = frame[frame.dtype == "bf16"]
    rate = 2.0 * frame.m * frame.n * frame.k / frame.latency_s
    return round(float(rate.quantile(0.99)) / peak, 3)


def attention_fits(data: Path, gpus: list[str], cache_writes: dict[str, float]) -> dict[str, object]:
    """Return the scalar constants of attention measured per GPU."""
    frame = pd.read_parquet(data / "kernels" / "attention_decode.parquet")
    floors = frame.groupby("gpu").latency_s.quantile(0.01)
    return {
        "cache_write_passes": cache_writes,
        "decode_launch_s": {gpu: float(f"{floors[gpu]:.3g}") for gpu in gpus},
    }


def add_moe_tables(data: Path, facts: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Add the MoE tables to the files just written, which they build on; return the fixed seconds."""
    fixed: dict[str, dict[str, float]] = {}
    for name in facts.index:
        gpu = Gpu(
            name=name,
            architecture=str(facts.loc[name, "arch"]).lower(),
            peak_flop_per_s=peaks(facts.loc[name]),
            memory_bytes=float(facts.loc[name, "mem_gb"]) * GIGA,
            memory_bandwidth_bytes_per_s=float(facts.loc[name, "mem_bw_gbps"]) * GIGA,
            tdp_w=float(facts.loc[name, "tdp_w"]),
            source=str(facts.loc[name, "source"]),
            as_of=AS_OF,
        )
        tables, fixed[name] = moe_tables(data, gpu)
        with np.load(OUTPUT / f"{name}.npz") as before:
            kept = {key: before[key] for key in before.files}
        np.savez_compressed(OUTPUT / f"{name}.npz", **kept, **single(tables))
    return fixed


def write_fits(fits: dict[str, object]) -> None:
    """Write the scalar constants."""
    text = json.dumps(fits, indent=1, sort_keys=True) + "\n"
    (OUTPUT / "fits.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Build everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with kernels/ and hardware.csv")
    data = parser.parse_args().data
    facts = hardware(data)
    gpus = gpu_fits(data, facts)
    collectives = collective_tables(data)
    cache_writes: dict[str, float] = {}
    for gpu in sorted({*gpus, *collectives}):
        tables = dict(collectives.get(gpu, {}))
        if gpu in gpus:
            prefill, cache_writes[gpu] = prefill_table(data, gpu, gpus[gpu]["memory_bandwidth_bytes_per_s"])
            tables |= gemm_tables(data, gpu) | prefill | decode_table(data, gpu)
        np.savez_compressed(OUTPUT / f"{gpu}.npz", **single(tables))
    fits = {"source": TABLES, "as_of": AS_OF, "gpus": gpus, "achievable_share": achievable_shares(data)}
    fits["attention"] = attention_fits(data, list(gpus), cache_writes)
    fits |= json.loads((Path(__file__).parent / "calibration_constants.json").read_text(encoding="utf-8"))
    write_fits(fits)
    fits["moe_fixed_s"] = add_moe_tables(data, facts)
    write_fits(fits)


if __name__ == "__main__":
    main()
