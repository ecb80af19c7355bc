"""The user's own measurements: where they are kept, and the calibration that includes them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from costmodel.kernels.measurement import Measurement, read_measurements
from costmodel.kernels.tables import Calibration, load_calibration
from topology.base.errors import DamagedFileWarning, InputError
from topology.base.user_folder import (
    HOME_VARIABLES,
    require_user_data_folder,
    unnamed_home,
    user_data_folder,
)
from topology.builders import build
from topology.spec import ClusterSpec

FOLDER = "measurements"


def measurement_folder() -> Path:
    """Folder of saved measurements, under the user's data folder, which there must be."""
    return require_user_data_folder() / FOLDER


def saved_measurements() -> tuple[Measurement, ...]:
    """Everything `plan bench` has saved, in order of file names; a damaged file is named and passed over.

    None where no home is named; it is said where something that is no absolute path should name it.
    """
    if user_data_folder() is None:
        if any(os.environ.get(name) for name in HOME_VARIABLES):
            text = f"measurements of `plan bench` are not read: {unnamed_home()}"
            warnings.warn(text, DamagedFileWarning, stacklevel=1)
        return ()
    try:
        files = sorted(measurement_folder().glob("*.json"))
    except OSError:  # XDG_DATA_HOME names no possible folder
        files = []
    return tuple(measurement for file in files for measurement in _undamaged(file))


def _undamaged(file: Path) -> tuple[Measurement, ...]:
    """Measurements of one file; none of a damaged one, whose name and fault are a warning."""
    try:
        return read_measurements(file)
    except InputError as error:
        text = f"measurements passed over: {error.what} ({error.cause}); run `plan bench` again, or remove it"
        warnings.warn(text, DamagedFileWarning, stacklevel=1)
        return ()


def calibration_for(spec: ClusterSpec) -> Calibration:
    """Shipped tables, corrected by what was measured on this cluster (kernels: on its GPU)."""
    measured = saved_measurements()
    return load_calibration(measured, cluster=build(spec).fingerprint()) if measured else load_calibration()
