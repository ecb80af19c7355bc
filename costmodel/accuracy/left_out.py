"""How far off the model is for someone new: errors of runs whose publisher fitted nothing of it.

Every run was predicted by constants fitted without all runs of its vendor on its engine
(`tools/leave_out.py`); `tools/write_accuracy_page.py` stores what they sum up to, by engine. Beside them
stand runs of publishers that no constant was ever fitted to.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenPublishers:
    """Errors of the step time of runs of publishers that no constant was fitted to.

    Attributes:
        publishers: How many.
        publications: Of theirs, each a table, a thread or a README.
        runs: How many, of all of them.
        median_error: Median of |predicted / measured − 1|.
        mean_error: Mean of the same.
        p90_error: 90th percentile of the same.
        in_band: Share of the runs inside their 80 % band.
    """

    publishers: int
    publications: int
    runs: int
    median_error: float
    mean_error: float
    p90_error: float
    in_band: float


@functools.cache
def unseen_publishers() -> UnseenPublishers:
    """What they sum up to."""
    return UnseenPublishers(**read_toml(LEFT_OUT_FILE)["unseen"])


@functools.cache
def left_out_errors() -> Mapping[str, LeftOut]:
    """Errors by family of the engine, and of `ALL`."""
    table = read_toml(LEFT_OUT_FILE)
    return {name: LeftOut(**entry) for name, entry in table["engines"].items()}
