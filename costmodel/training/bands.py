"""How sure an estimate is: 80 % intervals from residuals of runs left out, wider where none was measured.

Residuals of log(measured / predicted), of runs predicted by constants fitted without them, have a level that
all runs of one user share, a shape in which their layouts differ, and what every key adds that no measured
run has (`costmodel.evidence`). Squares add up, so a band never narrows as evidence goes. Terms are deviations
such that ±1.28 of their root sum of squares holds 80 % of those residuals (`tools/fit_bands.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodel.case import Case
from costmodel.evidence.keys import EXPERTS, Footing, footing
from costmodel.evidence.table import (
    Evidence,
    evidence_for,
    unmeasured,
    unmeasured_memory,
    unmeasured_precision,
)
from costmodel.kernels.level import PARTS
from costmodel.layout import ParallelLayout
from costmodel.memory.spread import Spread
from costmodel.models.sizes import is_unmeasured
from costmodel.training.layer_time import SHARPNESS

BANDS_FILE = Path(__file__).parents[1] / "data" / "bands.toml"
QUANTILE_80 = 1.2816  # standard deviations that hold 80 % of a normal distribution around its centre
UPPER = 0.9  # share of a distribution below the upper end of its 80 % interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """What makes one estimate less sure.

    Attributes:
        untabled_gpu: No kernel tables of this very GPU.
        experts: Tokens are routed to experts.
        recurrent: Layers scan a state: their kernels are rooflines, no run of such a model was measured.
        unmeasured: Keys of the step that no measured run of this engine on this GPU generation has.
        unmeasured_memory: Keys of the peak, but its precision, that no measured peak of this engine has.
        unmeasured_precision: No measured peak of this engine has the precision.
        engine: Family of the engine.
        host_bound: How far the step follows the host's time: 1 where launches set it, 0 where they hide.
        host_measured: Runs say how long the host of this engine takes for a layer; else it is a guess.
    """

    untabled_gpu: bool = False
    experts: bool = False
    recurrent: bool = False
    unmeasured: int = 0
    unmeasured_memory: int = 0
    unmeasured_precision: bool = False
    engine: str = ""
    host_bound: float = 0.0
    host_measured: bool = True


def doubts_of(
    doubts: Footing,
    evidence: Sequence[Evidence],
    *,
    untabled_gpu: bool,
    recurrent: bool = False,
    host_share: float = 0.0,
) -> Doubts:
    """Doubts of an estimate that rests on this, with this evidence.

    A layer takes the smooth maximum of kernels and host, whose derivative by the host is its share of the
    maximum to the power of that maximum.
    """
    return Doubts(
        host_bound=host_share**SHARPNESS,
        host_measured=doubts.engine in deviations()["time"]["hosts"]["engines"],
        untabled_gpu=untabled_gpu,
        experts=any(key.name == EXPERTS for key in doubts.keys),
        unmeasured=len(unmeasured(evidence)),
        unmeasured_memory=unmeasured_memory(evidence),
        unmeasured_precision=unmeasured_precision(evidence, doubts.precision),
        engine=doubts.engine,
        recurrent=recurrent,
    )


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

    >>> time_deviation(Doubts()) < time_deviation(Doubts(unmeasured=1)) < time_deviation(Doubts(unmeasured=2))
    True
    """
    return math.hypot(level_deviation(doubts) if level is None else level, shape_deviation(doubts))


def level_deviation(doubts: Doubts) -> float:
    """The part that all runs of one user share, and that one measured step of theirs reveals.

    Publishers of one engine agree more than those of another, and an engine that nobody published is as far
    off as engines are in the mean. One that nobody knows is as far off the mixture that stands for it as
    known ones are. Where launches set the step of an engine whose host no run has timed, it is as far off as
    hosts of engines differ.
    """
    table = deviations()["time"]
    level = table["engines"].get(doubts.engine, table["level"])
    host = 0.0 if doubts.host_measured else table["hosts"]["difference"] * doubts.host_bound
    return math.hypot(level, table["untabled_gpu"] * doubts.untabled_gpu, host)


def anchor_prior(doubts: Doubts, *, by_part: bool) -> tuple[float, ...]:
    """Deviations of a stranger's level and, where steps say how they follow them, of each part of it.

    A host that nobody has timed is in doubt as the part that it is, and not as a level.
    """
    if not by_part:
        return (level_deviation(doubts), *(0.0 for _ in PARTS))
    parts = dict(deviations()["time"]["parts"])
    host = 0.0 if doubts.host_measured else deviations()["time"]["hosts"]["difference"]
    parts["host"] = math.hypot(parts["host"], host)
    level = parts["level"] * level_deviation(replace(doubts, host_bound=0.0))
    return (level, *(parts[name] for name in PARTS))


def shape_deviation(doubts: Doubts) -> float:
    """The part in which layouts and jobs of one user differ."""
    table = deviations()["time"]
    return math.hypot(
        table["shape"],
        table["unmeasured"] * math.sqrt(doubts.unmeasured),
        table["experts"] * doubts.experts,
        deviations()["recurrent"]["time"] * doubts.recurrent,
    )


def shape_tails() -> float:
    """Degrees of freedom of Student's t, in whose tails layouts of one publisher lie."""
    return float(deviations()["time"]["tails"])


def tie_ratio() -> float:
    """Ratio of two steps of one job up to which the model cannot tell which of two layouts is faster."""
    return 1.0 + float(deviations()["tie"]["difference"])


def memory_spread(doubts: Doubts) -> Spread:
    """Spread of log peak memory: of the engine's measured peaks, else of the engine that has the widest.

    Another precision of one job moves its peak nearly as predicted; what pairs of runs differ by widens it.
    """
    table = "experts" if doubts.experts else "engines"
    measured = None if doubts.unmeasured_memory else _measured_spreads(table).get(doubts.engine)
    spread = measured or _widest_spread(table)
    if doubts.unmeasured_precision:
        spread = spread.widened(deviations()["memory"]["precision"])
    return spread.widened(deviations()["recurrent"]["memory"]) if doubts.recurrent else spread


@functools.cache
def _measured_spreads(table: str) -> Mapping[str, Spread]:
    """Of every engine with measured peaks: dense ones, or with those of experts beside them."""
    return {engine: Spread(tuple(each)) for engine, each in deviations()["memory"][table].items()}


@functools.cache
def _widest_spread(table: str) -> Spread:
    """The one with the widest 80 % interval."""
    return max(_measured_spreads(table).values(), key=lambda spread: spread.quantile(UPPER))


def peak_spread(case: Case) -> Spread:
    """Spread of log peak memory of a job under any layout.

    Measured peaks are evidence by engine, precision and experts, which a job has whatever its layout.
    """
    result = footing(case, ParallelLayout())
    recurrent = is_unmeasured(case.model)
    return memory_spread(doubts_of(result, evidence_for(result), untabled_gpu=False, recurrent=recurrent))


def interval(value: float, deviation: float) -> tuple[float, float]:
    """80 % interval around a value whose logarithm has this standard deviation.

    >>> interval(1.0, 0.0)
    (1.0, 1.0)
    """
    factor = math.exp(QUANTILE_80 * deviation)
    return value / factor, value * factor


def peak_interval(peak_bytes: float, spread: Spread) -> tuple[float, float]:
    """80 % interval around a predicted peak.

    >>> [round(end, 3) for end in peak_interval(1.0, Spread((0.1,)))]
    [0.88, 1.137]
    """
    factor = math.exp(spread.quantile(UPPER))
    return peak_bytes / factor, peak_bytes * factor
