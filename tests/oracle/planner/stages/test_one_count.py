"""Splits for engines that are told one number of recomputed layers, held against all of them."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.pipeline.stage_costs import StageCosts, fits_capacity, step_time
from planner.plan import Recomputes
from planner.stages.integer_program import solve_stages
from planner.stages.one_count import bound_expressible, expressible_counts, split_of_count
from tests.counts import tries
from tests.oracle.planner.stages.test_stages import RELATIVE, pipelines

TOLD: tuple[Recomputes, ...] = ("per-chunk", "all")


def brute_force(costs: StageCosts, chunk_ranks: tuple[int, ...], recomputes: Recomputes) -> float:
    """Least step over all chunkings and all numbers that can be told, of those that fit."""
    total, chunks, single = sum(costs.runs), len(chunk_ranks), len(chunk_ranks) == costs.num_ranks
    longest = total if single else -(-total // chunks)
    best = math.inf
    for least in (1, 0):
        for sizes in itertools.product(range(least, longest + 1), repeat=chunks):
            if sum(sizes) != total or not (single or set(sizes[1:-1]) <= {longest}):
                continue
            for count in expressible_counts(total, recomputes):
                split = split_of_count(costs, chunk_ranks, sizes, count)
                if fits_capacity(costs, split):
                    best = min(best, step_time(costs, split))
            least = -1  # there is a chunking: empty ends are the last resort  # noqa: PLW2901
        if least == -1:
            break
    return best


@settings(max_examples=tries(35, 100), deadline=None)
@given(pipelines(), st.sampled_from(TOLD))
def test_the_solver_finds_the_optimum_of_what_can_be_told(
    drawn: tuple[StageCosts, tuple[int, ...]], recomputes: Recomputes
) -> None:
    """CP-SAT returns a split with one number that is as fast as the best of all of those."""
    costs, chunk_ranks = drawn
    best_s = brute_force(costs, chunk_ranks, recomputes)
    known = bound_expressible(costs, chunk_ranks, recomputes)
    found = solve_stages(costs, chunk_ranks, seed=known.split, recomputes=recomputes)
    assert found.step_time_s == pytest.approx(best_s, rel=RELATIVE)
    assert solve_stages(costs, chunk_ranks, recomputes=recomputes).step_time_s == pytest.approx(
        best_s, rel=RELATIVE
    )


@settings(max_examples=tries(35, 100), deadline=None)
@given(pipelines(), st.sampled_from(TOLD))
def test_no_split_that_can_be_told_beats_the_bound(
    drawn: tuple[StageCosts, tuple[int, ...]], recomputes: Recomputes
) -> None:
    """The bound is admissible, and its proposal is a split that fits and can be told."""
    costs, chunk_ranks = drawn
    best_s = brute_force(costs, chunk_ranks, recomputes)
    known = bound_expressible(costs, chunk_ranks, recomputes)
    assert known.bound_s <= best_s * (1 + 1e-12)
    if known.split is not None:
        assert fits_capacity(costs, known.split)
        assert known.seed_s == pytest.approx(step_time(costs, known.split), rel=1e-12)
        assert known.seed_s >= best_s * (1 - 1e-12)
