"""The level of a user's own stack and of its parts, from one or a few steps they measured.

What the model gets wrong about software it has not seen is a factor on everything (containers, drivers,
clocks) and factors on parts of a step: products, attention, memory passes, the host, the exchange. Steps of
unlike layouts follow these parts unlike far, so a few of them tell the factors apart. Per stack profile

    y_i = log(measured_i / predicted_i) = h_i · θ + ε_i,    θ ~ N(0, Λ),    ε_i ~ N(0, σ_i²)
    C = (Λ⁻¹ + Σ h_i h_iᵀ/σ_i²)⁻¹,    E[θ | y] = C · Σ h_i y_i/σ_i²

with h_i one for the level and, for every part, how far step i follows it; Λ the deviations of publishers
that were left out, and σ_i that of layouts of one user, both from cross-validated residuals
(``data/bands.toml``). A part that no step shows keeps its factor of one and all of its doubt. Parts race, so
how far a step follows them depends on their factors: steps are priced at what was fitted, and fitted anew.
Runs that are further off as a whole than publishers' are (another clock, a step counted otherwise) say so of
their level: its deviation grows by as much. Runs that scatter further around what is fitted to them than
layouts of one publisher do teach less by as much, and a further step is as unsure as they are.

Steps that all follow their parts alike, as runs of one layout do, cannot tell parts apart: what they show is
spread by the prior, no part is named, and its doubt stays.

Legend: ``y`` log ratio, ``h`` shares of parts, ``Λ`` prior, ``σ`` shape deviation, ``C`` doubt that remains.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from costmodel.accuracy.training import RunResult
from costmodel.kernels.level import PARTS, StackLevel
from costmodel.serving.levels import ServingLevel
from costmodel.training.bands import Doubts, anchor_prior, interval, shape_deviation, time_deviation

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


class MeasuredStep(NamedTuple):
    """log(measured / predicted) of a step, its doubts, and how far it follows each part, if that is known.

    Predicted without any anchor, or what follows for that from a step priced at one.
    """

    ratio: float
    doubts: Doubts
    part_shares: tuple[float, ...] = ()


def stack_level(stack: str, measured: Sequence[MeasuredStep]) -> StackLevel:
    """Level of one stack profile and of its parts.

    Args:
        stack: The profile.
        measured: Every run of it.

    >>> step = MeasuredStep(0.10, Doubts())
    >>> first, many = stack_level("megatron-core", [step]), stack_level("megatron-core", [step] * 50)
    >>> 1.0 < first.level < many.level < math.exp(0.10)
    True
    """
    shares = np.array([[1.0, *(step.part_shares or (0.0,) * len(PARTS))] for step in measured])
    ratios = np.array([step.ratio for step in measured])
    noise = np.array([shape_deviation(step.doubts) for step in measured])
    by_part = any(step.part_shares for step in measured)
    priors = np.array([anchor_prior(step.doubts, by_part=by_part) for step in measured])
    prior = np.sqrt((priors**2).mean(axis=0))
    usual = shares.mean(axis=0)
    if by_part:
        expected = math.hypot(float(np.linalg.norm(usual * prior)), float(np.linalg.norm(noise)) / len(noise))
        prior[0] *= max(1.0, abs(float(ratios.mean())) / (FAR * expected))
    remaining, logs = _posterior(shares, ratios, noise, prior)
    scatter = _scatter(shares, ratios, noise, prior)
    if scatter > 1:
        remaining, logs = _posterior(shares, ratios, scatter * noise, prior)
        remaining[0, 0] += (scatter**2 - 1) * float((noise**2).mean())  # further steps scatter as these do
    means = np.exp(logs)
    return StackLevel(
        stack=stack,
        level=float(means[0]),
        deviation=math.sqrt(float(usual @ remaining @ usual)),
        runs=len(measured),
        covariance=tuple(tuple(row) for row in ((remaining + remaining.T) / 2).tolist()) if by_part else (),
        unlike=len(np.unique(shares.round(DIGITS), axis=0)) if by_part else 0,
        steps_factor=math.exp(float(usual @ logs)) if by_part else None,
        **dict(zip(PARTS, means[1:].tolist(), strict=True)),
    )


def _posterior(
    shares: npt.NDArray[np.float64],
    ratios: npt.NDArray[np.float64],
    noise: npt.NDArray[np.float64],
    prior: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Covariance and means of the logarithms of a level and of parts; steps follow them by `shares`."""
    scaled = shares * prior / noise[:, None]
    inverse = np.linalg.inv(np.eye(len(prior)) + scaled.T @ scaled)
    remaining = prior[:, None] * inverse * prior
    return remaining, remaining @ (shares.T @ (ratios / noise**2))


def _scatter(
    shares: npt.NDArray[np.float64],
    ratios: npt.NDArray[np.float64],
    noise: npt.NDArray[np.float64],
    prior: npt.NDArray[np.float64],
) -> float:
    """How many times further own steps lie from what is fitted to them than steps of publishers do.

    1 where they lie as expected, or nearer. Steps that contradict each other teach little, and the next is as
    unsure as they are.
    """
    remaining, logs = _posterior(shares, ratios, noise, prior)
    left = (ratios - shares @ logs) / noise
    taken = float(np.trace(shares @ remaining @ (shares / noise[:, None] ** 2).T))
    free = len(ratios) - taken
    if len(ratios) < 2 or free <= 0:
        return 1.0
    most = (
        1 - 2 / (9 * free) + SURE * math.sqrt(2 / (9 * free))
    ) ** 3  # of chi-squares, by Wilson and Hilferty
    square = float(left @ left) / free
    return math.sqrt(square) if square > max(1.0, most) else 1.0


SURE = 1.645
"""Deviations that a normal value exceeds once in twenty: what scatters so far is no luck."""
DIGITS = 6
"""Decimals of a share below which two steps follow a part alike."""
FAR = 2.0
"""Deviations within which the mean of own runs lies, 19 times of 20, if they are as publishers' are."""
PASSES = 3
"""Times that own steps are priced at what was fitted to them: exchange that a second layout no longer hides,
at twice its time, is within a hundredth of where further passes would put it."""


def anchor_of(
    price: Callable[[Sequence[StackLevel]], Sequence[RunResult]], *, name: str = "", when: str = ""
) -> tuple[Anchor, Sequence[RunResult]]:
    """The anchor of measured runs, and these runs as they are priced at it.

    Args:
        price: Predicts the runs, those of a stack at its level where one is given.
        name: What it is remembered under.
        when: Date, ISO 8601.
    """
    results = price(())
    anchor = fit_anchor(results, name=name, when=when)
    for _ in range(PASSES if any(level.covariance for level in anchor.levels) else 0):
        results = price(anchor.levels)
        anchor = fit_anchor(results, name=name, when=when)
    return anchor, results


def fit_anchor(results: Sequence[RunResult], *, name: str = "", when: str = "") -> Anchor:
    """Levels of every stack among predicted runs that have a time and are not far from any level."""
    by_stack: dict[str, list[MeasuredStep]] = defaultdict(list)
    for result in results:
        ratio = log_ratio(result)
        if ratio is not None and abs(ratio) < FURTHEST:
            cold = ratio + math.log(_factor(result.level, result))
            by_stack[result.stack].append(MeasuredStep(cold, result.doubts, result.part_shares))
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
    seconds = _factor(level, result) / _factor(result.level, result) * result.predicted_step_time_s
    deviation = level.deviation_of(result.part_shares)
    lower_s, upper_s = interval(seconds, time_deviation(result.doubts, deviation))
    return replace(result, predicted_step_time_s=seconds, lower_s=lower_s, upper_s=upper_s)


def _factor(level: StackLevel | None, result: RunResult) -> float:
    """Factor of a level on a row, as far as its step follows each part."""
    return 1.0 if level is None else level.factor_of(result.part_shares)


def left_one_out(results: Sequence[RunResult]) -> list[RunResult]:
    """Every row under the anchor of all others: what anchoring is worth for the next layout."""
    if len(results) > MOST_LEFT_OUT:
        everything = fit_anchor(results)
        return [anchored(result, everything) for result in results]
    return [
        anchored(result, fit_anchor([*results[:index], *results[index + 1 :]]))
        for index, result in enumerate(results)
    ]
