"""How sure an estimate is: 80 % intervals from cross-validated residuals, wider where less was measured.

Residuals of log(measured / predicted) have a level term per unseen user of a stack, a shape term within one,
and terms for what the tables do not cover. Their squares add up; 80 % of a normal lies within ±1.28 of its σ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BANDS_FILE = Path(__file__).parents[1] / "data" / "bands.toml"
QUANTILE_80 = 1.2816  # standard deviations that hold 80 % of a normal distribution around its centre


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """What makes one estimate less sure.

    Attributes:
        untabled_gpu: No kernel tables of this very GPU.
        extrapolated_share: Share of matrix-product time read outside its table.
        experts: Tokens are routed to experts.
        host_share: Host time of a layer over the time of the layer, at most 1.
        eight_bit: Linear layers multiply in eight bits, by a recipe that is not stated.
        unmeasured_stack: No run of this engine determined its constants.
        recurrent: Layers scan a state: their kernels are rooflines, no run of such a model was measured.
    """

    untabled_gpu: bool = False
    extrapolated_share: float = 0.0
    experts: bool = False
    host_share: float = 0.0
    eight_bit: bool = False
    unmeasured_stack: bool = False
    recurrent: bool = False


@functools.cache
def deviations() -> Mapping[str, Mapping[str, Any]]:
    """Standard deviations by quantity and term, as shipped."""
    from topology.base.decode import read_toml

    return read_toml(BANDS_FILE)


def time_deviation(doubts: Doubts, level: float | None = None) -> float:
    """Standard deviation of log step time: the root of the sum of squares of the terms that apply.

    Args:
        doubts: What makes this estimate less sure.
        level: Deviation that the user's own runs leave of the level; that of a stranger's without any.

    >>> time_deviation(Doubts()) < time_deviation(Doubts(experts=True))
    True
    """
    return math.hypot(level_deviation(doubts) if level is None else level, shape_deviation(doubts))


def level_deviation(doubts: Doubts) -> float:
    """The part that all runs of one user share, and that one measured step of theirs reveals."""
    table = deviations()["time"]
    return math.hypot(
        table["level"],
        table["untabled_gpu"] * doubts.untabled_gpu,
        table["unmeasured_stack"] * doubts.unmeasured_stack,
    )


def shape_deviation(doubts: Doubts) -> float:
    """The part in which layouts and jobs of one user differ."""
    table = deviations()["time"]
    return math.hypot(
        table["shape"],
        table["extrapolated"] * doubts.extrapolated_share,
        table["experts"] * doubts.experts,
        table["host"] * doubts.host_share,
        table["eight_bit"] * doubts.eight_bit,
        table["recurrent"] * doubts.recurrent,
    )


def memory_deviation(doubts: Doubts) -> float:
    """Standard deviation of log peak memory."""
    table = deviations()["memory"]
    return math.hypot(
        table["level"], table["experts"] * doubts.experts, table["recurrent"] * doubts.recurrent
    )


def interval(value: float, deviation: float) -> tuple[float, float]:
    """80 % interval around a value whose logarithm has this standard deviation.

    >>> interval(1.0, 0.0)
    (1.0, 1.0)
    """
    factor = math.exp(QUANTILE_80 * deviation)
    return value / factor, value * factor
