"""The level of a user's own stack and of its parts, from one or a few steps they measured.

What the model gets wrong about software it has not seen is a factor on everything (containers, drivers,
clocks) and factors on parts of a step: products, attention, memory passes, the host, the exchange. Steps of
unlike layouts follow these parts unlike far, so a few of them tell the factors apart. Per stack profile

    y_i = log(measured_i / predicted_i) = h_i · θ + ε_i,    θ ~ N(0, Λ),    ε_i ~ N(0, v_i)
    C = (Λ⁻¹ + Σ h_i h_iᵀ/v_i)⁻¹,    E[θ | y] = C · Σ h_i y_i/v_i
    v_i = max(σ_i², (ν·σ_i² + E[ε_i²]) / (ν + 1))

with h_i one for the level and, for every part, how far step i follows it; Λ the deviations of publishers
that were left out, and σ_i that of layouts of one user, both from cross-validated residuals
(``data/bands.toml``). A part that no step shows keeps its factor of one and all of its doubt. Parts race, so
how far a step follows them depends on their factors: steps are priced at what was fitted, and fitted anew.

Layouts of one publisher have tails: those of Student's t of ν degrees of freedom, whose posterior is found by
expectation and maximisation. A step that is far off alone says more of itself than of a level: of published
runs, those over three deviations off share nothing with their publisher's others. Runs of which all are
further off than publishers' are (another clock, a step counted otherwise) say so of their level: from two on,
its deviation grows by as much as they agree on. Runs that scatter further around what is fitted to them than
layouts of one publisher do leave a further step as unsure as they are.

Steps that all follow their parts alike, as runs of one layout do, cannot tell parts apart: what they show is
spread by the prior, no part is named, and its doubt stays.

Legend: ``y`` log ratio, ``h`` shares of parts, ``Λ`` prior, ``σ`` shape deviation, ``v`` variance of a step
as far off as it is, ``ν`` degrees of freedom (*tails*), ``C`` doubt that remains.
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
from costmodel.training.bands import (
    Doubts,
    anchor_prior,
    interval,
    shape_deviation,
    shape_tails,
    time_deviation,
)

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
    prior[0] *= _agreed_growth(shares, ratios, noise, prior)
    remaining, logs, variances = _posterior(shares, ratios, noise, prior)
    square = float((noise**2).mean())
    apart = (_scatter(shares, ratios, noise, prior) ** 2 - 1) * square
    remaining[0, 0] += max(apart, float(variances.mean()) - square)  # further steps scatter as these do
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


def _agreed_growth(
    shares: npt.NDArray[np.float64],
    ratios: npt.NDArray[np.float64],
    noise: npt.NDArray[np.float64],
    prior: npt.NDArray[np.float64],
) -> float:
    """How many times further than publishers' all own steps are off; 1 for one, which agrees with none."""
    if len(ratios) < 2 or ratios.min() < 0 < ratios.max():
        return 1.0
    of_level = float(np.linalg.norm(shares.mean(axis=0) * prior))
    expected = math.hypot(of_level, float(np.linalg.norm(noise)) / len(noise))
    return max(1.0, float(np.abs(ratios).min()) / (FAR * expected))


def _posterior(
    shares: npt.NDArray[np.float64],
    ratios: npt.NDArray[np.float64],
    noise: npt.NDArray[np.float64],
    prior: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Covariance and means of the logarithms of a level and of parts, and the variance of every step.

    Steps follow level and parts by `shares`. Those as near as layouts of one publisher are keep their own
    variance, and others have that of Student's t, given how far off they are.
    """
    tails, variances = shape_tails(), noise**2
    for _ in range(ROUNDS):
        remaining, logs = _given(shares, ratios, np.sqrt(variances), prior)
        squares = (ratios - shares @ logs) ** 2 + np.einsum("ij,jk,ik->i", shares, remaining, shares)
        former, variances = variances, np.maximum(noise**2, (tails * noise**2 + squares) / (tails + 1))
        if np.allclose(former, variances, rtol=SETTLED, atol=0.0):
            break
    return remaining, logs, variances


def _given(
    shares: npt.NDArray[np.float64],
    ratios: npt.NDArray[np.float64],
    noise: npt.NDArray[np.float64],
    prior: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Covariance and means where every step is normal with this deviation."""
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

    1 where they lie as expected, or nearer. The next of steps that contradict each other is as unsure.
    """
    remaining, logs = _given(shares, ratios, noise, prior)
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
ROUNDS, SETTLED = 30, 1e-4
"""Of expectation and maximisation at most, and the change of a variance, of itself, that is none."""
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
