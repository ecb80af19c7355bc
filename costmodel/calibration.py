"""Measured tables behind kernels and collectives, loaded only when something asks for them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from costmodel.measurement import Measurement

DATA = Path(__file__).parent / "data" / "kernels"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Kernel and collective tables (read lazily from `directory`) and the user's own measurements."""

    directory: Path = DATA
    measurements: tuple[Measurement, ...] = ()
    tables: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def fits(self) -> dict[str, Any]:
        """Return the roofline fits and other scalar constants, with their source."""
        if "fits" not in self.tables:
            self.tables["fits"] = json.loads((self.directory / "fits.json").read_text(encoding="utf-8"))
        fits: dict[str, Any] = self.tables["fits"]
        return fits


def load_calibration(measurements: tuple[Measurement, ...] = ()) -> Calibration:
    """Return the packaged calibration, overridden by `measurements`; the caller keeps it."""
    return Calibration(measurements=measurements)
