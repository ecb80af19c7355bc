"""How often to write a checkpoint: the interval of Young and Daly, from a failure rate with a source.

Legend: ``C`` seconds one checkpoint costs, ``M`` mean seconds between failures of the whole job.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path

from topology.base.decode import read_toml, structure

_FILE = Path(__file__).parent / "failures.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Unexpected interruptions of a published run."""

    gpus: int
    days: float
    interruptions: int
    source: str
    as_of: str


@functools.cache
def failure_rate() -> FailureRate:
    """Give the failure rate that intervals are computed from."""
    return structure(read_toml(_FILE), FailureRate, _FILE.name)


def seconds_between_failures(num_gpus: int, rate: FailureRate) -> float:
    """Mean time between failures of a job, in seconds: GPU-seconds per failure of the published run / GPUs.

    >>> round(seconds_between_failures(16384, failure_rate()) / 3600, 1)
    3.1
    """
    return rate.gpus * rate.days * 86_400 / rate.interruptions / num_gpus


def best_interval_s(checkpoint_s: float, between_failures_s: float) -> float:
    """Seconds of work between checkpoints that lose the least time: √(2·C·M) (Young 1974; Daly 2006, eq. 5).

    >>> best_interval_s(checkpoint_s=50.0, between_failures_s=10_000.0)
    1000.0
    """
    return math.sqrt(2 * checkpoint_s * between_failures_s)


def best_interval_steps(step_s: float, checkpoint_s: float, num_gpus: int) -> int:
    """Steps between checkpoints, at least one."""
    between = seconds_between_failures(num_gpus, failure_rate())
    return max(1, round(best_interval_s(checkpoint_s, between) / max(step_s, 1e-6)))
