"""Best-first over combinations by admissible bound, then over variants, then CP-SAT on what survives.

Combinations enter in the order of bounds, in growing batches. A batch is expanded into variants, bounded
rank by rank, and its best rows get a split from the dynamic program, which tightens the incumbent for all
that follow. When no bound can beat the incumbent, every layout whose own still could is decided by
CP-SAT. So the result is optimal in the space of `planner.space.unfold`; counts say why others are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from costmodel.kernels.tables import Calibration
from costmodel.layout import DEFAULT_AXIS_ORDER, LayoutTable, num_microbatches
from planner.bounds.funnel import (
    ROUNDING,
    MicrobatchTimes,
    best_placement_times,
    compute_times,
    degrees_of,
    least_bubble,
    least_gpus,
    placed_times,
    smallest_bubble,
    smallest_memory,
    step_bound,
)
from planner.bounds.objective import goal_of
from planner.bounds.priced import Priced, price_any_sharding, priced_columns
from planner.bounds.ranks import plain_bounds, variant_bounds
from planner.plan import PlanRequest, Problem, problem_of
from planner.rules.check import check_pins, parse_pins
from planner.search.candidates import (
    Candidate,
    Choice,
    choice,
    decide,
    expressible,
    require_searchable,
    seed_choice,
    settled_by_bound,
    unsplit,
)
from planner.search.state import Progress, Search
from planner.space.columns import Draft, Integers
from planner.space.degrees import (
    PairBound,
    combinations,
    complete,
    every_degrees,
    every_shard,
    join_shards,
    num_gpus,
)
from planner.space.dismissals import Dismissals
from planner.space.unfold import eased, pipelines, placements, shardings, variants
from topology.base.arrays import Vector
from topology.base.columns import distinct

FIRST_BATCH = 32
"""Combinations expanded at first; later batches double."""
LEAST_COARSE = 5 * FIRST_BATCH
"""Combinations a coarse search looks at at least: a poor incumbent costs the full search."""
MOST_COARSE = 64 * FIRST_BATCH
"""Combinations a coarse search looks at before giving up."""
FIRST_SLICE = 512
"""Variants bounded rank by rank at first; later slices are four times larger."""
ROWS_AT_ONCE = 100_000
"""Variants priced at once, to bound memory."""
FEW_GPUS = 4
"""Clusters up to this size need no coarse search before the full one."""


def run_search(search: Search) -> None:
    """Search the whole space; the outcome stands in `search`."""
    if search.problem.cluster.num_gpus > FEW_GPUS:
        search.progress("looking for a first plan")
        search.coarse = True
        _coarse(search)
        search.coarse = False
    search.progress("enumerating layouts")
    table = _all_combinations(search)
    search.progress(f"bounding {len(table):,} combinations of degrees")
    for batch in _by_bound(search, table):
        _expand(search, batch, search.pins)
    _ease(search)
    search.progress(f"deciding {len(search.survivors)} layouts with the solver")
    _solve(search)


def finds_a_layout(search: Search) -> bool:
    """Whether there is any layout, which the first one shows: nothing is compared, nothing is proven."""
    search.coarse = True
    _coarse(search)
    search.coarse = False
    if _has_a_plan(search):
        return True
    for batch in _by_bound(search, _all_combinations(search)):
        _expand(search, batch, search.pins)
        if _has_a_plan(search):
            return True
    _ease(search)
    _solve(search)
    return _has_a_plan(search)


def _has_a_plan(search: Search) -> bool:
    """Whether the search has an incumbent by now."""
    return search.best is not None


def _coarse(search: Search) -> None:
    """Find an incumbent among usual choices on more than half of the GPUs; it proves nothing."""
    s = search.problem
    usual = {"axis_order": DEFAULT_AXIS_ORDER, "cp_kind": s.stack.supports.cp_kinds[0], **search.pins}
    layouts, _ = combinations(s, search.pins, least_gpus=s.cluster.num_gpus // 2 + 1, coarse=True)
    table = _fitting(s, layouts)
    if len(table) == 0:
        return
    bounds = _least_scores(search, table, compute_times(s, table))
    search.seen.append((table, bounds))
    order = np.argsort(bounds, kind="stable")
    start, size = 0, FIRST_BATCH
    found_any = math.isfinite(search.score)
    while ((search.best is None and not found_any) or start < LEAST_COARSE) and start < min(
        len(order), MOST_COARSE
    ):
        _expand(search, table.take(order[start : start + size]), usual)
        start, size = start + size, 4 * size
    search.dismissed = Dismissals()
    search.hopeful.clear()


def _fitting(problem: Problem, table: LayoutTable) -> LayoutTable:
    """Combinations with some variant that might fit."""
    return table.take(smallest_memory(problem, table) <= problem.memory_budget_bytes * (1 + ROUNDING))


def _least_scores(search: Search, table: LayoutTable, times: MicrobatchTimes) -> Vector:
    """Scores that no variant of each combination can beat."""
    s = search.problem
    M, beta = num_microbatches(table, s.job), smallest_bubble(s, search.pins, table.pp)
    return search.goal.score(table.num_gpus, step_bound(s, times, degrees_of(table), M, beta))


def _all_combinations(search: Search) -> LayoutTable:
    """Every combination that might fit, and that compute alone does not keep from beating the incumbent."""
    s = search.problem
    degrees, too_few = every_degrees(s, search.pins, least_gpus=_fewest_gpus(search), coarse=False)
    shards, broken = every_shard(s, search.pins, coarse=False)
    pair_bound = _pair_bound(search, degrees, shards)
    table, rejected = join_shards(s, search.pins, degrees, shards, pair_bound)
    search.dismissed.by_rule(broken)
    search.dismissed.by_rule(rejected)
    search.dismissed.by_bound("too-few-gpus", np.full(too_few, search.score))
    kept = _fitting(s, table)
    search.dismissed.by_rule({"memory": len(table) - len(kept)})
    return kept


def _fewest_gpus(search: Search) -> float:
    """GPUs below which no layout beats the incumbent; no limit for goals that save GPUs."""
    saves = search.goal.objective not in ("step-time", "memory")
    return 1.0 if saves or not math.isfinite(search.score) else least_gpus(search.problem, search.score)


def _pair_bound(search: Search, degrees: Draft, shards: Draft) -> PairBound | None:
    """Judge pairs of degrees and shards by compute alone; nothing to judge by without an incumbent."""
    if not math.isfinite(search.score) or len(shards["tp"]) == 0 or len(degrees["pp"]) == 0:
        return None
    s, ones = search.problem, np.ones(len(shards["tp"]), dtype=np.int64)
    times = compute_times(s, complete(s, search.pins, shards | {"pp": ones, "dp": ones}))
    ranks = distinct(degrees["pp"])
    bubbles = np.ones(int(ranks.max()) + 1)
    bubbles[ranks] = smallest_bubble(s, search.pins, ranks)

    def scores(rows: Draft, chosen: Integers) -> Vector:
        microbatch = rows["dp"] * shards["microbatch_size"][chosen][None, :]
        M = np.maximum(1, s.job.global_batch_size // microbatch)
        bounds = step_bound(s, times.take(chosen), rows, M, bubbles[rows["pp"]])
        return search.goal.score(num_gpus(rows), bounds)

    return PairBound(scores=scores, cutoff=search.cutoff, dismissed=search.dismissed)


def _by_bound(search: Search, table: LayoutTable) -> Iterator[LayoutTable]:
    """Batches of combinations in the order of their bounds, while they can beat the incumbent."""
    if len(table) == 0:
        return
    times = best_placement_times(search.problem, table)
    bounds = _least_scores(search, table, times)
    search.seen.append((table, bounds))
    for batch in search.dismissed.in_turn(
        "core-bound", bounds, lambda: search.cutoff, first=FIRST_BATCH, growth=2
    ):
        yield table.take(batch)


def _expand(search: Search, table: LayoutTable, pins: Mapping[str, Any]) -> None:
    """Look at the variants of some combinations."""
    layouts, dismissed = unfold(search, table, pins, search.cutoff)
    search.dismissed.take_over(dismissed)
    for part in _parts(layouts):
        _look(search, _priced(search, part))


def _priced(search: Search, variants: LayoutTable) -> Priced:
    """Price variants as kindly as any sharding of their state could; exactly where there is one."""
    how = priced_columns if search.coarse or "shard_degree" in search.pins else price_any_sharding
    return how(search.problem, variants)


def _parts(table: LayoutTable) -> Iterator[LayoutTable]:
    """A table in parts that can be priced at once."""
    for start in range(0, len(table), ROWS_AT_ONCE):
        yield table.take(slice(start, start + ROWS_AT_ONCE))


def unfold(
    search: Search, table: LayoutTable, pins: Mapping[str, Any], cutoff: float
) -> tuple[LayoutTable, Dismissals]:
    """Unfold combinations into placements, pipelines and variants, dropping at each step what cannot win.

    Args:
        search: what is asked.
        table: combinations.
        pins: fields that are given.
        cutoff: score that a layout has to stay below.

    Returns:
        The variants that could, and those that were dropped.
    """
    s, dismissed = search.problem, Dismissals()
    placed, broken = placements(s, pins, table)
    dismissed.by_rule(broken)
    if len(placed) == 0:
        return placed, dismissed
    times = placed_times(s, placed)
    scores = _least_scores(search, placed, times)
    hopeful = scores < cutoff
    dismissed.by_bound("placement-bound", scores[~hopeful])
    layouts, placement, broken = pipelines(s, pins, placed.take(hopeful))
    dismissed.by_rule(broken)
    if len(layouts) == 0:
        return layouts, dismissed
    M, times = num_microbatches(layouts, s.job), times.take(np.flatnonzero(hopeful)[placement])
    bounds = step_bound(s, times, degrees_of(layouts), M, least_bubble(layouts))
    scores = search.goal.score(layouts.num_gpus, bounds)
    hopeful = scores < cutoff
    dismissed.by_bound("bubble-bound", scores[~hopeful])
    layouts, broken = variants(s, pins, layouts.take(hopeful))
    dismissed.by_rule(broken)
    return layouts, dismissed


def _look(search: Search, priced: Priced) -> None:
    """Bound rows in the order of their plain bounds, slice by slice, and split the best of each."""
    plain_s = plain_bounds(search.problem, priced)
    scores = search.goal.score(priced.table.num_gpus, plain_s)
    for part in search.dismissed.in_turn(
        "stage-bound", scores, lambda: search.cutoff, first=FIRST_SLICE, growth=4
    ):
        chosen = priced.take(part)
        _bound_ranks(search, chosen, plain_s[part])
        search.hopeful.append((chosen.table, scores[part]))


def _ease(search: Search) -> None:
    """Look at the eased variants of layouts that could win: they take longer and need less memory."""
    could = [table.take(scores < search.cutoff) for table, scores in search.hopeful]
    if not could:
        return
    layouts, broken = eased(search.problem, search.pins, LayoutTable.concat(could))
    search.dismissed.by_rule(broken)
    for part in _parts(layouts):
        priced = _priced(search, part)
        plain_s = plain_bounds(search.problem, priced)
        scores = search.goal.score(part.num_gpus, plain_s)
        rows = np.flatnonzero(scores < search.cutoff)
        search.dismissed.by_bound("stage-bound", scores[scores >= search.cutoff])
        _bound_ranks(search, priced.take(rows), plain_s[rows])


def _bound_ranks(search: Search, priced: Priced, plain_s: Vector) -> None:
    """Bound variants rank by rank, and unfold the shardings of those that could win, best bound first."""
    bounds = _rank_scores(search, priced, plain_s)
    _dismiss(search, bounds[~np.isfinite(bounds)])
    fits = np.flatnonzero(np.isfinite(bounds))
    for part in search.dismissed.in_turn(
        "stage-bound", bounds[fits], lambda: search.cutoff, first=FIRST_BATCH, growth=4
    ):
        _unfold_shardings(search, priced.take(fits[part]))


def _unfold_shardings(search: Search, variants: Priced) -> None:
    """Split those of some variants that could win, under every sharding of the state."""
    for priced in [variants] if search.coarse else _every_sharding(search, variants.table):
        _take_best(search, priced, _rank_scores(search, priced, plain_bounds(search.problem, priced)))


def _every_sharding(search: Search, variants: LayoutTable) -> Iterator[Priced]:
    """Price every sharding of the state of some variants."""
    layouts, broken = shardings(search.problem, search.pins, variants)
    search.dismissed.by_rule(broken)
    for part in _parts(layouts):
        yield priced_columns(search.problem, part)


def _rank_scores(search: Search, priced: Priced, plain_s: Vector) -> Vector:
    """Scores that no split of each layout can beat; infinite where none fits or none beats the incumbent."""
    gpus = priced.table.num_gpus
    cutoff_s = search.goal.cutoff_s(gpus, search.score)
    return search.goal.score(gpus, variant_bounds(search.problem, priced, plain_s, cutoff_s))


def _dismiss(search: Search, hopeless: Vector) -> None:
    """Count layouts that no split makes better than the incumbent, or of which none fits if there is none."""
    if math.isfinite(search.score):
        search.dismissed.by_bound("stage-bound", np.full(len(hopeless), search.score))
    else:
        search.dismissed.by_rule({"memory": len(hopeless)})


def _take_best(search: Search, priced: Priced, bounds: Vector) -> None:
    """Split rows best bound first until no bound can beat the incumbent."""
    _dismiss(search, bounds[~np.isfinite(bounds)])
    order = np.argsort(bounds, kind="stable")
    hopeful = order[np.isfinite(bounds[order])]
    for position, row in enumerate(hopeful):
        if bounds[row] >= search.cutoff:
            search.dismissed.by_bound("stage-bound", bounds[hopeful[position:]])
            break
        _split(search, priced, int(row), float(bounds[row]))


def _split(search: Search, priced: Priced, row: int, bound: float) -> None:
    """Split one layout with the dynamic program; it survives if its bound can still beat the incumbent.

    One that is slower under any split need not be split as its engine can be told: that is left to whoever
    looks for alternatives.
    """
    result = unsplit(search.problem, priced, row)
    any_split = float(search.goal.score(result.layout.num_gpus, result.known.bound_s))
    if search.score * (1 + ROUNDING) < any_split < math.inf:
        search.unsplit.append((any_split, search.splits(), result))
        search.dismissed.by_bound("split-bound", np.array([max(bound, any_split)]))
        return
    result = expressible(result)
    bound = max(bound, float(search.goal.score(result.layout.num_gpus, result.known.bound_s)))
    seed, survives = seed_choice(result), bound < search.cutoff
    if seed is not None:
        search.offer(seed)
        search.remember(seed, search.splits())
    if survives:
        search.survivors[result.layout] = (bound, result)
    else:
        search.dismissed.by_bound("split-bound", np.array([bound]))


def _solve(search: Search) -> None:
    """Decide every layout whose bound can still win, and the incumbent's own, best bound first."""
    incumbent = search.best
    pending = sorted(search.survivors.values(), key=lambda item: item[0])
    for bound, result in pending:
        is_incumbent = incumbent is not None and _same(result, incumbent)
        if bound >= search.cutoff and not is_incumbent:
            search.dismissed.by_bound("split-bound", np.array([bound]))
            continue
        search.solved += 1
        cutoff_s = (
            math.inf if is_incumbent else float(search.goal.cutoff_s(result.layout.num_gpus, search.cutoff))
        )
        solution = settled_by_bound(result) or decide(result, cutoff_s)
        search.proven &= solution.status != "best-found" and solution.bound_s > 0
        search.by_clock |= solution.by_clock
        if solution.split is not None:
            chosen = choice(result.layout, result.costs, solution.split, solution.step_time_s)
            if not search.keeps(chosen):  # nor does any longer step of this layout
                continue
            search.offer(chosen)
        search.bound = min(search.bound, float(search.goal.score(result.layout.num_gpus, solution.bound_s)))
    search.bound = min(search.bound, search.score)


def _same(result: Candidate, incumbent: Choice) -> bool:
    """Whether the incumbent is a split of this layout (recomputing nothing has another name)."""
    return result.layout in (incumbent.layout, replace(incumbent.layout, recompute="full"))


def explore(
    request: PlanRequest,
    cal: Calibration,
    *,
    progress: Progress | None = None,
    score: float = math.inf,
) -> Search:
    """Run the search without writing an answer; none where pinned fields already contradict.

    Args:
        request: what is asked.
        cal: calibration tables.
        progress: told in a few words what the search is doing.
        score: only layouts that beat it are of interest.
    """
    search = begin(request, cal, progress or (lambda _: None), score)
    if not search.contradictions:
        run_search(search)
    return search


def has_layout(request: PlanRequest, cal: Calibration) -> bool:
    """Whether some layout of a request is legal, fits and meets its limits."""
    search = begin(request, cal)
    return not search.contradictions and _might_fit(search) and finds_a_layout(search)


def _might_fit(search: Search) -> bool:
    """A cheap look at memory before a search: whether a bound leaves any layout that a GPU holds."""
    table, _ = combinations(search.problem, search.pins)
    room = search.problem.memory_budget_bytes
    return len(table) > 0 and bool(smallest_memory(search.problem, table).min() <= room)


def begin(
    request: PlanRequest, cal: Calibration, progress: Progress = lambda _: None, score: float = math.inf
) -> Search:
    """The search before its first step: its problem, its pins, and what these contradict."""
    problem = problem_of(request, cal)
    require_searchable(problem, request.pins)
    pins = parse_pins(request.pins)
    return Search(
        problem=problem,
        goal=goal_of(request),
        pins=pins,
        progress=progress,
        score=score,
        contradictions=check_pins(problem, pins),
    )
