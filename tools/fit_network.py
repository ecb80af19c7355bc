"""Fit the latencies of collectives across nodes and print them (development only; needs pandas, scipy).

    PYTHONPATH=. python tools/fit_network.py ../shared/data

Rows: published nccl-tests of 2 to 20 nodes of at least 4 MiB, misconfigured ones left out, and SimAI's NIC
efficiencies. Every (system, nodes) weighs the same, SimAI's `SIMAI_WEIGHT` times, in log time with a soft-L1
loss. The goodput of a NIC is not fitted: it is the plateau at 16 GiB. The values are then written by hand
into `calibration_constants.json`, rounded.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from costmodel.kernels.collectives import collective_time
from costmodel.kernels.tables import Calibration, load_calibration
from topology.base.arrays import Floats
from topology.base.units import GB, MIB
from topology.builders import default_cluster
from topology.fabric.hierarchy import Hierarchy

FITTED = ("fill_s", "half_s", "step_inside_s", "step_outside_s")
BOUNDS = {"fill_s": (1e-7, 1e-3), "half_s": (1e-6, 1e-2)}
BOUNDS |= {"step_inside_s": (2e-7, 1e-5), "step_outside_s": (5e-7, 1e-4)}
SYSTEMS = {
    "p5 8xH100 + 32x100G EFA": ("h100-sxm", None),
    "p6-b200 8xB200 NVLink5 + 8x400G EFAv4": ("b200-sxm", None),
    "HGX H100 12 nodes NDR IB (SHARP job)": ("h100-sxm", None),
    "GB200 NVL72 2 racks, IB": ("gb200", None),
    "GB200 NVL72 20 racks, IB": ("gb200", None),
}
# An older EFA with three times the latency of the others: shown, not fitted.
CHECKED = {"p4de 8xA100-80 + 4x100G EFA": ("a100-sxm-80gb", 6.25e9)}
SMALLEST = 4 * MIB
SIMAI_WEIGHT = 0.6
SIMAI_NODES = (2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class Series:
    """Measured seconds of one collective on one system, by message size."""

    name: str
    hierarchy: Hierarchy
    op: str
    size: int
    message_bytes: Floats
    seconds: Floats
    weight: float


def published(data: Path, systems: dict[str, tuple[str, float | None]]) -> list[Series]:
    """Return the published all-reduces of these systems across nodes."""
    frame = pd.read_csv(data / "kernels" / "nccl_published.csv")
    out = []
    for system, (gpu, nic) in systems.items():
        rows = frame[(frame.system == system) & (frame.bytes >= SMALLEST) & (frame.n_nodes > 1)]
        n = int(rows.n_gpus.iloc[0])
        seconds = 2 * (n - 1) / n * rows.bytes / (rows.busbw_GBps * GB)
        h = default_cluster(gpu, n, nic_bandwidth_bytes_per_s=nic).hierarchy
        out.append(series(system, h, "all_reduce", n, rows.bytes, seconds, 1.0))
    return out


def simai(data: Path) -> list[Series]:
    """Return SimAI's efficiencies as seconds of all-gathers over 8 NICs of 400 Gbit/s per node."""
    frame = pd.read_csv(data / "kernels" / "scaling_efficiency_nic_ratio.csv")
    out = []
    for column, nodes in enumerate(SIMAI_NODES, start=2):
        n = 8 * nodes
        h = default_cluster("h100-sxm", n).hierarchy
        ideal = (n - 1) / n * frame.Size / (8 * h.levels[0].uplink_bytes_per_s)
        seconds = ideal / frame.iloc[:, column]
        out.append(series(f"SimAI {nodes} nodes", h, "all_gather", n, frame.Size, seconds, SIMAI_WEIGHT))
    return out


def series(
    name: str, h: Hierarchy, op: str, size: int, message_bytes: pd.Series, seconds: pd.Series, weight: float
) -> Series:
    """Return a series whose points share one weight."""
    return Series(
        name=name,
        hierarchy=h,
        op=op,
        size=size,
        message_bytes=message_bytes.to_numpy(dtype=np.float64),
        seconds=seconds.to_numpy(dtype=np.float64),
        weight=weight / float(np.sqrt(len(seconds))),
    )


def misfit(cal: Calibration, one: Series) -> Floats:
    """Return log (predicted/measured) of a series."""
    predicted = collective_time(cal, one.hierarchy, one.op, one.message_bytes, one.size, 1)
    return np.log(predicted / one.seconds)


def with_constants(values: Floats) -> Calibration:
    """Return a calibration whose fitted network constants are replaced."""
    cal = load_calibration()
    cal.tables["network",] = {**cal.network(), **dict(zip(FITTED, np.exp(values).tolist(), strict=True))}
    return cal


def main() -> None:
    """Fit and print."""
    from scipy.optimize import least_squares

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    data = parser.parse_args().data
    rows = [*published(data, SYSTEMS), *simai(data)]
    now = load_calibration().network()
    low, high = (np.log([BOUNDS[name][side] for name in FITTED]) for side in (0, 1))
    fit = least_squares(
        lambda values: np.concatenate([misfit(with_constants(values), r) * r.weight for r in rows]),
        np.log([now[name] for name in FITTED]),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=0.1,
    )
    for name, value in zip(FITTED, np.exp(fit.x), strict=True):
        print(f"{name:16s} {now[name]:.4g} -> {value:.4g}")
    for cal, label in ((load_calibration(), "shipped"), (with_constants(fit.x), "refitted")):
        print(label)
        for r in [*rows, *published(data, CHECKED)]:
            off = np.abs(np.expm1(misfit(cal, r)))
            print(f"  {r.name:42s} median {np.median(off):.3f} largest {off.max():.3f}")


if __name__ == "__main__":
    main()
