"""One layout on its way to a decision: its costs, what is known of its splits, and how to ask the solver.

Whole-layer recomputation is decided per rank only under the policy ``full``; a split of it that recomputes
nothing *is* the policy ``none`` and is reported as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodel.estimate import Estimate
from costmodel.layout import AXIS_FIELDS, ParallelLayout, num_axes
from costmodel.models.spec import layer_order, layer_runs
from costmodel.parallel.axes import PARTS
from costmodel.pipeline.stage_costs import StageCosts, StageSplit, memory_of_stages
from costmodel.pipeline.stages import layers_of_chunks, ranks_of_chunks
from costmodel.training.estimate import estimate
from costmodel.training.stages import stage_costs_of
from planner.bounds.funnel import ROUNDING
from planner.bounds.priced import Priced
from planner.engines.contracts import recomputes_of
from planner.plan import LAYERS_OF_STAGE, OPTIMISED, RECOMPUTE_OF_STAGE, Problem, Recomputes
from planner.stages.dynamic_program import StageBound
from planner.stages.integer_program import StageSolution, solve_stages
from planner.stages.one_count import bound_any, bound_expressible
from topology.base.errors import InputError

SHAPE = tuple(axis for axis in AXIS_FIELDS if axis in PARTS and axis != "dp")
"""Degrees by which plans are told apart: the axes after which a part of the step is named; dp is the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout with its costs and what the dynamic program knows of its splits.

    `deciding` are the costs by which it is split: the same, unless `every_layer` is recomputed anyway.
    """

    layout: ParallelLayout
    costs: StageCosts
    deciding: StageCosts
    every_layer: bool
    known: StageBound
    recomputes: Recomputes = "per-rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A layout with the split it would run."""

    layout: ParallelLayout
    costs: StageCosts
    split: StageSplit
    step_time_s: float
    peak_memory_bytes: float


def shape_of(layout: ParallelLayout) -> tuple[int, ...]:
    """Degrees of `SHAPE` of a layout."""
    return tuple(getattr(layout, axis) for axis in SHAPE)


def candidate(problem: Problem, priced: Priced, row: int) -> Candidate:
    """Read one row of priced layouts and bound its splits."""
    return expressible(unsplit(problem, priced, row))


def unsplit(problem: Problem, priced: Priced, row: int) -> Candidate:
    """Read one row of priced layouts and bound all splits of it, those that no engine can be told too."""
    layout = priced.table.layout(row)
    item = priced.take(slice(row, row + 1))
    runs = [run.count for run in layer_runs(problem.model)]
    order = layer_order(problem.model)
    costs = stage_costs_of(item, layout, problem.job, runs, problem.memory_budget_bytes, order)
    every_layer = layout.recompute == "full" and problem.recomputed_layers == "all"
    deciding = decidable(costs, layout, every_layer=every_layer)
    return Candidate(
        layout=layout,
        costs=costs if every_layer else deciding,
        deciding=deciding,
        every_layer=every_layer,
        known=bound_any(deciding, ranks_of_chunks(layout)),
        recomputes=recomputes_of(problem.engine),
    )


def expressible(any_split: Candidate) -> Candidate:
    """A layout of `unsplit` with the bound and the proposal of the splits that its engine can be told."""
    x = any_split
    known = bound_expressible(x.deciding, ranks_of_chunks(x.layout), x.recomputes)
    if x.every_layer and known.split is not None:
        known = replace(known, split=recomputed_whole(known.split))
    return replace(x, known=known)


def require_searchable(problem: Problem, pins: Mapping[str, Any]) -> None:
    """Refuse layers of stages and numbers of recomputed layers, which only one given layout can have."""
    for name in (LAYERS_OF_STAGE, RECOMPUTE_OF_STAGE):
        if pins.get(name) not in (None, OPTIMISED):
            raise InputError(
                what=f"a search cannot keep to layout.{name}",
                cause="it decides the layers of the stages of every layout itself",
                fix=f"leave layout.{name} out, or price the one layout with plan estimate",
            )
    if isinstance(problem.recomputed_layers, int):
        raise InputError(
            what="a search cannot keep to a number of recomputed layers",
            cause=f"recompute=full:{problem.recomputed_layers} counts layers of the stages of one layout",
            fix="pin full for every layer, full:auto for as many as memory asks for, or use plan estimate",
        )


def decidable(costs: StageCosts, layout: ParallelLayout, *, every_layer: bool = False) -> StageCosts:
    """Costs as the solver may use them: only the policy ``full`` recomputes layers to free memory.

    Where every layer is recomputed, that is no choice: its seconds and what it keeps are those of the layer.
    """
    if layout.recompute != "full":
        return replace(costs, saved_bytes_recomputed=costs.saved_bytes)
    if not every_layer:
        return costs
    nothing = (0.0,) * len(costs.runs)
    fixed = zip(costs.fixed_activation_bytes, costs.recompute_working_bytes, strict=True)
    return replace(
        costs,
        layer_s=tuple(a + b for a, b in zip(costs.layer_s, costs.recompute_s, strict=True)),
        recompute_s=nothing,
        saved_bytes=costs.saved_bytes_recomputed,
        fixed_activation_bytes=tuple(a + b for a, b in fixed),
        recompute_working_bytes=(0.0,) * costs.num_ranks,
    )


def recomputed_whole(split: StageSplit, most: int | None = None) -> StageSplit:
    """The same layers on every rank, all of them recomputed, or at most so many of each rank."""
    held = (sum(row) for row in split.layers_of_stage)
    values = tuple(count if most is None else min(count, most) for count in held)
    return replace(split, recompute_of_stage=values)


def seed_choice(result: Candidate) -> Choice | None:
    """The split the dynamic program proposes, if it fits."""
    return (
        None
        if result.known.split is None
        else choice(result.layout, result.costs, result.known.split, result.known.seed_s)
    )


def choice(layout: ParallelLayout, costs: StageCosts, split: StageSplit, step_time_s: float) -> Choice:
    """A split as it would be run: recomputing nothing anywhere is the policy ``none``."""
    peak = float(memory_of_stages(costs, split).max())
    return Choice(
        layout=named(layout, split), costs=costs, split=split, step_time_s=step_time_s, peak_memory_bytes=peak
    )


def named(layout: ParallelLayout, split: StageSplit) -> ParallelLayout:
    """The layout under the name of what its split does: ``full`` that recomputes nothing is ``none``."""
    nothing = layout.recompute == "full" and not any(split.recompute_of_stage)
    return replace(layout, recompute="none") if nothing else layout


def safety(result: Choice) -> tuple[int, float]:
    """What decides between plans of equal score, less is safer: axes that are split, then peak memory."""
    return num_axes(result.layout), result.peak_memory_bytes


def settled_by_bound(result: Candidate) -> StageSolution | None:
    """What the dynamic program has decided itself: its proposal takes no longer than its bound."""
    known = result.known
    if known.split is None or known.bound_s < known.seed_s * (1 - ROUNDING):
        return None
    return StageSolution(
        status="proven", split=known.split, step_time_s=known.seed_s, bound_s=min(known.bound_s, known.seed_s)
    )


def decide(result: Candidate, cutoff_s: float) -> StageSolution:
    """Let CP-SAT find the best split below a cutoff, or prove there is none."""
    solution = solve_stages(
        result.deciding,
        ranks_of_chunks(result.layout),
        cutoff_s=cutoff_s,
        seed=result.known.split,
        recomputes=result.recomputes,
    )
    if result.every_layer and solution.split is not None:
        return replace(solution, split=recomputed_whole(solution.split))
    return solution


def layers_of_stage(layers: Choice) -> tuple[int, ...]:
    """Layers of every virtual stage in model order."""
    per_rank = tuple(sum(row) for row in layers.split.layers_of_stage)
    return layers_of_chunks(ranks_of_chunks(layers.layout), per_rank)


def estimate_of(problem: Problem, result: Choice, *, paid_gpus: int | None = None) -> Estimate:
    """The full estimate of a choice; idle GPUs are paid for unless said otherwise."""
    s = problem
    return estimate(s.case, result.layout, result.split, paid_gpus=paid_gpus)
