"""The space that is searched: every layout, unfolded step by step.

A *combination* fixes what one microbatch costs a rank (degrees, microbatch, sequence parallelism). They are
enumerated whole, bounded, and only those that could still win are expanded step by step: *placements*
(order of the axes, context exchange), *pipelines* (schedule, virtual stages), *variants* (sharding of
state, recomputation).

What the space leaves out, and why nothing is lost:

* idle GPUs are allowed: any product of degrees up to the size of the cluster is in the space;
* a context-parallel rank keeps at least one attention tile of tokens, and a microbatch at most `MOST_TOKENS`;
* experts are cut by expert_tp = 1 or tp, the two groups that stacks build;
* GPipe is left out where 1F1B is offered: same bubble, never less memory;
* a policy that repeats a part of every layer is never faster than one that repeats none, so such *eased*
  variants are unfolded only of variants that could still win;
* tensor parallelism cuts whole key/value heads;
* virtual stages: up to `EVERY_VIRTUAL_STAGE` all, beyond it those that divide the layers of a rank evenly,
  the ends perhaps one short;
* state is sharded over all dp·cp ranks, or (ZeRO 2 and 3) within one unit of the fabric;
* orders of axes that differ only in axes of one member are one order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from costmodel.layout import AXIS_ORDERS, PLAIN_SCHEDULE, LayoutTable, Recompute, Schedule
from costmodel.parallel.axes import RANK_AXES
from costmodel.pipeline.schedules import RECORDS
from costmodel.training.data_parallel import SHARDS_GRADIENTS
from costmodel.training.rank_strides import axis_strides
from planner.problem import Setting
from planner.rules.check import legal
from planner.space.columns import Draft, Integers, coded, cross, cross_by, pinned
from planner.space.degrees import COMBINATION_FIELDS
from topology.fabric.hierarchy import members_per_unit

EVERY_VIRTUAL_STAGE = 8
PLACEMENT_FIELDS = COMBINATION_FIELDS | {"axis_order", "cp_kind"}
PIPELINE_FIELDS = PLACEMENT_FIELDS | {"schedule", "virtual_stages"}


def placements(
    setting: Setting, pins: Mapping[str, Any], combinations: LayoutTable
) -> tuple[LayoutTable, dict[str, int]]:
    """Every combination with every order of axes and every exchange of context, and what rules rejected."""
    columns = combinations.by_name()
    columns = cross_by(columns, columns["cp"], lambda cp: _context_exchanges(setting, pins, cp))
    columns = cross_by(columns, _active_axes(columns), lambda active: _orders(pins, active))
    found = LayoutTable(**columns)
    keep, rejected = legal(setting, found, only=PLACEMENT_FIELDS)
    return found.take(keep), rejected


def pipelines(
    setting: Setting, pins: Mapping[str, Any], placed: LayoutTable
) -> tuple[LayoutTable, Integers, dict[str, int]]:
    """Every placement with every schedule it can run: layouts, the placement of each, what rules rejected."""
    columns = placed.by_name()
    columns["placement"] = np.arange(len(placed))
    columns = cross_by(columns, columns["pp"], lambda pp: schedules(setting, pins, pp))
    placement = columns.pop("placement")
    found = LayoutTable(**columns)
    keep, rejected = legal(setting, found, only=PIPELINE_FIELDS)
    return found.take(keep), placement[keep], rejected


def variants(
    setting: Setting, pins: Mapping[str, Any], table: LayoutTable
) -> tuple[LayoutTable, dict[str, int]]:
    """Every legal variant of some pipelines, eased ones apart, and how many each rule rejected."""
    columns = table.by_name()
    columns = cross_by(columns, _replicas(setting, table), lambda key: _sharding(setting, pins, key))
    policies = pinned(pins, "recompute", coded("recompute", [_usual_policy(setting)]))
    columns = cross(columns, "recompute", policies)
    found = LayoutTable(**columns)
    keep, rejected = legal(setting, found)
    return found.take(keep), rejected


def eased(
    setting: Setting, pins: Mapping[str, Any], table: LayoutTable
) -> tuple[LayoutTable, dict[str, int]]:
    """Variants under the policies that repeat a part of every layer to keep less of it: never faster.

    Args:
        setting: what is asked.
        pins: fields that are given; no variant is eased where the policy is.
        table: variants.

    Returns:
        Each variant under each such policy, and how many each rule rejected.
    """
    offered = () if "recompute" in pins else setting.stack.supports.recomputes
    others = [policy for policy in offered if policy not in ("none", _usual_policy(setting))]
    if not others:
        return table.take(np.zeros(0, dtype=np.intp)), {}
    columns = table.by_name()
    found = LayoutTable(**cross(columns, "recompute", coded("recompute", others)))
    keep, rejected = legal(setting, found)
    return found.take(keep), rejected


def schedules(setting: Setting, pins: Mapping[str, Any], pp: int) -> Draft:
    """Schedules with their virtual stages that a pipeline of `pp` ranks can run."""
    if pp == 1:
        has = setting.stack.supports.schedules
        idle = PLAIN_SCHEDULE if PLAIN_SCHEDULE in has else has[0]
        pairs = [(pins.get("schedule", idle), pins.get("virtual_stages", 1))]
    else:
        offered = [pins["schedule"]] if "schedule" in pins else setting.stack.supports.schedules
        useful = [s for s in offered if RECORDS[s].outdone_by not in offered]
        pairs = [(s, v) for s in useful for v in _virtual_stages(setting, pins, s, pp)]
    return {
        "schedule": np.array(coded("schedule", [schedule for schedule, _ in pairs]), dtype=np.int64),
        "virtual_stages": np.array([stages for _, stages in pairs], dtype=np.int64),
    }


def _virtual_stages(setting: Setting, pins: Mapping[str, Any], schedule: Schedule, pp: int) -> list[int]:
    if "virtual_stages" in pins:
        return [pins["virtual_stages"]]
    chunks = RECORDS[schedule].chunks
    if chunks is not None:
        return [chunks]
    layers = setting.model.num_layers
    most = (layers + 2 * setting.stack.supports.empty_end_chunks) // pp
    return [v for v in range(2, most + 1) if v <= EVERY_VIRTUAL_STAGE or -layers % (pp * v) <= 2]


def _context_exchanges(setting: Setting, pins: Mapping[str, Any], cp: int) -> Draft:
    """Ways to exchange keys and values between context ranks; one stands for all where none is needed."""
    kinds = pinned(pins, "cp_kind", coded("cp_kind", setting.stack.supports.cp_kinds))
    return {"cp_kind": np.array(kinds if cp > 1 else kinds[:1], dtype=np.int64)}


def _usual_policy(setting: Setting) -> Recompute:
    """The policy that repeats no part of a layer, or some layers whole: ``full`` of no layer is ``none``."""
    offered = setting.stack.supports.recomputes
    return "full" if "full" in offered else "none" if "none" in offered else offered[0]


def _replicas(setting: Setting, table: LayoutTable) -> Integers:
    """Key of what shards state: distance of replicas, dp·cp, and if pp > 1."""
    spaced = axis_strides(table)["data"] * (setting.cluster.num_gpus + 1) + table.replicas
    return np.asarray(2 * spaced + (table.pp > 1), dtype=np.int64)


def _sharding(setting: Setting, pins: Mapping[str, Any], key: int) -> Draft:
    """ZeRO stages with the shard degrees that the replicas of a key of `_replicas` can have.

    A single replica has them too: what gathers its weights from a master copy keeps no second one. A degree
    that is given may be any.
    """
    (stride, ranks), pipelined = divmod(key // 2, setting.cluster.num_gpus + 1), key % 2
    offered = (
        setting.stack.supports.zero_stages_with_pipeline if pipelined else setting.stack.supports.zero_stages
    )
    stages = pinned(pins, "zero_stage", offered)
    inside = {degree for degree in _degrees_inside(setting, ranks, stride) if degree > 1}
    pairs = []
    for stage in stages:
        degrees = sorted({ranks} | (inside if stage >= SHARDS_GRADIENTS else set()))
        pairs += [(stage, degree) for degree in pinned(pins, "shard_degree", degrees)]
    return {
        "zero_stage": np.array([stage for stage, _ in pairs], dtype=np.int64),
        "shard_degree": np.array([degree for _, degree in pairs], dtype=np.int64),
    }


def _degrees_inside(setting: Setting, ranks: int, stride: int) -> set[int]:
    """Replicas that share a unit of the fabric, for every kind of unit; they are `stride` GPUs apart."""
    units = {level.unit_gpus for level in setting.cluster.hierarchy.levels}
    return {int(np.gcd(ranks, members_per_unit(ranks, stride, unit))) for unit in units}


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
