"""Which measured GEMM table stands for a (GPU, precision), and how to carry its times over.

A GPU with its own table is read directly. Otherwise the table of the nearest measured GPU is used at equal
utilisation: time above the launch floor scales with the ratio of the two rooflines,

    t = t0 + (t_table − t0) · roof(wanted)/roof(table),   roof = max(flop/peak, bytes/bandwidth)

and the same rule carries bf16 over to weight-only int8/int4 and fp8 over to fp4. It is applied once, at the
nodes of the grid, and what falls along an axis is levelled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.kernels.grids import Grid, monotone
from costmodel.kernels.precisions import INT4, INT8, PRECISIONS, Precision
from costmodel.kernels.tables import Calibration
from topology.base.arrays import Floats
from topology.base.errors import InputError
from topology.hardware.datasheets import generation_of
from topology.hardware.gpu import Gpu

GEMM_AXES = ("gemm_m", "gemm_n", "gemm_k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Peak arithmetic and memory rates of a GPU in one precision, and that precision's operand bytes."""

    flop_per_s: float
    bytes_per_s: float
    precision: Precision

    def seconds(self, m: Floats, n: Floats, k: Floats) -> Floats:
        """Return max(flop/peak, bytes/bandwidth) of C[m,n] = A[m,k]·B[k,n]; C is written in two bytes."""
        compute = m * n * k * (2 / self.flop_per_s)
        moved = self.precision.activation_bytes * m * k + self.precision.weight_bytes * n * k + 2 * m * n
        return np.maximum(compute, moved / self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """Log seconds of GEMMs of one (GPU, precision) on a grid; `exact` when measured on this very thing."""

    grid: Grid
    exact: bool
    source: str


def gemm_reference(cal: Calibration, gpu: Gpu, dtype: str) -> Reference:
    """Return the table for GEMMs of `dtype` on `gpu`, remembered in `cal.tables`."""
    key = ("gemm_reference", gpu.name, dtype)
    if key not in cal.tables:
        cal.tables[key] = _find(cal, gpu, dtype)
    reference: Reference = cal.tables[key]
    return reference


def stand_in(cal: Calibration, gpu: Gpu) -> str:
    """Return the measured GPU whose utilisation stands for `gpu`: itself, its twin, or its generation's."""
    fits = cal.fits()
    if gpu.name in fits["gpus"]:
        return gpu.name
    stand_ins = fits["stand_ins"]
    twin: str | None = stand_ins["by_name"].get(gpu.name)
    nearest: str = generation_of(gpu).kernels_of or stand_ins["other"]
    return twin or nearest


_NO_FIGURES = ("pci_device",)
"""Facts of a data sheet by which a part is known, and nothing is computed."""


def figures_note(cal: Calibration, gpu: Gpu) -> tuple[str, ...]:
    """What of a GPU rests on its data sheet alone; nothing where its kernels or a large matmul were measured.

    Args:
        cal: measured tables.
        gpu: a GPU of the catalog, or a user's own.
    """
    fits = cal.fits()
    if gpu.name in fits["gpus"] or gpu.name in fits["achievable_share"]:
        return ()
    figures = [figure for figure in gpu.unverified if figure not in _NO_FIGURES]
    recalled = f" ({', '.join(figures)}: recalled or derived)" if figures else ""
    stood = f"kernels reach the share of its roofline that those of {stand_in(cal, gpu)} reach of theirs"
    return (f"figures of {gpu.name} are known, not measured here{recalled}: {stood}",)


def achievable(cal: Calibration, gpu: Gpu) -> float:
    """Return the highest measured share of the bf16 peak that a large matmul reaches on `gpu`."""
    fits = cal.fits()
    measured: float | None = fits["achievable_share"].get(gpu.name)
    return measured or fits["achievable_share"][stand_in(cal, gpu)]


def precision_on(gpu: Gpu, dtype: str) -> Precision:
    """Return how `gpu` runs `dtype`; without fp8 or fp4 units the narrow weights are widened to bf16."""
    if dtype not in PRECISIONS:
        known = ", ".join(sorted(PRECISIONS))
        raise InputError(f"unknown precision {dtype}", f"kernels are known for {known}", "choose one")
    precision = PRECISIONS[dtype]
    if precision.peak == "fp4" and "fp4" not in gpu.peak_flop_per_s:
        return INT4
    if precision.peak == "fp8" and "fp8" not in gpu.peak_flop_per_s:
        return INT8
    return precision


def _find(cal: Calibration, gpu: Gpu, dtype: str) -> Reference:
    precision = precision_on(gpu, dtype)
    name = stand_in(cal, gpu)
    table = precision.table if f"gemm_{precision.table}" in cal.arrays(name) else "bf16"
    grid = cal.grid(name, f"gemm_{table}", GEMM_AXES)
    if grid is None:
        raise InputError(f"no GEMM table of {name}", f"{cal.directory} lacks it", "reinstall meshplan")
    exact = name == gpu.name and precision == PRECISIONS[table]
    if exact:
        return Reference(grid=grid, exact=True, source=f"GEMM {table} table of {name}, measured")
    measured = cal.fits()["gpus"][name]
    share = achievable(cal, gpu) / cal.fits()["achievable_share"][name]
    wanted = Roofline(
        flop_per_s=gpu.peak(precision.peak) * share,
        bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        precision=precision,
    )
    base = Roofline(
        flop_per_s=measured["peak_flop_per_s"][table],
        bytes_per_s=measured["memory_bandwidth_bytes_per_s"],
        precision=PRECISIONS[table],
    )
    source = f"GEMM {table} table of {name}, carried over at equal utilisation"
    axes = [cal.arrays(name)[axis].astype(np.float64) for axis in GEMM_AXES]
    carried = _carried_over(grid, axes, base, wanted, measured["launch_s"])
    return Reference(grid=Grid.from_logs(axes, carried), exact=False, source=source)


def _carried_over(
    grid: Grid, axes: Sequence[Floats], table: Roofline, wanted: Roofline, launch_s: float
) -> Floats:
    """Return log seconds at the nodes of a grid on other rooflines, kept rising along every axis."""
    m, n, k = np.meshgrid(*axes, indexing="ij")
    seconds = np.exp(grid.log_values.reshape(m.shape))
    floor = np.minimum(launch_s, seconds)
    ratio = wanted.seconds(m, n, k) / table.seconds(m, n, k)
    return monotone(np.log(floor + (seconds - floor) * ratio), (0, 1, 2))
