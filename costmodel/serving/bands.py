"""How far measured latencies lie from predicted ones: the calibrated 80 % band of a serving estimate.

The quantiles come from cross-validation: every measured run predicted with constants fitted without its
model (`tools/fit_serving.py`, which writes the data file).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_FILE = Path(__file__).parents[1] / "data" / "serving_bands.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Factors on a predicted latency between which four of five measurements lie.

    Attributes:
        lower: 10th percentile of measured over predicted.
        upper: 90th percentile.
        rows: Measured runs they were taken from.
        source: Which.
    """

    lower: float
    upper: float
    rows: int
    source: str


@functools.cache
def serving_bands() -> Mapping[str, Band]:
    """Bands of the time to first token and of the time per output token, as shipped.

    >>> sorted(serving_bands())
    ['tpot', 'ttft']
    >>> all(band.lower < 1 < band.upper for band in serving_bands().values())
    True
    """
    from topology.base.decode import read_toml, structure

    return {name: structure(entry, Band, f"{_FILE.name}: {name}") for name, entry in read_toml(_FILE).items()}
