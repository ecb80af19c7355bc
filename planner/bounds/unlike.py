"""Bounds of layouts whose stages run on unlike kinds of node: what no arrangement of the kinds can beat.

Legend: ``P`` stages, ``M`` microbatches, ``θ`` seconds of a microbatch on the slowest stage, ``ρ`` seconds of
a layer on a kind over those on the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.bounds.funnel import ROUNDING
from planner.bounds.priced import Priced
from planner.bounds.ranks import layers_taken, rank_limits
from planner.plan import Problem
from planner.stages.unlike import NONE_FITS, arrangements
from topology.base.arrays import Vector
from topology.pools.rates import Rates

Integers = npt.NDArray[np.int64]

HALVINGS = 7
"""Steps in which the slowest stage of a layout is narrowed down."""
LONGEST = 64.0
"""Multiple of its least time up to which the slowest stage is looked for."""


def slowness(layers: Sequence[Vector]) -> list[Vector]:
    """ρ: seconds of a layer on each kind over those on the first, of the run where it is least."""
    return [(layer / layers[0]).min(axis=0) for layer in layers]


def most_rate(slower: Sequence[Vector], caps: Sequence[Any], pp: Any) -> Vector:
    """The most that `pp` stages get through, each kind having at least one: the fastest first.

    Every order of filling is feasible and the order of speed is the best of them, so the most is the maximum.
    """
    rates = []
    for order in itertools.permutations(range(len(caps))):
        left, rate = pp - len(caps), 0.0
        for kind in order:
            extra = np.clip(left, 0, caps[kind] - 1)
            rate, left = rate + (1 + extra) / slower[kind], left - extra
        rates.append(rate)
    return np.asarray(np.max(rates, axis=0))


def least_paid(rates: Rates, ranks: Any, pp: Any) -> Vector | None:
    """The fewest dollars an hour of `pp` stages of so many ranks, each kind having at least one.

    The cheapest are filled first, which no other filling undercuts; None without prices of kinds.
    """
    if not rates:
        return None
    ranks, left = np.asarray(ranks), pp - len(rates)
    stages = np.zeros(np.broadcast_shapes(ranks.shape, np.shape(pp)))
    for gpus, rate in sorted(rates, key=lambda kind: kind[1]):
        extra = np.clip(left, 0, gpus // ranks - 1)
        stages, left = stages + (1 + extra) * rate, left - extra
    return np.asarray(ranks * stages)


def arranged_paid(
    rates: Rates, ranks: int, kinds: Integers, ends: Integers, gpus_of_nodes: Sequence[int]
) -> Vector | None:
    """Dollars an hour of the whole nodes of each arrangement of stages of so many ranks.

    Args:
        rates: prices of kinds; without any there is no answer.
        ranks: GPUs of a stage.
        kinds: kinds of node in the order of the pipeline, one row an arrangement.
        ends: first stage of each of them, and the number of stages.
        gpus_of_nodes: GPUs of a node of each kind.
    """
    if not rates:
        return None
    dollars, of_node = np.array([rate for _, rate in rates]), np.array(gpus_of_nodes)[kinds]
    rented = np.ceil(ranks * np.diff(ends, axis=1) / of_node) * of_node
    return np.asarray((dollars[kinds] * rented).sum(axis=1))


def arranged_bounds(
    problems: Sequence[Problem],
    priced: Sequence[Priced],
    counts: Vector,
    *,
    rest: Vector,
    least: Vector,
    cutoff_s: Vector,
) -> Vector:
    """Seconds that no arrangement of each layout beats, by whole layers within the memory of each stage.

    The least time of the slowest stage is halved towards; infinite where the score to beat allows none.

    Args:
        problems: the question of each kind of node alone.
        priced: layouts of as many stages of as many GPUs, on each kind.
        counts: layers of each run.
        rest: per layout, what a step takes beside the slowest stage, at least.
        least: per layout, seconds of the slowest stage, at least.
        cutoff_s: per layout, the step that it has to stay below to matter.
    """
    table = priced[0].table
    caps = tuple(int(problem.cluster.num_gpus // table.stage_ranks[0]) for problem in problems)
    kinds, ends = arrangements(int(table.pp[0]), caps)
    largest = [int(counts.argmax())]
    limits = [
        rank_limits(problem, item, counts, largest) for problem, item in zip(problems, priced, strict=True)
    ]

    def works(seconds: Vector) -> npt.NDArray[np.bool_]:
        before = []
        for limit in limits:
            taken = np.minimum(layers_taken(limit, seconds), limit.most)
            taken = np.where(taken >= limit.least, taken, NONE_FITS)
            before.append(np.concatenate([np.zeros((1, len(rest))), np.cumsum(taken, axis=0)]))
        every = np.stack(before)
        sums = sum(
            every[kinds[:, i], ends[:, i + 1]] - every[kinds[:, i], ends[:, i]] for i in range(len(caps))
        )
        return np.asarray((sums >= counts[largest].sum()).any(axis=0))

    M = priced[0].costs.num_microbatches
    longest = np.where(M > 1, (cutoff_s - rest) / np.maximum(M - 1, 1), np.inf)
    low, high = least.copy(), np.maximum(np.minimum(longest, least * LONGEST), least)
    possible = works(high) | (longest > least * LONGEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = works(middle)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(possible, ((M - 1) * low + rest) * (1 - ROUNDING), np.inf)
