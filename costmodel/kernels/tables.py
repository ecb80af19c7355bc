"""Measured tables behind kernels and collectives, read only when something asks for them.

`data/kernels/<gpu>.npz` holds log seconds on rectangular grids, `data/kernels/fits.json` the scalar
constants with their sources; `tools/build_calibration.py` builds both. A user's own measurements override
the tables (see `measured_ratio`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.kernels.grids import Grid
from costmodel.kernels.measurement import Measurement
from topology.base.arrays import Floats
from topology.hardware.gpu import Gpu

DATA = Path(__file__).parents[1] / "data" / "kernels"
LARGEST_RATIO = 30.0  # a measurement further than this from the model is a mistake, not a correction


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Kernel and collective tables of `directory`, and the measurements that override them.

    `tables` is where this object keeps what it has read; two calibrations are equal when their sources are.
    """

    directory: Path = DATA
    measurements: tuple[Measurement, ...] = ()
    tables: dict[tuple[str, ...], Any] = field(default_factory=dict, compare=False, repr=False)

    def fits(self) -> Mapping[str, Any]:
        """Return the scalar constants by family, with their sources."""
        if ("fits",) not in self.tables:
            self.tables["fits",] = json.loads((self.directory / "fits.json").read_text(encoding="utf-8"))
        fits: Mapping[str, Any] = self.tables["fits",]
        return fits

    def network(self) -> Mapping[str, float]:
        """Return the constants of collectives across nodes by name; `fits` has their units and meanings."""
        if ("network",) not in self.tables:
            described = self.fits()["network"]
            self.tables["network",] = {name: constant["value"] for name, constant in described.items()}
        network: Mapping[str, float] = self.tables["network",]
        return network

    def arrays(self, gpu_name: str) -> Mapping[str, Floats]:
        """Return the arrays measured on a GPU, or an empty mapping; members are read on access."""
        return _arrays(self.directory / f"{gpu_name}.npz")

    def grid(self, gpu_name: str, name: str, axes: Sequence[str]) -> Grid | None:
        """Return a grid measured on a GPU, or None when that GPU has no such table."""
        return _grid(self.directory / f"{gpu_name}.npz", name, tuple(axes))

    def measured(self, what: str, gpu: Gpu, dtype: str = "") -> tuple[Measurement, ...]:
        """Return the user's measurements of `what` on this GPU in this data type."""
        return tuple(
            m
            for m in self.measurements
            if (m.what, m.gpu, m.dtype) == (what, gpu.name, dtype) and m.unit == "s"
        )


@lru_cache(maxsize=64)
def _arrays(path: Path) -> Mapping[str, Floats]:
    """Return the arrays of a table; however many calibrations ask, a file is read once."""
    return np.load(BytesIO(path.read_bytes())) if path.is_file() else {}


@lru_cache(maxsize=256)
def _grid(path: Path, name: str, axes: tuple[str, ...]) -> Grid | None:
    arrays = _arrays(path)
    return Grid.from_logs([arrays[axis] for axis in axes], arrays[name]) if name in arrays else None


def load_calibration(measurements: Sequence[Measurement] = (), *, cluster: str | None = None) -> Calibration:
    """Return the packaged calibration, overridden by `measurements` taken on `cluster`; the caller keeps it.

    Kernels of the same GPU count on any cluster; collectives and steps only on the cluster they ran on.

    Args:
        measurements: what `plan bench` or `plan run` saved.
        cluster: fingerprint of the cluster to plan for; None accepts every measurement.
    """
    anywhere = ("gemm", "elementwise")
    kept = (m for m in measurements if cluster is None or m.what in anywhere or m.cluster == cluster)
    return Calibration(measurements=tuple(kept))


def measured_ratio(points: Floats, ratios: Floats, at: Floats) -> Floats:
    """Return measured over modelled time at `at`, from a few measured points (dimensionless).

        log r(x) = Σ w_i·log r_i / Σ w_i,   w_i = 1/|log x − log x_i|²

    so a measurement is reproduced at its own point, and far from all of them their mean level remains.

    Args:
        points: coordinates of the measurements, shape (axes, measurements), positive.
        ratios: measured over modelled, shape (measurements,).
        at: coordinates wanted, shape (axes, …), positive.

    Source: Shepard, "A two-dimensional interpolation function for irregularly-spaced data", 1968.

    >>> measured_ratio(np.array([[1.0, 100.0]]), np.array([2.0, 4.0]), np.array([[1.0]])).round(3).tolist()
    [2.0]
    """
    axes, rest = at.shape[0], at.shape[1:]
    away = np.log(at.reshape(axes, -1, 1)) - np.log(points[:, None, :])
    weight = 1 / ((away**2).sum(axis=0) + 1e-12)
    level = np.log(np.clip(ratios, 1 / LARGEST_RATIO, LARGEST_RATIO))
    return np.asarray(np.exp((weight @ level) / weight.sum(axis=1)).reshape(rest))
