"""How far off the model is for someone new: errors of runs whose publisher fitted nothing of it.

Every run was predicted by constants fitted without all runs of its vendor on its engine
(`tools/leave_out.py`); `tools/write_accuracy_page.py` stores what they sum up to, by engine.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from topology.base.decode import read_toml

LEFT_OUT_FILE = Path(__file__).parents[1] / "data" / "left_out.toml"
ALL = "all"
"""All engines together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Errors of the step time of runs of one engine, each predicted without its vendor.

    Attributes:
        runs: How many.
        median_error: Median of |predicted / measured − 1|.
        mean_error: Mean of the same.
        p90_error: 90th percentile of the same.
    """

    runs: int
    median_error: float
    mean_error: float
    p90_error: float


@functools.cache
def left_out_errors() -> Mapping[str, LeftOut]:
    """Errors by family of the engine, and of `ALL`."""
    table = read_toml(LEFT_OUT_FILE)
    return {name: LeftOut(**entry) for name, entry in table["engines"].items()}
