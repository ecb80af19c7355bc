"""The stage solver, the dynamic program and brute force agree on every split of small pipelines."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.layout import ParallelLayout
from costmodel.pipeline.stage_costs import (
    StageCosts,
    StageSplit,
    fits_capacity,
    memory_of_stages,
    step_time,
)
from costmodel.pipeline.stages import ends_shortage, ranks_of_chunks
from planner.stages.dynamic_program import best_path, bound_stages, rank_tables, split_of_path
from planner.stages.integer_program import solve_stages
from tests.counts import tries
from topology.base.columns import distinct

RELATIVE = 1e-6  # the documented rounding of the solver


def exact_split(costs: StageCosts) -> tuple[float, StageSplit | None]:
    """Best step time over every split of one chunk per rank: every slowest rank, every longest tail."""
    tables = rank_tables(costs, sum(costs.runs) - (costs.num_ranks - 1))
    best_s, best = math.inf, None
    for slowest in distinct(tables.seconds[np.isfinite(tables.seconds)]):
        for tail in distinct(tables.tails[np.isfinite(tables.tails)]):
            allowed = (tables.seconds <= slowest) & (tables.tails <= tail)
            path = best_path(tables, np.where(allowed, tables.seconds, np.inf))
            if path:
                split = split_of_path(tables, path)
                if step_time(costs, split) < best_s:
                    best_s, best = step_time(costs, split), split
    return best_s, best


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[StageCosts, tuple[int, ...]]:
    """Costs of a small pipeline, often with too little memory to keep every activation."""
    ranks, virtual_stages = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (2, 3)]))
    chunks = ranks * virtual_stages
    runs = draw(
        st.sampled_from(
            [
                runs
                for runs in [
                    (chunks,),
                    (chunks + 1,),
                    (2 * chunks - 1,),
                    (chunks - 2,),
                    (2 * chunks - 3,),
                    (1, chunks - 1),
                    (2, 2 * chunks - 3),
                ]
                if min(runs) > 0
                and (
                    sum(runs) >= chunks
                    if virtual_stages == 1
                    else ends_shortage(sum(runs), chunks) is not None
                )
            ]
        )
    )
    kinds = draw(st.permutations([k for k, count in enumerate(runs) for _ in range(count)]))
    alternates = draw(st.booleans())
    order = tuple((k, len(list(same))) for k, same in itertools.groupby(kinds)) if alternates else ()
    numbers = st.floats(0.1, 2.0)
    per_run = st.tuples(*[numbers] * len(runs))
    per_rank = st.tuples(*[st.floats(0.0, 1.0)] * ranks)
    saved, kept = draw(per_run), draw(st.floats(0.0, 1.0))
    held = tuple(float(ranks - s) for s in range(ranks))
    costs = StageCosts(
        runs=runs,
        layer_s=draw(per_run),
        recompute_s=draw(per_run),
        static_bytes=tuple(1e9 * x for x in draw(per_run)),
        saved_bytes=tuple(1e9 * x for x in saved),
        saved_bytes_recomputed=tuple(1e9 * kept * x for x in saved),
        fixed_s=draw(per_rank),
        fixed_static_bytes=tuple(1e9 * x for x in draw(per_rank)),
        fixed_activation_bytes=tuple(1e9 * x for x in draw(per_rank)),
        in_flight=held,
        working_bytes=1e8,
        recompute_working_bytes=(2e8,) * ranks,
        tail_layer_s=(draw(per_run), draw(per_run)),
        tail_fixed_s=(draw(per_rank), draw(per_rank)),
        num_microbatches=draw(st.integers(1, 16)),
        bubble_weight=draw(st.sampled_from([0.0, 1 / 3, 0.5, 1.0])),
        constant_s=0.1,
        capacity_bytes=draw(st.floats(2e9, 4e10)),
        order=order,
    )
    schedule = "1f1b" if virtual_stages == 1 else "interleaved"
    layout = ParallelLayout(pp=ranks, virtual_stages=virtual_stages, schedule=schedule)
    return costs, ranks_of_chunks(layout)


def every_split(costs: StageCosts, chunk_ranks: tuple[int, ...]) -> list[StageSplit]:
    """All splits of a pipeline by exhaustive enumeration, legal memory or not.

    Ranks of several chunks hold equal ones, but for the first and the last of the model, which may be
    shorter, and empty where every chunk with a layer is impossible.
    """
    total, chunks, single = sum(costs.runs), len(chunk_ranks), len(chunk_ranks) == costs.num_ranks
    longest = total if single else -(-total // chunks)

    def chunkings(least: int) -> list[tuple[int, ...]]:
        found = itertools.product(range(least, longest + 1), repeat=chunks)
        return [sizes for sizes in found if sum(sizes) == total and (single or set(sizes[1:-1]) <= {longest})]

    splits = []
    for sizes in chunkings(1) or chunkings(0):
        rows = rows_of(costs, chunk_ranks, sizes)
        recomputed = itertools.product(*(range(sum(row) + 1) for row in rows))
        splits.extend(StageSplit(layers_of_stage=rows, recompute_of_stage=r) for r in recomputed)
    return splits


def rows_of(
    costs: StageCosts, chunk_ranks: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Layers of each kind on each rank, counted one by one."""
    kinds = iter([kind for kind, count in costs.order or enumerate(costs.runs) for _ in range(count)])
    rows = [[0] * len(costs.runs) for _ in range(costs.num_ranks)]
    for rank, layers in zip(chunk_ranks, sizes, strict=True):
        for kind in itertools.islice(kinds, layers):
            rows[rank][kind] += 1
    return tuple(tuple(row) for row in rows)


def brute_force(costs: StageCosts, chunk_ranks: tuple[int, ...]) -> float:
    """Least step time over all splits that fit."""
    times = (
        step_time(costs, split) for split in every_split(costs, chunk_ranks) if fits_capacity(costs, split)
    )
    return min(times, default=math.inf)


def on_the_edge(costs: StageCosts, chunk_ranks: tuple[int, ...]) -> bool:
    """Whether some split is a few bytes off the capacity: bytes are whole in the solver, which says so."""
    room = [
        memory_of_stages(costs, split) - costs.capacity_bytes for split in every_split(costs, chunk_ranks)
    ]
    return bool((np.abs(room) <= sum(costs.runs) + 4).any())


@settings(max_examples=tries(35, 100), deadline=None)
@given(pipelines())
def test_the_solver_finds_the_optimum_of_exhaustive_search(drawn: tuple[StageCosts, tuple[int, ...]]) -> None:
    """CP-SAT returns a split that fits and is as fast as the best of all splits."""
    costs, chunk_ranks = drawn
    best_s = brute_force(costs, chunk_ranks)
    found = solve_stages(costs, chunk_ranks, seed=bound_stages(costs, chunk_ranks).split)
    assert found.step_time_s == pytest.approx(best_s, rel=RELATIVE)
    assert (found.split is None) == math.isinf(best_s)
    if found.split is not None:
        assert fits_capacity(costs, found.split)
        assert found.status == "proven" or on_the_edge(costs, chunk_ranks)
        assert found.bound_s <= best_s


@settings(max_examples=tries(35, 100), deadline=None)
@given(pipelines())
def test_the_dynamic_program_equals_the_solver(drawn: tuple[StageCosts, tuple[int, ...]]) -> None:
    """With one chunk per rank, the exact dynamic program and CP-SAT give the same step time."""
    costs, chunk_ranks = drawn
    if len(chunk_ranks) == costs.num_ranks:
        best_s, _ = exact_split(costs)
        assert solve_stages(costs, chunk_ranks).step_time_s == pytest.approx(best_s, rel=RELATIVE)


@settings(max_examples=tries(35, 100), deadline=None)
@given(pipelines())
def test_no_split_beats_the_bound(drawn: tuple[StageCosts, tuple[int, ...]]) -> None:
    """The bound of the dynamic program is admissible, and its seed is a real split that fits."""
    costs, chunk_ranks = drawn
    bound = bound_stages(costs, chunk_ranks)
    assert bound.bound_s <= brute_force(costs, chunk_ranks) * (1 + RELATIVE)
    if bound.split is not None:
        assert fits_capacity(costs, bound.split)
        assert bound.seed_s == step_time(costs, bound.split)


@settings(max_examples=tries(20, 50), deadline=None)
@given(pipelines())
def test_nothing_is_found_below_the_optimum(drawn: tuple[StageCosts, tuple[int, ...]]) -> None:
    """With a cutoff just below the optimum the solver proves that no split beats it."""
    costs, chunk_ranks = drawn
    best_s = brute_force(costs, chunk_ranks)
    if math.isfinite(best_s) and not on_the_edge(costs, chunk_ranks):
        found = solve_stages(costs, chunk_ranks, cutoff_s=best_s * (1 - 10 * RELATIVE))
        assert found.status == "none"
        assert math.isinf(found.bound_s)


def test_a_tail_longer_than_all_microbatches_is_solved() -> None:
    """Reducing gradients over a slow network may take many times the compute of one microbatch."""
    costs = StageCosts(
        runs=(4,), layer_s=(0.1,), recompute_s=(0.03,), static_bytes=(1e9,), saved_bytes=(1e9,),
        saved_bytes_recomputed=(1e8,), fixed_s=(0.0, 0.0), fixed_static_bytes=(0.0, 0.0),
        fixed_activation_bytes=(0.0, 0.0), in_flight=(2.0, 1.0), working_bytes=1e8,
        recompute_working_bytes=(2e8, 2e8), tail_layer_s=((10.0,),), tail_fixed_s=((100.0, 0.0),),
        num_microbatches=1, bubble_weight=1.0, constant_s=0.1, capacity_bytes=4e10,
    )  # fmt: skip
    found = solve_stages(costs, (0, 1))
    assert found.split is not None
    assert found.split.layers_of_stage == ((1,), (3,))
    assert found.step_time_s == pytest.approx(0.4 + 110.0 + 0.1)


def test_a_bound_that_rises_one_unit_per_conflict_is_not_waited_for() -> None:
    """An instance on which a bound raised conflict by conflict needs days, and by subtrees milliseconds."""
    costs = StageCosts(
        runs=(2, 3), layer_s=(1.5558128556862016, 0.5741944812086845),
        recompute_s=(0.9003622246299733, 1.8528545750837697),
        static_bytes=(931970771.6860574, 1314039446.741312), saved_bytes=(500000000.0, 1701049935.0805817),
        saved_bytes_recomputed=(366967446.2960138, 1248459901.397042), fixed_s=(0.0, 0.0, 1.0),
        fixed_static_bytes=(0.0, 347853753.2322437, 1e9),
        fixed_activation_bytes=(550997688.8684093, 418735614.7838065, 325378959.5464094),
        in_flight=(3.0, 2.0, 1.0), working_bytes=1e8, recompute_working_bytes=(2e8, 2e8, 2e8),
        tail_layer_s=((0.7004770777251694, 0.481028025869373), (1.05, 0.24209519362428955)),
        tail_fixed_s=((0.0, 0.3478537532322437, 0.5741944812086845), (0.29889228360508296, 0.0, 0.0)),
        num_microbatches=1, bubble_weight=0.0, constant_s=0.1, capacity_bytes=13434276625.263044,
    )  # fmt: skip
    best_s, _ = exact_split(costs)
    found = solve_stages(costs, (0, 1, 2))
    assert found.status == "proven"
    assert found.step_time_s == pytest.approx(best_s, rel=RELATIVE)
