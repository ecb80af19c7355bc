"""Combinations of degrees with how a microbatch is sharded, joined where they agree and may win.

*Degrees* (tp, cp, pp, dp) say how many GPUs do what; a *shard* (tp, cp, experts, microbatch, sequence
parallelism) says what one microbatch costs a rank. A *combination* is a pair of both with the same tp and cp.
There are thousands of each and millions of pairs, so pairs are judged before they are written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from costmodel.layout import AXIS_ORDERS, LayoutTable, divisors
from costmodel.parallel.axes import AXES, LAYER_AXES, RANK_AXES
from costmodel.parallel.divisions import BATCH, EXPERT_RANKS
from planner.plan import Problem
from planner.rules.check import legal
from planner.space.columns import Draft, Integers, coded, cross, pinned, where
from planner.space.dismissals import Dismissals

COARSE_MICROBATCH = 4
SHARD_FIELDS = frozenset((*LAYER_AXES, "microbatch_size", "sequence_parallel"))
COMBINATION_FIELDS = SHARD_FIELDS | set(RANK_AXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairBound:
    """Which pairs of degrees and shards may win.

    Attributes:
        scores: Given degrees as columns of shape (n, 1) and indices of shards of shape (m,), what the pairs
            can reach at best, shape (n, m).
        cutoff: Score that a pair has to stay below.
        dismissed: Where pairs that do not are counted.
    """

    scores: Callable[[Draft, Integers], npt.NDArray[np.float64]]
    cutoff: float
    dismissed: Dismissals


def combinations(
    problem: Problem, pins: Mapping[str, Any], *, least_gpus: float = 1.0, coarse: bool = False
) -> tuple[LayoutTable, dict[str, int]]:
    """Every legal combination, and how many each rule was the first to reject.

    Args:
        problem: what layouts are judged against.
        pins: fixed fields.
        least_gpus: leave out degrees that use fewer GPUs.
        coarse: only the usual choices, to find a first plan quickly.
    """
    degrees, _ = every_degrees(problem, pins, least_gpus=least_gpus, coarse=coarse)
    shards, rejected = every_shard(problem, pins, coarse=coarse)
    layouts, broken = join_shards(problem, pins, degrees, shards)
    return layouts, {name: rejected.get(name, 0) + broken.get(name, 0) for name in {**rejected, **broken}}


def every_degrees(
    problem: Problem, pins: Mapping[str, Any], *, least_gpus: float, coarse: bool
) -> tuple[Draft, int]:
    """Degrees whose product is at most the cluster, and how many used fewer than `least_gpus` GPUs."""
    limit = problem.cluster.num_gpus
    tensor = tensor_degrees(problem)
    table: Draft = {"tp": np.array(pinned(pins, "tp", tensor))}
    table = _within(
        cross(table, "cp", pinned(pins, "cp", divisors(problem.job.sequence_length, limit))), limit
    )
    stages = _pipeline_degrees(problem, limit, coarse=coarse)
    table = _within(cross(table, "pp", pinned(pins, "pp", stages)), limit)
    replicas = divisors(problem.job.global_batch_size, limit)
    table = _within(cross(table, "dp", pinned(pins, "dp", replicas)), limit)
    enough = num_gpus(table) >= least_gpus
    return where(table, enough), int((~enough).sum())


def tensor_degrees(problem: Problem) -> tuple[int, ...]:
    """Degrees of tensor parallelism that heads can be cut by, in order.

    They divide heads that ranks cannot split. Where the engine gathers those of keys and values, multiples of
    them that divide the query heads are degrees too.
    """
    limit, model = problem.cluster.num_gpus, problem.model
    whole = model.attention.whole_heads
    degrees = tuple(divisors(whole, limit))
    if not problem.stack.timing.gathers_key_heads:
        return degrees
    ways = divisors(model.num_attention_heads, limit)
    return (*degrees, *(tp for tp in ways if tp > whole and tp % whole == 0))


def every_shard(problem: Problem, pins: Mapping[str, Any], *, coarse: bool) -> tuple[Draft, dict[str, int]]:
    """Ways to cut a microbatch over the ranks of a stage that the rules allow."""
    limit, job = problem.cluster.num_gpus, problem.job
    tensor = tensor_degrees(problem)
    table: Draft = {"tp": np.array(pinned(pins, "tp", tensor))}
    table = _within(
        cross(table, "cp", pinned(pins, "cp", divisors(problem.job.sequence_length, limit))), limit
    )
    sizes = divisors(job.global_batch_size, COARSE_MICROBATCH if coarse else job.global_batch_size)
    table = cross(table, "microbatch_size", pinned(pins, "microbatch_size", sizes))
    table = _cross_experts(problem, pins, table, coarse=coarse)
    table = _cross_sequence_parallel(pins, table, coarse=coarse)
    ones = np.ones(len(table["tp"]), dtype=np.int64)
    layouts = complete(problem, pins, table | {"pp": ones, "dp": ones})
    keep, rejected = legal(problem, layouts, only=SHARD_FIELDS)
    return where(table, keep), rejected


def join_shards(
    problem: Problem,
    pins: Mapping[str, Any],
    degrees: Draft,
    shards: Draft,
    pair_bound: PairBound | None = None,
) -> tuple[LayoutTable, dict[str, int]]:
    """Degrees and shards that agree; pairs that cannot win are dismissed as ``compute-bound``."""
    chosen_degrees, chosen_shards = [], []
    for rows, columns in _groups(degrees, shards):
        mine = {name: column[rows][:, None] for name, column in degrees.items()}
        shard = {name: column[columns][None, :] for name, column in shards.items()}
        agree = np.asarray(
            BATCH.rest(problem.job.global_batch_size, mine["dp"], shard["microbatch_size"]) == 0
        )
        block = mine["dp"] * mine["cp"] * mine["tp"]
        agree &= EXPERT_RANKS.rest(block, shard["ep"], shard["expert_tp"]) == 0
        if pair_bound is not None:
            scores = pair_bound.scores(mine, columns)
            pair_bound.dismissed.by_bound("compute-bound", scores[agree & (scores >= pair_bound.cutoff)])
            agree &= scores < pair_bound.cutoff
        left, right = np.nonzero(agree)
        chosen_degrees.append(rows[left])
        chosen_shards.append(columns[right])
    left = np.concatenate([*chosen_degrees, np.zeros(0, dtype=np.intp)])
    right = np.concatenate([*chosen_shards, np.zeros(0, dtype=np.intp)])
    layouts = complete(problem, pins, where(shards, right) | where(degrees, left))
    keep, rejected = legal(problem, layouts, only=COMBINATION_FIELDS)
    return layouts.take(keep), rejected


def _groups(degrees: Draft, shards: Draft) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """Rows of both tables with the same tp and cp."""
    for tp, cp in sorted(set(zip(degrees["tp"].tolist(), degrees["cp"].tolist(), strict=True))):
        rows = np.flatnonzero((degrees["tp"] == tp) & (degrees["cp"] == cp))
        columns = np.flatnonzero((shards["tp"] == tp) & (shards["cp"] == cp))
        if len(columns):
            yield rows, columns


def num_gpus(table: Draft) -> Integers:
    """Product of the degrees so far."""
    return np.asarray(np.prod([table[axis] for axis in RANK_AXES if axis in table], axis=0))


def _pipeline_degrees(problem: Problem, limit: int, *, coarse: bool) -> list[int]:
    layers = problem.model.num_layers
    every = range(1, min(layers, limit) + 1)
    return [pp for pp in every if not coarse or layers % pp == 0 or pp & (pp - 1) == 0]


def _within(table: Draft, limit: int) -> Draft:
    """Rows whose degrees so far need at most `limit` GPUs."""
    return where(table, num_gpus(table) <= limit)


def _cross_sequence_parallel(pins: Mapping[str, Any], table: Draft, *, coarse: bool) -> Draft:
    """With and without sequence parallelism where there is a tensor-parallel group to do it."""
    if "sequence_parallel" in pins:
        return cross(table, "sequence_parallel", [pins["sequence_parallel"]])
    if coarse:
        return table | {"sequence_parallel": table["tp"] > 1}
    both = cross(table, "sequence_parallel", (False, True))
    return where(both, (both["tp"] > 1) | ~both["sequence_parallel"])


def _cross_experts(problem: Problem, pins: Mapping[str, Any], table: Draft, *, coarse: bool) -> Draft:
    """Every way to spread experts over the ranks of a stage; none in a dense model."""
    experts = problem.model.num_experts
    limit = problem.cluster.num_gpus
    degrees = divisors(experts, limit) if experts and problem.stack.supports.expert_parallel else (1,)
    table = cross(table, "ep", pinned(pins, "ep", degrees))
    if "expert_tp" in pins:
        return cross(table, "expert_tp", [pins["expert_tp"]])
    both = cross(table, "expert_tp", (1, 0) if experts and not coarse else (1,))
    split = both["expert_tp"] == 0
    both["expert_tp"] = np.where(split, both["tp"], 1)
    return where(both, (both["ep"] * both["expert_tp"] <= limit) & (~split | (both["tp"] > 1)))


def complete(problem: Problem, pins: Mapping[str, Any], table: Draft) -> LayoutTable:
    """Fill the fields of variants with a legal default."""
    rows = len(table["tp"])
    ones = np.ones(rows, dtype=np.int64)
    table = {axis: pins.get(axis, 1) * ones for axis in AXES if axis not in table} | table
    ranks = table["dp"] * table["cp"]
    defaults: Draft = {
        "virtual_stages": ones,
        "schedule": np.full(rows, coded("schedule", problem.stack.supports.schedules[:1])[0]),
        "zero_stage": np.full(rows, min(problem.stack.supports.zero_stages)),
        "shard_degree": ranks,
        "cp_kind": np.full(
            rows, pinned(pins, "cp_kind", coded("cp_kind", problem.stack.supports.cp_kinds))[0]
        ),
        "recompute": np.full(rows, coded("recompute", problem.stack.supports.recomputes[:1])[0]),
        "axis_order": np.full(rows, coded("axis_order", [pins.get("axis_order", AXIS_ORDERS[0])])[0]),
    }
    columns = {**defaults, **table}
    flags = columns.pop("sequence_parallel").astype(bool)
    return LayoutTable(sequence_parallel=flags, **{n: c.astype(np.int64) for n, c in columns.items()})
