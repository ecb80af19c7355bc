"""The space that is searched: every layout, unfolded step by step.

A *combination* fixes what one microbatch costs a rank (degrees, microbatch, sequence parallelism). They are
enumerated whole, bounded, and only those that could still win are expanded step by step: *placements*
(order of the axes, context exchange), *pipelines* (schedule, virtual stages), *variants* (sharding of
state, recomputation).

What the space leaves out, and why nothing is lost:

* idle GPUs are allowed: any product of degrees up to the size of the cluster is in the space;
* GPipe is left out where 1F1B is offered: same bubble, never less memory;
* a policy that repeats a part of every layer is never faster than one that repeats none, so such *eased*
  variants are unfolded only of variants that could still win;
* tensor parallelism cuts whole key/value heads;
* virtual stages beyond `EVERY_VIRTUAL_STAGE` that no rule would admit are not written down;
* orders of axes that differ only in axes of one member are one order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from costmodel.layout import AXIS_ORDERS, PLAIN_SCHEDULE, LayoutTable, Recompute, Schedule, divisors
from costmodel.parallel.axes import RANK_AXES
from costmodel.pipeline.schedules import RECORDS
from planner.plan import Problem
from planner.rules.check import legal, rules_of
from planner.rules.stacks import chunks_are_even
from planner.space.columns import Draft, Integers, coded, cross, cross_by, pinned
from planner.space.degrees import COMBINATION_FIELDS

EVERY_VIRTUAL_STAGE = 8
"""Virtual stages up to which the rules see every number and count what they reject: beyond it a model of many
layers has hundreds that cannot be."""

PLACEMENT_FIELDS = COMBINATION_FIELDS | {"axis_order", "cp_kind"}
PIPELINE_FIELDS = PLACEMENT_FIELDS | {"schedule", "virtual_stages"}


def placements(
    problem: Problem, pins: Mapping[str, Any], combinations: LayoutTable
) -> tuple[LayoutTable, dict[str, int]]:
    """Every combination with every order of axes and every exchange of context, and what rules rejected."""
    columns = combinations.by_name()
    columns = cross_by(columns, columns["cp"], lambda cp: _context_exchanges(problem, pins, cp))
    columns = cross_by(columns, _active_axes(columns), lambda active: _orders(pins, active))
    layouts = LayoutTable(**columns)
    keep, rejected = legal(problem, layouts, only=PLACEMENT_FIELDS)
    return layouts.take(keep), rejected


def pipelines(
    problem: Problem, pins: Mapping[str, Any], placed: LayoutTable
) -> tuple[LayoutTable, Integers, dict[str, int]]:
    """Every placement with every schedule it can run: layouts, the placement of each, what rules rejected."""
    columns = placed.by_name()
    columns["placement"] = np.arange(len(placed))
    columns = cross_by(columns, columns["pp"], lambda pp: schedules(problem, pins, pp))
    placement = columns.pop("placement")
    layouts = LayoutTable(**columns)
    keep, rejected = legal(problem, layouts, only=PIPELINE_FIELDS)
    return layouts.take(keep), placement[keep], rejected


def variants(
    problem: Problem, pins: Mapping[str, Any], table: LayoutTable
) -> tuple[LayoutTable, dict[str, int]]:
    """Every legal variant of some pipelines, eased ones apart, and how many each rule rejected.

    State is sharded over all replicas, which takes the least memory; `shardings` unfolds the rest.
    """
    columns = table.by_name()
    pipelined = (table.pp > 1).astype(np.int64)
    columns = cross_by(columns, pipelined, lambda several: _zero_stages(problem, pins, several))
    columns["shard_degree"] = pins.get("shard_degree", columns["dp"] * columns["cp"]) + 0 * columns["dp"]
    policies = pinned(pins, "recompute", coded("recompute", [_usual_policy(problem)]))
    columns = cross(columns, "recompute", policies)
    layouts = LayoutTable(**columns)
    keep, rejected = legal(problem, layouts)
    if "recompute" in pins or not _refuses_whole_layers(problem, rejected):
        return layouts.take(keep), rejected
    columns = layouts.take(~keep).by_name()
    columns["recompute"] = coded("recompute", ["none"])[0] + 0 * columns["recompute"]
    plain = LayoutTable(**columns)
    holds, rejected = legal(problem, plain)
    return LayoutTable.concat([layouts.take(keep), plain.take(holds)]), rejected


def _refuses_whole_layers(problem: Problem, rejected: Mapping[str, int]) -> bool:
    """Whether a rule refused layouts that recompute some layers whole, which without any it may take.

    Such a layout does not stand for the one that recomputes none, which has a row of its own then.
    """
    if _usual_policy(problem) != "full" or "none" not in problem.stack.supports.recomputes:
        return False
    return any(rule.name in rejected for rule in rules_of(problem.engine) if "recompute" in rule.reads)


def eased(
    problem: Problem, pins: Mapping[str, Any], table: LayoutTable
) -> tuple[LayoutTable, dict[str, int]]:
    """Variants under the policies that repeat a part of every layer to keep less of it: never faster.

    Args:
        problem: what is asked.
        pins: fields that are given; no variant is eased where the policy is.
        table: variants.

    Returns:
        Each variant under each such policy, and how many each rule rejected.
    """
    offered = () if "recompute" in pins else problem.stack.supports.recomputes
    others = [policy for policy in offered if policy not in ("none", _usual_policy(problem))]
    if not others:
        return table.take(np.zeros(0, dtype=np.intp)), {}
    columns = table.by_name()
    layouts = LayoutTable(**cross(columns, "recompute", coded("recompute", others)))
    keep, rejected = legal(problem, layouts)
    return layouts.take(keep), rejected


def shardings(
    problem: Problem, pins: Mapping[str, Any], table: LayoutTable
) -> tuple[LayoutTable, dict[str, int]]:
    """Every variant with its state sharded over all replicas or any part of them, and what rules rejected."""
    if "shard_degree" in pins:
        return table, {}
    columns = table.by_name()
    partly = np.isin(table.zero_stage, problem.stack.supports.partial_zero_stages)
    columns = cross_by(columns, np.where(partly, table.replicas, -table.replicas), _shard_degrees)
    layouts = LayoutTable(**columns)
    keep, rejected = legal(problem, layouts)
    return layouts.take(keep), rejected


def _shard_degrees(replicas: int) -> Draft:
    """Shares of so many replicas that may hold the state of a rank; below zero all of them only."""
    return {"shard_degree": np.array(divisors(replicas) if replicas > 0 else [-replicas], dtype=np.int64)}


def schedules(problem: Problem, pins: Mapping[str, Any], pp: int) -> Draft:
    """Schedules with their virtual stages that a pipeline of `pp` ranks can run."""
    if pp == 1:
        has = problem.stack.supports.schedules
        idle = PLAIN_SCHEDULE if PLAIN_SCHEDULE in has else has[0]
        pairs = [(pins.get("schedule", idle), pins.get("virtual_stages", 1))]
    else:
        offered = [pins["schedule"]] if "schedule" in pins else problem.stack.supports.schedules
        useful = [s for s in offered if RECORDS[s].outdone_by not in offered]
        pairs = [(s, v) for s in useful for v in _virtual_stages(problem, pins, s, pp)]
    return {
        "schedule": np.array(coded("schedule", [schedule for schedule, _ in pairs]), dtype=np.int64),
        "virtual_stages": np.array([stages for _, stages in pairs], dtype=np.int64),
    }


def _virtual_stages(problem: Problem, pins: Mapping[str, Any], schedule: Schedule, pp: int) -> list[int]:
    if "virtual_stages" in pins:
        return [pins["virtual_stages"]]
    chunks = RECORDS[schedule].chunks
    if chunks is not None:
        return [chunks]
    layers, empty = problem.model.num_layers, problem.stack.supports.empty_end_chunks
    every = range(2, (layers + 2 * empty) // pp + 1)
    return [v for v in every if v <= EVERY_VIRTUAL_STAGE or chunks_are_even(layers, pp * v, empty_ends=empty)]


def _context_exchanges(problem: Problem, pins: Mapping[str, Any], cp: int) -> Draft:
    """Ways to exchange keys and values between context ranks; one stands for all where none is needed."""
    kinds = pinned(pins, "cp_kind", coded("cp_kind", problem.stack.supports.cp_kinds))
    return {"cp_kind": np.array(kinds if cp > 1 else kinds[:1], dtype=np.int64)}


def _usual_policy(problem: Problem) -> Recompute:
    """The policy that repeats no part of a layer, or some layers whole: ``full`` of no layer is ``none``."""
    offered = problem.stack.supports.recomputes
    return "full" if "full" in offered else "none" if "none" in offered else offered[0]


def _zero_stages(problem: Problem, pins: Mapping[str, Any], several: int) -> Draft:
    """ZeRO stages with one stage and with several; a single replica has them too.

    What gathers its weights from a master copy keeps no second one, however many replicas there are.
    """
    has = problem.stack.supports
    stages = has.zero_stages_with_pipeline if several else has.zero_stages
    return {"zero_stage": np.array(pinned(pins, "zero_stage", stages), dtype=np.int64)}


def _active_axes(table: Draft) -> Integers:
    """Which axes have more than one member, as bits in the order of `RANK_AXES`."""
    bits = [(table[axis] > 1).astype(np.int64) << position for position, axis in enumerate(RANK_AXES)]
    return np.asarray(sum(bits), dtype=np.int64)


def _orders(pins: Mapping[str, Any], active: int) -> Draft:
    """Orders that place the active axes differently: the first code of each."""
    if "axis_order" in pins:
        return {"axis_order": np.array(coded("axis_order", [pins["axis_order"]]), dtype=np.int64)}
    members = [axis for position, axis in enumerate(RANK_AXES) if active >> position & 1]
    first: dict[tuple[str, ...], int] = {}
    for code, order in enumerate(AXIS_ORDERS):
        first.setdefault(tuple(axis for axis in order if axis in members), code)
    return {"axis_order": np.array(sorted(first.values()), dtype=np.int64)}
