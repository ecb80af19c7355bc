"""Pipelines whose stages run on unlike kinds of node: every layout, every order of kinds, every split.

Stages are split into contiguous runs, one for each kind of node in any order; degrees and microbatch are the
same everywhere, layers and recomputed layers are each stage's own. The schedule is 1F1B, whose closed form
holds for unequal ranks. A bound may only leave things out, as everywhere: work that flows to the fastest
stages there are, then whole layers within the memory of each stage; what is left is split exactly.

Legend: ``P`` stages, ``M`` microbatches, ``ρ`` seconds of a layer over those on the first kind.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from costmodel.kernels.tables import Calibration
from costmodel.layout import AXIS_ORDERS, PLAIN_SCHEDULE, LayoutTable, ParallelLayout, num_microbatches
from costmodel.models.spec import layer_runs
from costmodel.pipeline.stage_costs import StageSplit, UnlikeStages
from costmodel.training.constants import default_constants
from costmodel.training.priced import Priced
from costmodel.training.step_time import step_stretch
from costmodel.training.unlike import price_unlike, unlike_costs
from planner.bounds.funnel import ROUNDING, best_placement_seconds, compute_seconds, smallest_memory
from planner.bounds.objective import Goal, goal_of
from planner.bounds.unlike import arranged_bounds, arranged_paid, least_paid, most_rate, slowness
from planner.engines.contracts import recomputes_of
from planner.plan import PlanRequest, Problem
from planner.pricing import clusters_of_kinds
from planner.rules.check import check_pins
from planner.search.best_first import begin
from planner.search.candidates import decidable, named
from planner.space.columns import Draft, Integers
from planner.space.degrees import PairBound, complete, every_degrees, every_shard, join_shards
from planner.space.dismissals import Dismissals
from planner.space.unfold import eased, pipelines, placements, shardings, variants
from planner.stages.unlike import arrangement_bounds, arrangements, kind_tables, split_unlike
from topology.base.arrays import Vector
from topology.cluster import Cluster
from topology.pools.kinds import kinds_of
from topology.pools.rates import Rates, rates_of_kinds

FIRST_BATCH = 32
"""Combinations unfolded at first; later batches double."""
MOST_SPLITS = 20_000
"""Arrangements split before the search gives up on a proof."""
FIRST_SLICE = 64
"""Layouts bounded by their memory at first; later slices are four times larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlikeChoice:
    """A layout whose stages run on these kinds of node, with its split; `paid` dollars an hour if known."""

    layout: ParallelLayout
    kind_of_stage: tuple[int, ...]
    costs: UnlikeStages
    split: StageSplit
    step_time_s: float
    paid: float | None


@dataclass(slots=True)
class UnlikeSearch:
    """What is asked, and what is known so far; `score` is what a choice has to stay below.

    `seen` are the combinations of degrees that could win at first, with their bounds, for plans beside it.
    """

    request: PlanRequest
    problem: Problem
    each: tuple[Cluster, ...]
    goal: Goal
    pins: Mapping[str, Any]
    score: float
    best: UnlikeChoice | None = None
    dismissed: Dismissals = field(default_factory=Dismissals)
    solved: int = 0
    bound: float = math.inf
    seen: tuple[LayoutTable, Vector] | None = None

    @property
    def cutoff(self) -> float:
        """Score below which a choice is of interest."""
        return self.goal.shortened(self.score, ROUNDING)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The same question of each kind of node alone."""
        return tuple(self.problem.of(cluster=cluster) for cluster in self.each)

    @property
    def rates(self) -> Rates:
        """Prices of the kinds of node, alike where they have one price; none where the goal asks none."""
        if self.goal.rates:
            return rates_of_kinds(self.request.cluster) or ()
        kinds = kinds_of(self.request.cluster) if self.goal.rents_what_it_uses else ()
        return tuple((kind.count * kind.gpus_per_node, 1.0) for kind in kinds)

    @property
    def gpus_of_nodes(self) -> tuple[int, ...]:
        """GPUs of a node of each kind, which is rented whole."""
        return tuple(kind.gpus_per_node for kind in kinds_of(self.request.cluster))

    @property
    def counts(self) -> Vector:
        """Layers of each run."""
        return np.array([run.count for run in layer_runs(self.problem.model)], dtype=np.float64)


def search_unlike(request: PlanRequest, cal: Calibration, score: float) -> UnlikeSearch | None:
    """Search stages of unlike kinds on a cluster of several; None where the question admits none.

    Args:
        request: what is asked, of all nodes that may be used.
        cal: kernel and collective tables.
        score: only what scores less is of interest.
    """
    done = _begin(request, cal, score)
    if done is None:
        return None
    table = _combinations(done)
    if len(table) == 0:
        return done
    layers = [best_placement_seconds(problem, table)[0] for problem in done.problems]
    scores = _scores(done, layers, table.by_name(), num_microbatches(table, done.problem.job))
    done.seen = table, scores
    for batch in done.dismissed.in_turn(
        "core-bound", scores, lambda: done.cutoff, first=FIRST_BATCH, growth=2
    ):
        _look(done, _unfold(done, table.take(batch)))
    return done


def best_of(done: UnlikeSearch, table: LayoutTable, score: float) -> UnlikeSearch:
    """The best layout of some combinations that scores less, as a search of them alone."""
    alone = replace(done, score=score, best=None, dismissed=Dismissals(), solved=0, bound=math.inf, seen=None)
    _look(alone, _unfold(alone, table))
    return alone


def rederive_unlike(request: PlanRequest, cal: Calibration, score: float) -> UnlikeSearch | None:
    """The same without a bound of pairs or combinations: every layout is unfolded and priced."""
    done = _begin(request, cal, score)
    if done is None:
        return None
    table, _ = _every(done, None)
    for start in range(0, len(table), 2_000):
        _look(done, _unfold(done, table.take(np.arange(start, min(start + 2_000, len(table))))))
    return done


def _begin(request: PlanRequest, cal: Calibration, score: float) -> UnlikeSearch | None:
    """The search before its first step; None where the question admits no stages of unlike kinds."""
    alike = begin(request, cal, score=score)
    problem, pins = alike.problem, alike.pins
    plain = {"schedule": PLAIN_SCHEDULE, "virtual_stages": 1}
    if (
        request.objective == "memory"
        or request.cluster.switches
        or problem.recomputed_layers is not None
        or PLAIN_SCHEDULE not in problem.stack.supports.schedules
        or any(pins.get(name, value) != value for name, value in plain.items())
        or check_pins(problem, {**pins, **plain})
    ):
        return None
    return UnlikeSearch(
        request=request,
        problem=problem,
        each=clusters_of_kinds(request.cluster),
        goal=goal_of(request),
        pins={**pins, **plain},
        score=score,
    )


def _combinations(done: UnlikeSearch) -> LayoutTable:
    """Combinations that compute alone does not keep from winning, and of which some variant might fit."""
    table, rejected = _every(done, _pair_bound)
    done.dismissed.by_rule(rejected)
    room = max(problem.memory_budget_bytes for problem in done.problems) * (1 + ROUNDING)
    kept = table.take(smallest_memory(done.problem, table) <= room) if len(table) else table
    done.dismissed.by_rule({"memory": len(table) - len(kept)})
    return kept


def _every(done: UnlikeSearch, bound: Any) -> tuple[LayoutTable, dict[str, int]]:
    """Legal combinations of which every kind can have a stage."""
    s = done.problem
    degrees, _ = every_degrees(s, done.pins, least_gpus=1.0, coarse=False)
    limits = [cluster.num_gpus for cluster in done.each]
    ranks = degrees["tp"] * degrees["cp"] * degrees["dp"]
    caps = [limit // ranks for limit in limits]
    possible = (np.min(caps, axis=0) >= 1) & (degrees["pp"] >= len(limits)) & (sum(caps) >= degrees["pp"])
    degrees = {name: column[possible] for name, column in degrees.items()}
    shards, broken = every_shard(s, done.pins, coarse=False)
    some = len(degrees["tp"]) > 0 and len(shards["tp"]) > 0
    table, rejected = join_shards(
        s, done.pins, degrees, shards, bound(done, shards) if bound and some else None
    )
    return table, {name: broken.get(name, 0) + rejected.get(name, 0) for name in {**broken, **rejected}}


def _pair_bound(done: UnlikeSearch, shards: Draft) -> PairBound | None:
    """Judge pairs of degrees and shards by compute alone; nothing to judge by without a score to beat."""
    if not math.isfinite(done.score):
        return None
    s, ones = done.problem, np.ones(len(shards["tp"]), dtype=np.int64)
    table = complete(s, done.pins, shards | {"pp": ones, "dp": ones})
    layers = [compute_seconds(problem, table)[0] for problem in done.problems]

    def scores(rows: Draft, chosen: Integers) -> Vector:
        M = np.maximum(
            1, s.job.global_batch_size // (rows["dp"] * shards["microbatch_size"][chosen][None, :])
        )
        return _scores(done, [layer[:, None, chosen] for layer in layers], rows, M)

    return PairBound(scores=scores, cutoff=done.cutoff, dismissed=done.dismissed)


def _scores(done: UnlikeSearch, layers: Sequence[Vector], degrees: Mapping[str, Any], M: Any) -> Vector:
    """Scores that no arrangement beats: work that flows to the fastest stages; arguments broadcast.

    (M − 1)·θ + Σ, θ the work over the most that P stages get through, Σ every layer where it is fastest.
    """
    ranks, pp = degrees["tp"] * degrees["cp"] * degrees["dp"], degrees["pp"]
    counts = done.counts.reshape(-1, *(1,) * (layers[0].ndim - 1))
    slower = slowness(layers)
    work = (counts * layers[0]).sum(axis=0)
    rate = most_rate(slower, [cluster.num_gpus // ranks for cluster in done.each], pp)
    total = (counts * np.min(layers, axis=0)).sum(axis=0)
    gpus = ranks * pp
    nodes = np.maximum(1.0, gpus / done.problem.cluster.hierarchy.gpus_per_node)
    stretch = step_stretch(nodes, done.problem.stack.level, default_constants())
    least_s = stretch * ((M - 1) * work / rate + total) * (1 - ROUNDING)
    return done.goal.score(gpus, least_s, _least_paid(done, ranks, pp))


def _least_paid(done: UnlikeSearch, ranks: Any, pp: Any) -> Vector | None:
    """Dollars an hour that no arrangement undercuts, by more than floats are rounded; None without prices."""
    paid = least_paid(done.rates, ranks, pp)
    return None if paid is None else paid * (1 - ROUNDING)


def _unfold(done: UnlikeSearch, table: LayoutTable) -> LayoutTable:
    """Every layout of some combinations whose pipeline axis is the slowest of those with members."""
    s, pins = done.problem, done.pins
    placed, _ = placements(s, pins, table)
    if len(placed) == 0:
        return placed
    outermost = np.array([_outermost(placed, row) for row in range(len(placed))], dtype=bool)
    layouts, _, broken = pipelines(s, pins, placed.take(outermost))
    done.dismissed.by_rule(broken)
    usual, broken = variants(s, pins, layouts)
    done.dismissed.by_rule(broken)
    layouts, broken = shardings(s, pins, LayoutTable.concat([usual, eased(s, pins, usual)[0]]))
    done.dismissed.by_rule(broken)
    return layouts


def _outermost(table: LayoutTable, row: int) -> bool:
    """Whether the ranks of each stage are side by side."""
    order = AXIS_ORDERS[int(table.axis_order[row])]
    return next(axis for axis in order if getattr(table, axis)[row] > 1) == "pp"


def _look(done: UnlikeSearch, table: LayoutTable) -> None:
    """Price layouts on every kind, and arrange those that could win, best bound first."""
    if len(table) == 0:
        return
    s = done.problem
    priced = price_unlike(s.case, done.each, table)
    rest, work, slower = _parts(done, priced)
    caps = [cluster.num_gpus // table.stage_ranks for cluster in done.each]
    M = priced[0].costs.num_microbatches
    every = np.min([item.costs.every_s for item in priced], axis=0)
    slowest = work / most_rate(slower, caps, table.pp) + every
    gpus, paid = table.num_gpus, _least_paid(done, table.stage_ranks, table.pp)
    scores = done.goal.score(gpus, ((M - 1) * slowest + rest) * (1 - ROUNDING), paid)
    for part in done.dismissed.in_turn(
        "stage-bound", scores, lambda: done.cutoff, first=FIRST_SLICE, growth=4
    ):
        bounds = np.full(len(part), np.inf)
        for same in _equal_stages(table, part):
            rows = part[same]
            least_paid_here = None if paid is None else paid[rows]
            bounds_s = arranged_bounds(
                done.problems,
                [item.take(rows) for item in priced],
                done.counts,
                rest=rest[rows],
                least=slowest[rows],
                cutoff_s=done.goal.cutoff_s(gpus[rows], done.cutoff, least_paid_here),
            )
            bounds[same] = done.goal.score(gpus[rows], bounds_s, least_paid_here)
        for bound, place in sorted(zip(bounds, range(len(part)), strict=True)):
            row = int(part[place])
            if bound >= done.cutoff:
                done.dismissed.by_bound("stage-bound", np.array([bound]))
                continue
            one_row = slice(row, row + 1)
            _arrange(done, [item.take(one_row) for item in priced], float(rest[row]), float(slowest[row]))


def _equal_stages(table: LayoutTable, rows: Integers) -> Iterator[Integers]:
    """Places of rows that have as many stages of as many GPUs, together."""
    shapes = np.stack([table.pp[rows], table.stage_ranks[rows]], axis=1)
    _, of = np.unique(shapes, axis=0, return_inverse=True)
    for shape in range(int(of.max()) + 1):
        yield np.flatnonzero(of.reshape(-1) == shape)


def _parts(done: UnlikeSearch, priced: Sequence[Priced]) -> tuple[Vector, Vector, list[Vector]]:
    """Of each layout: the least sum over stages, tail and constant; its work on the first kind; ρ."""
    costs = [item.costs for item in priced]
    slower = slowness([cost.layer_s for cost in costs])
    counts, pp = done.counts, priced[0].table.pp
    outer_s = [
        np.min(
            [getattr(cost_columns, name) / rho for cost_columns, rho in zip(costs, slower, strict=True)],
            axis=0,
        )
        for name in ("first_s", "last_s")
    ]
    work = counts @ costs[0].layer_s + sum(outer_s)
    total = counts @ np.min([cost.layer_s for cost in costs], axis=0)
    for name, times in (("first_s", 1), ("last_s", 1), ("every_s", pp)):
        total = total + times * np.min([getattr(cost, name) for cost in costs], axis=0)
    forms = np.einsum("k,jkn->jn", counts, np.min([cost.tail_layer_s for cost in costs], axis=0))
    for name in ("tail_first_s", "tail_last_s"):
        forms = forms + np.min([getattr(cost, name) for cost in costs], axis=0)
    return total + (forms / pp).max(axis=0) + costs[0].constant_s, work, slower


def _arrange(done: UnlikeSearch, priced: Sequence[Priced], rest: float, least: float) -> None:
    """Split the stages of one layout in every arrangement that could win, best bound first."""
    s, layout = done.problem, priced[0].table.layout(0)
    G = layout.num_gpus
    caps = tuple(cluster.num_gpus // layout.stage_ranks for cluster in done.each)
    budgets = [problem.memory_budget_bytes for problem in done.problems]
    plain = unlike_costs(s.case.workload, priced, layout, budgets, (0,) * layout.pp)
    costs = replace(plain, kinds=tuple(decidable(kind, layout) for kind in plain.kinds))
    recomputes = recomputes_of(s.engine)
    tables = kind_tables(costs.kinds, "per-rank", spare_bytes=1.0)
    kinds, ends = arrangements(layout.pp, caps)
    paid = arranged_paid(done.rates, layout.stage_ranks, kinds, ends, done.gpus_of_nodes)
    cutoff_s = float(np.max(done.goal.cutoff_s(G, done.cutoff, paid), initial=-math.inf))
    bounds_s = arrangement_bounds(costs, tables, kinds, ends, rest=rest, least=least, cutoff_s=cutoff_s)
    bounds = done.goal.score(G, bounds_s, paid)
    every = functools.lru_cache(lambda spare: kind_tables(costs.kinds, recomputes, spare_bytes=spare))
    for item in np.argsort(bounds, kind="stable"):
        bound, dollars = float(bounds[item]), None if paid is None else float(paid[item])
        if bound >= done.cutoff:
            done.dismissed.by_bound("split-bound", np.array([bound]))
            return
        if done.solved >= MOST_SPLITS:
            done.bound = min(done.bound, bound)
            return
        done.solved += 1
        runs = zip(kinds[item], itertools.pairwise(ends[item]), strict=True)
        chosen = replace(
            costs, kind_of_stage=tuple(int(kind) for kind, (a, b) in runs for _ in range(int(b - a)))
        )
        cutoff_s = float(done.goal.cutoff_s(G, done.cutoff, dollars))
        unlike_split = split_unlike(chosen, every(1.0), lambda: every(0.0), cutoff_s)
        done.bound = min(done.bound, float(done.goal.score(G, unlike_split.bound_s, dollars)))
        if unlike_split.split is not None:
            done.score = float(done.goal.score(G, unlike_split.step_s, dollars))
            done.best = UnlikeChoice(
                layout=named(layout, unlike_split.split),
                kind_of_stage=chosen.kind_of_stage,
                costs=chosen,
                split=unlike_split.split,
                step_time_s=unlike_split.step_s,
                paid=dollars,
            )
