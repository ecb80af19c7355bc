"""The level of a user's own stack, from one or a few steps they measured.

What the model gets wrong about software it has not seen is mostly one factor per stack: containers, drivers,
clocks, habits. So a few measured steps are worth more than any term. Per stack profile

    y_i = log(measured_i / predicted_i) = μ + ε_i,     μ ~ N(0, λ²),   ε_i ~ N(0, σ_i²)
    log level = E[μ | y] = Σ y_i/σ_i² / (1/λ² + Σ 1/σ_i²),      deviation² = 1 / (1/λ² + Σ 1/σ_i²)

with λ the deviation of levels between users and σ_i that of layouts of one user, both from cross-validated
residuals (``data/bands.toml``): the geometric mean of measured over predicted, drawn towards one as far as
the runs leave it in doubt.

Legend: ``y`` log ratio, ``λ`` level deviation, ``σ`` shape deviation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.accuracy.training import RunResult
from costmodel.kernels.level import StackLevel
from costmodel.serving.levels import ServingLevel
from costmodel.training.bands import Doubts, interval, level_deviation, shape_deviation, time_deviation

MOST_LEFT_OUT = 1000  # rows; leaving one out of more changes nothing that can be seen
FURTHEST = math.log(4.0)  # a step this far from the model is another job, not another level


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Levels of a user's own stacks, by profile.

    Attributes:
        name: What it is remembered under, or the file it was read from.
        levels: One entry per stack profile among the runs.
        when: Date it was fitted, ISO 8601; empty when not kept.
        serving: One entry per engine and GPU kind that was benchmarked (`plan calibrate --serving`).
    """

    name: str
    levels: tuple[StackLevel, ...]
    when: str = ""
    serving: tuple[ServingLevel, ...] = ()

    def level_of(self, stack: str) -> StackLevel | None:
        """The level of a profile, if runs of it were measured."""
        return next((entry for entry in self.levels if entry.stack == stack), None)


def stack_level(stack: str, measured: Sequence[tuple[float, Doubts]]) -> StackLevel:
    """Level of one stack profile.

    Args:
        stack: The profile.
        measured: log(measured / predicted) and the doubts of every run.

    >>> one = stack_level("megatron-core", [(0.10, Doubts())])
    >>> many = stack_level("megatron-core", [(0.10, Doubts())] * 50)
    >>> 1.0 < one.level < many.level < math.exp(0.10)
    True
    """
    prior = 1 / level_deviation(measured[0][1]) ** 2
    weights = [1 / shape_deviation(doubts) ** 2 for _, doubts in measured]
    total = prior + sum(weights)
    mean = sum(w * y for w, (y, _) in zip(weights, measured, strict=True)) / total
    return StackLevel(stack=stack, level=math.exp(mean), deviation=total**-0.5, runs=len(measured))


def fit_anchor(results: Sequence[RunResult], *, name: str = "", when: str = "") -> Anchor:
    """Levels of every stack among predicted runs that have a time and are not far from any level."""
    by_stack: dict[str, list[tuple[float, Doubts]]] = defaultdict(list)
    for result in results:
        ratio = log_ratio(result)
        if ratio is not None and abs(ratio) < FURTHEST:
            by_stack[result.stack].append((ratio, result.doubts))
    levels = tuple(stack_level(stack, measured) for stack, measured in by_stack.items())
    return Anchor(name=name, levels=levels, when=when)


def log_ratio(result: RunResult) -> float | None:
    """log(measured / predicted) of a row, None without both."""
    return None if result.error is None else -math.log1p(result.error)


def anchored(result: RunResult, anchor: Anchor) -> RunResult:
    """The row under an anchor; rows of other stacks stay as they are."""
    level = anchor.level_of(result.stack)
    if level is None or result.predicted_step_time_s is None:
        return result
    seconds = level.level * result.predicted_step_time_s
    lower_s, upper_s = interval(seconds, time_deviation(result.doubts, level.deviation))
    return replace(result, predicted_step_time_s=seconds, lower_s=lower_s, upper_s=upper_s)


def left_one_out(results: Sequence[RunResult]) -> list[RunResult]:
    """Every row under the anchor of all others: what anchoring is worth for the next layout."""
    if len(results) > MOST_LEFT_OUT:
        everything = fit_anchor(results)
        return [anchored(result, everything) for result in results]
    return [
        anchored(result, fit_anchor([*results[:index], *results[index + 1 :]]))
        for index, result in enumerate(results)
    ]
