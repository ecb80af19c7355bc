"""Rules of sharded state: which ZeRO stages a stack has, and over how many replicas it shards.

Legend: ``R`` replicas (dp·cp), ``N`` of them that share one copy of the state.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from costmodel.layout import PLAIN_SCHEDULE, LayoutTable, ParallelLayout
from costmodel.pipeline.schedules import column
from planner.law import Breach, Law, PlanLaw
from planner.plan import Problem
from planner.rules.rule import largest_divisor, not_offered
from topology.base.arrays import Mask
from topology.base.units import format_bytes

_SPLITS_BACKWARD = column(lambda schedule: schedule.splits_backward)


def _replicated_broken(s: Problem, t: LayoutTable) -> Mask | bool:
    if not s.stack.supports.replicates_alone:
        return False
    others = (t.tp > 1) | (t.pp > 1) | (t.cp > 1) | (t.ep > 1)
    return np.asarray((t.zero_stage == 0) & (t.replicas > 1) & others, dtype=bool)


def _replicated(s: Problem, x: ParallelLayout) -> Breach:
    ranks, sharding = x.replicas, [stage for stage in s.stack.supports.zero_stages if stage > 0]
    return Breach(
        message=f"zero_stage = 0 keeps {ranks} whole copies (dp·cp = {x.dp}·{x.cp}), which {s.stack.name} "
        f"combines with no other axis; tp·pp·ep = {x.tp}·{x.pp}·{x.ep}",
        have=0,
        need=min(sharding, default=0),
        unit="",
        hint=f"use zero_stage={min(sharding, default=0)}, or dp alone",
    )


def _zero_broken(s: Problem, t: LayoutTable) -> Mask:
    with_pipeline = np.isin(t.zero_stage, s.stack.supports.zero_stages_with_pipeline)
    return np.asarray(
        ~np.where(t.pp > 1, with_pipeline, np.isin(t.zero_stage, s.stack.supports.zero_stages)), dtype=bool
    )


def _zero(s: Problem, x: ParallelLayout) -> Breach:
    offered = s.stack.supports.zero_stages_with_pipeline if x.pp > 1 else s.stack.supports.zero_stages
    breach = not_offered(s, "zero_stage", x.zero_stage, offered)
    if x.pp == 1 or x.zero_stage not in s.stack.supports.zero_stages:
        return breach
    return Breach(
        message=f"{breach.message} when pp = {x.pp} > 1",
        have=0,
        need=1,
        unit="",
        hint=breach.hint,
    )


def _split_zero_broken(s: Problem, t: LayoutTable) -> Mask:
    split = (t.pp > 1) & _SPLITS_BACKWARD[t.schedule]
    return np.asarray(
        split & ~np.isin(t.zero_stage, s.stack.supports.zero_stages_with_split_backward), dtype=bool
    )


def _split_zero(s: Problem, x: ParallelLayout) -> Breach:
    offered = s.stack.supports.zero_stages_with_split_backward
    breach = not_offered(s, "zero_stage", x.zero_stage, offered)
    return Breach(
        message=f"{breach.message} with schedule {x.schedule}, "
        "whose weight gradients come after the backward",
        have=x.zero_stage,
        need=max(offered),
        unit="",
        hint=f"{breach.hint}, or schedule={PLAIN_SCHEDULE}",
    )


def _shard_broken(_: Problem, t: LayoutTable) -> Mask:
    ragged = t.replicas % np.maximum(t.shard_degree, 1) != 0
    return np.asarray((t.shard_degree < 1) | ragged, dtype=bool)


def _partly(t: LayoutTable) -> Mask:
    """Layouts whose state is sharded over a part of the replicas."""
    return np.asarray((t.zero_stage > 0) & (t.shard_degree < t.replicas), dtype=bool)


def _partial_broken(s: Problem, t: LayoutTable) -> Mask:
    return _partly(t) & ~np.isin(t.zero_stage, s.stack.supports.partial_zero_stages)


def _partial(s: Problem, x: ParallelLayout) -> Breach:
    stages = s.stack.supports.partial_zero_stages
    has = f"at ZeRO-{', '.join(map(str, stages))} only" if stages else "at no ZeRO stage"
    return Breach(
        message=f"shard_degree {x.effective_shard_degree} of {x.replicas} replicas at ZeRO-{x.zero_stage}: "
        f"{s.stack.name} shards over a part of them {has}",
        have=x.effective_shard_degree,
        need=x.replicas,
        unit="ranks",
        hint=f"leave shard_degree out to shard over all {x.replicas}",
    )


def _expert_copies_broken(s: Problem, t: LayoutTable) -> Mask | bool:
    if not s.model.is_moe:
        return False
    copies = t.replicas // np.maximum(t.shard_degree, 1)
    return np.asarray(_partly(t) & (t.expert_dp % np.maximum(copies, 1) != 0), dtype=bool)


def _expert_copies(_: Problem, x: ParallelLayout) -> Breach:
    copies = x.replicas // x.effective_shard_degree
    return Breach(
        message=f"{copies} copies of the sharded state (dp·cp/shard_degree = {x.replicas}/"
        f"{x.effective_shard_degree}) but {x.expert_dp} replicas of each expert, "
        f"{x.expert_dp} % {copies} = {x.expert_dp % copies}, must be 0",
        have=x.expert_dp % copies,
        need=0,
        unit="ranks",
        hint=f"use shard_degree={x.replicas // math.gcd(copies, x.expert_dp)}",
    )


def _shard(_: Problem, x: ParallelLayout) -> Breach:
    ranks, degree = x.replicas, x.effective_shard_degree
    best = largest_divisor(ranks, degree)
    remainder = ranks % degree if degree > 0 else ranks
    return Breach(
        message=f"(dp·cp) % shard_degree = ({x.dp}·{x.cp}) % {degree} = {remainder}, must be 0",
        have=remainder,
        need=0,
        unit="ranks",
        hint=f"use shard_degree={best}",
    )


def _compressed_broken(s: Problem, t: LayoutTable) -> Mask | bool:
    if s.job.compression is None:
        return False
    return np.asarray((t.zero_stage > 0) & (t.replicas > 1), dtype=bool)


def _compressed(s: Problem, x: ParallelLayout) -> Breach:
    return Breach(
        message=f"zero_stage = {x.zero_stage}, must be 0: gradients as "
        f"{s.job.gradient_compression} are summed by replicas that share no state",
        have=x.zero_stage,
        need=0,
        unit="",
        hint="use zero_stage=0, or leave job.gradient_compression out",
    )


def _buckets_broken(s: Problem, t: LayoutTable) -> Mask | bool:
    if s.job.bucket_bytes is None:
        return False
    return np.asarray((t.zero_stage > 1) & (t.replicas > 1), dtype=bool)


def _buckets(s: Problem, x: ParallelLayout) -> Breach:
    return Breach(
        message=f"zero_stage = {x.zero_stage}, must be 0 or 1: sharded gradients are reduced layer by layer, "
        f"not in buckets of {format_bytes(s.job.bucket_bytes or 0)}",
        have=x.zero_stage,
        need=1,
        unit="",
        hint="use zero_stage=0 or 1, or leave job.bucket_bytes out",
    )


def _apart_broken(s: Problem, t: LayoutTable) -> Mask | bool:
    if s.job.apart is None:
        return False
    return np.asarray((t.zero_stage > 0) | (t.replicas == 1), dtype=bool)


def _apart(s: Problem, x: ParallelLayout) -> Breach:
    return Breach(
        message=f"zero_stage = {x.zero_stage} and {x.replicas} replicas: workers run apart "
        f"({s.job.local_steps}) where several share no state",
        have=x.zero_stage,
        need=0,
        unit="",
        hint="use zero_stage=0 and dp > 1, or leave job.local_steps out",
    )


_rule = functools.partial(Law, lenient_at_one=False)

SHARDING_RULES: tuple[PlanLaw, ...] = (
    _rule(
        name="replication-alone",
        reads=("zero_stage", "dp", "cp", "tp", "pp", "ep"),
        broken=_replicated_broken,
        says=_replicated,
        ground="engine",
    ),
    _rule(
        name="zero-stage-offered",
        reads=("zero_stage", "pp"),
        broken=_zero_broken,
        says=_zero,
        ground="engine",
    ),
    _rule(
        name="split-backward-zero",
        reads=("zero_stage", "schedule", "pp"),
        broken=_split_zero_broken,
        says=_split_zero,
        ground="engine",
    ),
    _rule(
        name="compressed-gradients",
        reads=("zero_stage", "dp", "cp"),
        broken=_compressed_broken,
        says=_compressed,
        ground="engine",
    ),
    _rule(
        name="gradient-buckets",
        reads=("zero_stage", "dp", "cp"),
        broken=_buckets_broken,
        says=_buckets,
        ground="engine",
    ),
    _rule(
        name="workers-apart",
        reads=("zero_stage", "dp", "cp"),
        broken=_apart_broken,
        says=_apart,
        ground="unpriced",
    ),
    _rule(
        name="shard-degree",
        reads=("shard_degree", "dp", "cp"),
        broken=_shard_broken,
        says=_shard,
        ground="impossible",
    ),
    _rule(
        name="partial-sharding",
        reads=("shard_degree", "zero_stage", "dp", "cp"),
        broken=_partial_broken,
        says=_partial,
        ground="engine",
    ),
    _rule(
        name="shard-experts",
        reads=("shard_degree", "zero_stage", "dp", "cp", "tp", "ep", "expert_tp"),
        broken=_expert_copies_broken,
        says=_expert_copies,
        ground="engine",
    ),
)
