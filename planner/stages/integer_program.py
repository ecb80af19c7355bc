"""How many layers each pipeline rank holds and how many it recomputes, decided by CP-SAT.

The model has integer counts per run of identical layers, never a boolean per layer: a pipeline of 64 ranks
has a few hundred variables. It minimises `costmodel.pipeline.stage_costs.step_time` itself, written as

    ``(M − β)·max_s t_s + β·Σ_s t_s + max_s u_s + constant``

Seconds become integers by rounding every coefficient *down* to a quantum of ``scale / 2³⁴`` where ``scale``
is the step time of all layers on one rank; so the optimum of the integers never exceeds the true one and is
an honest bound. It falls short of the true one by at most one quantum per term of the objective, under 1e-6
of the step for any model of fewer than ten thousand layers. Bytes are rounded *down* to whole bytes, so no
split that fits is left out of the bound. Should the best split be within (layers + 4) bytes of the capacity
and not fit, bytes are rounded up and the solver is asked again; the bound stays that of the first answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from costmodel.pipeline.stage_costs import StageCosts, StageSplit, fits_capacity, recompute_order, step_time
from costmodel.pipeline.stages import chunks_of_rank, counts_before, end_limit, shortage
from planner.plan import Recomputes
from planner.stages.cpsat import IntegerModel, SolverResult, Variable, solve

TIME_RESOLUTION = 2**34
"""Quanta in the step time of the whole model on one rank, or in its longest tail."""

ROUNDED_AWAY = 1e-6
"""Share of a step by which the optimum of the integers may fall short of the true one."""

WORK_LIMIT = 10.0
"""Deterministic seconds of one solve; reached only by pathological inputs, and then the plan says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSolution:
    """The best split of one layout; `split` is None when none fits (or none beats the cutoff).

    `bound_s` is a step time no split can beat (infinite when none fits or beats the cutoff). `by_clock` says
    that the clock stopped the solver.
    """

    status: Literal["proven", "best-found", "none"]
    split: StageSplit | None
    step_time_s: float
    bound_s: float
    by_clock: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rounding:
    """How bytes become whole: those that are needed, and those that there is room for."""

    need: Callable[[float], int]
    room: Callable[[float], int]


FAVOURABLE = _Rounding(need=math.floor, room=math.ceil)
"""Every split that fits is allowed, so that the optimum is a bound."""

CAUTIOUS = _Rounding(need=math.ceil, room=math.floor)
"""Every split that is allowed fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """Variables in words of the domain: `layers[s][k]`, `recomputed[s][k]`, `held[chunk][k]`."""

    layers: tuple[tuple[Variable, ...], ...]
    recomputed: tuple[tuple[Variable, ...], ...]
    held: tuple[tuple[Variable, ...], ...]


def solve_stages(
    costs: StageCosts,
    chunk_ranks: tuple[int, ...],
    *,
    cutoff_s: float = math.inf,
    seed: StageSplit | None = None,
    recomputes: Recomputes = "per-rank",
) -> StageSolution:
    """Find the fastest split that fits, or prove that none beats `cutoff_s`.

    Args:
        costs: what layers and ranks cost under this layout.
        chunk_ranks: pipeline rank of every chunk in model order
        (`costmodel.pipeline.stages.ranks_of_chunks`).
        cutoff_s: only splits faster than this are of interest.
        seed: a split to start from, kept when nothing beats it.
        recomputes: how many layers the engine can be told to recompute.
    """
    best = _solve(costs, chunk_ranks, cutoff_s, seed, FAVOURABLE, recomputes)
    if best.split is None or fits_capacity(costs, best.split):
        return best
    safe = _solve(costs, chunk_ranks, cutoff_s, seed, CAUTIOUS, recomputes)
    if safe.status == "proven" and safe.step_time_s > best.bound_s * (1 + ROUNDED_AWAY):
        safe = replace(safe, status="best-found")
    return replace(safe, bound_s=best.bound_s, by_clock=best.by_clock or safe.by_clock)


def _solve(
    costs: StageCosts,
    chunk_ranks: tuple[int, ...],
    cutoff_s: float,
    seed: StageSplit | None,
    rounding: _Rounding,
    recomputes: Recomputes,
) -> StageSolution:
    """Build the model with bytes rounded one way, solve and decode it."""
    model = IntegerModel()
    counts = _count_variables(model, costs, chunk_ranks)
    _require_expressible(model, costs, chunk_ranks, counts, recomputes)
    _limit_memory(model, costs, counts, rounding)
    quantum = _quantum(costs)
    _minimise_step(model, costs, counts, quantum, cutoff_s)
    if seed is not None:
        _hint(model, costs, counts, seed)
    answer = solve(model, work_limit=WORK_LIMIT)
    return _decode(costs, counts, answer, quantum, seed)


def _quantum(costs: StageCosts) -> float:
    """Seconds of one integer unit of time: the longest step or tail there can be takes `TIME_RESOLUTION`."""
    layers = sum(n * (t + r) for n, t, r in zip(costs.runs, costs.layer_s, costs.recompute_s, strict=True))
    tails = [
        sum(n * t for n, t in zip(costs.runs, form, strict=True)) + max(fixed)
        for form, fixed in zip(costs.tail_layer_s, costs.tail_fixed_s, strict=True)
    ]
    return max(costs.num_microbatches * (layers + sum(costs.fixed_s)), *tails, 1e-9) / TIME_RESOLUTION


def _count_variables(model: IntegerModel, costs: StageCosts, chunk_ranks: tuple[int, ...]) -> _Counts:
    """Counts per rank and run, consecutive in the model; recomputed layers in the fixed order."""
    ranks, K = costs.num_ranks, len(costs.runs)
    chunks_per_rank = len(chunk_ranks) // ranks
    layers = tuple(tuple(model.variable(0, n) for n in costs.runs) for _ in range(ranks))
    for k, n in enumerate(costs.runs):
        model.require({layers[s][k]: 1 for s in range(ranks)}, n, n)
    for row in layers:
        model.require(dict.fromkeys(row, 1), 1, None)
    ordered = chunks_per_rank > 1 or K > 1
    held = _require_order(model, costs, chunk_ranks, layers) if ordered else layers
    frees = _freed(costs)
    recomputed = tuple(
        tuple(model.variable(0, costs.runs[k] if frees[k] > 0 else 0) for k in range(K)) for _ in range(ranks)
    )
    for row, run_recomputed in zip(layers, recomputed, strict=True):
        _require_recompute_order(model, costs, row, run_recomputed)
    return _Counts(layers=layers, recomputed=recomputed, held=held)


def _require_expressible(
    model: IntegerModel,
    costs: StageCosts,
    chunk_ranks: tuple[int, ...],
    counts: _Counts,
    recomputes: Recomputes,
) -> None:
    """Recompute what an engine can be told: the first layers of every chunk, as many of each, or all layers.

    A chunk of h layers recomputes min(n, h): at most either, and as many as one of them. All layers are the
    same with n either 0 or more than any chunk has.
    """
    if recomputes == "per-rank":
        return
    most = sum(costs.runs)
    count = model.variable(0, most)
    if recomputes == "all":
        model.require({count: 1, model.boolean(): -most}, 0, 0)
    firsts = [model.variable(0, most) for _ in chunk_ranks]
    for first, held in zip(firsts, counts.held, strict=True):
        whole, of_chunk = model.boolean(), dict.fromkeys(held, -1)
        model.require({count: 1, first: -1}, 0, None)
        model.require({first: -1, **dict.fromkeys(held, 1)}, 0, None)
        model.require({first: 1, **of_chunk}, 0, None, only_if=(whole,))
        model.require({first: 1, count: -1}, 0, None, only_if=(~whole,))
    for rank, row in enumerate(counts.recomputed):
        mine = chunks_of_rank(chunk_ranks, rank)
        model.require({**dict.fromkeys(row, 1), **{firsts[chunk]: -1 for chunk in mine}}, 0, 0)


def _freed(costs: StageCosts) -> list[float]:
    """Bytes per microbatch in flight that recomputing one layer of each run frees."""
    return [a - b for a, b in zip(costs.saved_bytes, costs.saved_bytes_recomputed, strict=True)]


def _require_recompute_order(
    model: IntegerModel, costs: StageCosts, layers: Sequence[Variable], recomputed: Sequence[Variable]
) -> None:
    """Recompute at most what is there, and a later run only once the earlier runs are recomputed whole."""
    order = recompute_order(costs)
    for k in order:
        model.require({layers[k]: 1, recomputed[k]: -1}, 0, None)
    for earlier, later in itertools.pairwise(order):
        begun = model.boolean()
        model.require({recomputed[later]: 1, begun: -costs.runs[later]}, None, 0)
        model.require({layers[earlier]: 1, recomputed[earlier]: -1}, None, 0, only_if=(begun,))


def _require_order(
    model: IntegerModel, costs: StageCosts, chunk_ranks: tuple[int, ...], layers: Sequence[Sequence[Variable]]
) -> tuple[tuple[Variable, ...], ...]:
    """Chunks hold consecutive layers: a chunk may hold run k+1 only if no later chunk holds run k."""
    K = len(costs.runs)
    held = tuple(tuple(model.variable(0, n) for n in costs.runs) for _ in chunk_ranks)
    for rank, row in enumerate(layers):
        mine = chunks_of_rank(chunk_ranks, rank)
        for k in range(K):
            model.require({row[k]: -1, **{held[chunk][k]: 1 for chunk in mine}}, 0, 0)
    if len(chunk_ranks) > costs.num_ranks:
        _require_equal_chunks(model, costs, held)
    if costs.order and costs.order != tuple(enumerate(costs.runs)):
        _require_positions(model, costs, held)
        return held
    for k in range(K - 1):
        begun = [model.boolean() for _ in chunk_ranks]
        for chunk, variables in enumerate(held):
            for later in range(k + 1, K):
                model.require({variables[later]: 1, begun[chunk]: -costs.runs[later]}, None, 0)
            if chunk > 0:
                model.require({begun[chunk]: 1, begun[chunk - 1]: -1}, 0, None)
                model.require({variables[k]: 1, begun[chunk - 1]: costs.runs[k]}, None, costs.runs[k])
    return held


def _require_positions(model: IntegerModel, costs: StageCosts, held: Sequence[Sequence[Variable]]) -> None:
    """Chunks end where layers do when kinds alternate: of every kind they hold what lies between two ends."""
    before = counts_before(costs.order)
    earlier: list[Variable] = []
    for chunk, variables in enumerate(held):
        last = chunk == len(held) - 1
        chosen = [model.boolean() for _ in before]
        model.require(dict.fromkeys(chosen, 1), 1, 1)
        if last:
            model.require({chosen[-1]: 1}, 1, 1)
        for k, variable in enumerate(variables):
            terms = {variable: 1, **{end: -before[p][k] for p, end in enumerate(chosen) if before[p][k]}}
            start = {end: before[p][k] for p, end in enumerate(earlier) if before[p][k]}
            model.require({**terms, **start}, 0, 0)
        earlier = chosen


def _require_equal_chunks(model: IntegerModel, costs: StageCosts, held: Sequence[Sequence[Variable]]) -> None:
    """Chunks are equal but for the first and the last of the model, which may be shorter."""
    each, _ = shortage(sum(costs.runs), len(held))
    least = each - end_limit(sum(costs.runs), len(held))
    for chunk, variables in enumerate(held):
        inside = 0 < chunk < len(held) - 1
        model.require(dict.fromkeys(variables, 1), each if inside else least, each)


def _limit_memory(model: IntegerModel, costs: StageCosts, counts: _Counts, to: _Rounding) -> None:
    """Keep every rank within its capacity, bytes needed and bytes there rounded to whole ones."""
    frees = _freed(costs)
    for s in range(costs.num_ranks):
        terms: dict[Variable, int] = {}
        for k, n in enumerate(counts.layers[s]):
            terms[n] = to.need(costs.static_bytes[k] + costs.in_flight[s] * costs.saved_bytes[k])
            terms[counts.recomputed[s][k]] = -to.room(costs.in_flight[s] * max(frees[k], 0.0))
        any_recomputed = model.boolean()
        model.require({**dict.fromkeys(counts.recomputed[s], 1), any_recomputed: -sum(costs.runs)}, None, 0)
        terms[any_recomputed] = to.need(costs.recompute_working_bytes[s])
        model.require(terms, None, to.room(costs.capacity_bytes) - to.need(costs.fixed_bytes[s]))


def _minimise_step(
    model: IntegerModel, costs: StageCosts, counts: _Counts, quantum: float, cutoff_s: float
) -> None:
    """Set the objective: the slowest rank, the bubble, the longest tail; only values below the cutoff."""
    beta, M = costs.bubble_weight, costs.num_microbatches
    slowest, tail = model.variable(0, 4 * TIME_RESOLUTION), model.variable(0, 4 * TIME_RESOLUTION)
    objective = {slowest: 1, tail: 1}
    constant = 0
    for s in range(costs.num_ranks):
        weighted, fixed = _rank_time(costs, counts, s, (M - beta) / quantum)
        model.require({slowest: 1, **{v: -c for v, c in weighted.items()}}, fixed, None)
        bubble, fixed = _rank_time(costs, counts, s, beta / quantum)
        objective.update(bubble)
        constant += fixed
        for form, tail_fixed in zip(costs.tail_layer_s, costs.tail_fixed_s, strict=True):
            terms = {n: -math.floor(form[k] / quantum) for k, n in enumerate(counts.layers[s])}
            model.require({tail: 1, **terms}, math.floor(tail_fixed[s] / quantum), None)
    variable = model.variable(1, 1)
    objective[variable] = constant
    model.minimise(objective)
    if math.isfinite(cutoff_s):
        model.require(objective, None, math.floor((cutoff_s - costs.constant_s) / quantum))


def _rank_time(costs: StageCosts, counts: _Counts, s: int, weight: float) -> tuple[dict[Variable, int], int]:
    """Linear form of weight·t_s and its constant, coefficients rounded down."""
    terms = {n: math.floor(weight * costs.layer_s[k]) for k, n in enumerate(counts.layers[s])}
    terms |= {r: math.floor(weight * costs.recompute_s[k]) for k, r in enumerate(counts.recomputed[s])}
    return terms, math.floor(weight * costs.fixed_s[s])


def _hint(model: IntegerModel, costs: StageCosts, counts: _Counts, seed: StageSplit) -> None:
    """Start the solver from a known split."""
    from costmodel.pipeline.stage_costs import recomputed_layers

    recomputed = recomputed_layers(costs, seed)
    values: dict[Variable, int] = {}
    for s, row in enumerate(seed.layers_of_stage):
        for k, n in enumerate(row):
            values[counts.layers[s][k]] = n
            values[counts.recomputed[s][k]] = int(recomputed[s, k])
    model.hint(values)


def _decode(
    costs: StageCosts, counts: _Counts, answer: SolverResult, quantum: float, seed: StageSplit | None
) -> StageSolution:
    """Read the split back; a seed that is as fast is kept, so that ties do not depend on the solver."""
    if answer.status in ("infeasible", "unknown"):
        bound = math.inf if answer.status == "infeasible" else 0.0
        return StageSolution(
            status="none", split=None, step_time_s=math.inf, bound_s=bound, by_clock=answer.by_clock
        )
    split = StageSplit(
        layers_of_stage=tuple(_values(answer.values, row) for row in counts.layers),
        recompute_of_stage=tuple(sum(_values(answer.values, row)) for row in counts.recomputed),
    )
    found_s = step_time(costs, split)
    if seed is not None and step_time(costs, seed) <= found_s:
        split, found_s = seed, step_time(costs, seed)
    bound_s = min(answer.bound * quantum + costs.constant_s, found_s)
    status: Literal["proven", "best-found"] = "proven" if answer.status == "optimal" else "best-found"
    return StageSolution(
        status=status, split=split, step_time_s=found_s, bound_s=bound_s, by_clock=answer.by_clock
    )


def _values(values: Mapping[int, int] | Sequence[int], row: Sequence[Variable]) -> tuple[int, ...]:
    return tuple(int(values[variable]) for variable in row)
