"""A plan held against itself: numbers in range, counts that fit together, parts that sum to their totals.

What a file says is a claim until then. Nothing is estimated here and no solver is imported, so that a
training job can check the plan it was given; `planner.search.verified` also asks rules and cost model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import groupby

from costmodel.estimate import Estimate, TimeBreakdown
from costmodel.layout import DEFAULT_AXIS_ORDER, DEGREES, ParallelLayout
from costmodel.memory.stage import MemoryBreakdown
from costmodel.pipeline.schedules import is_plain
from costmodel.pipeline.stages import layers_of_chunks, ranks_of_chunks
from planner.plan import Alternative, Plan
from topology.base.errors import InputError
from topology.pools.kinds import is_part, kinds_of

EQUAL = 1e-9
"""Relative difference up to which two numbers of a plan are the same: they went through a text file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One thing a plan says: in its words, and in ours; `is_new` is what its version did not say yet."""

    name: str
    holds: bool
    claimed: str
    found: str
    is_new: bool = False


def sound(plan: Plan, where: str) -> Plan:
    """The plan itself; one whose parts do not fit together is an InputError."""
    wrong = [claim for claim in structure_claims(plan) if not claim.holds]
    if wrong:
        raise unsound(wrong, where)
    return plan


def unsound(wrong: list[Claim], where: str) -> InputError:
    """The error of a plan that no command of ours wrote: the first claim in full, the others by name."""
    first, *others = wrong
    more = f" (and {len(others)} more: {', '.join(claim.name for claim in others)})" if others else ""
    return InputError(
        what=f"{where} does not fit together: {first.name}{more}",
        cause=f"it says {first.claimed}, it must be {first.found}",
        fix="undo what was changed in it, or write it again with `plan --json`",
    )


def structure_claims(plan: Plan) -> tuple[Claim, ...]:
    """Verdicts on what can be judged without the cost model; counts are looked at only where numbers hold."""
    numbers = tuple(_numbers(plan))
    if not all(claim.holds for claim in numbers):
        return numbers
    return (*numbers, *_counts(plan), *_parts(plan.estimate, plan.layout.pp), *_alternatives(plan))


def _numbers(plan: Plan) -> Iterator[Claim]:
    """Numbers that nothing can be computed from unless they are in their range."""
    request, x, estimate = plan.request, plan.layout, plan.estimate
    yield from _degrees(x, "")
    yield same("GPUs", x.num_gpus + plan.idle_gpus, request.cluster.num_gpus)
    yield within("idle GPUs", plan.idle_gpus, 0, math.inf)
    yield within("memory headroom", request.memory_headroom or 0.0, 0.0, 1.0 - EQUAL)
    yield within("level of the anchor", request.anchor.level if request.anchor else 1.0, EQUAL, math.inf)
    yield within("step time", estimate.step_time_s, EQUAL**2, math.inf)
    yield within("peak memory", estimate.peak_memory_bytes, 0.0, math.inf)
    yield within("seconds of the search", plan.search_time_s, 0.0, math.inf)
    yield within("bound", plan.optimality.bound_s, 0.0, math.inf)


def _degrees(x: ParallelLayout, of: str) -> Iterator[Claim]:
    """Degrees of a layout, `of` a plan or another."""
    degrees = [getattr(x, name) for name in DEGREES]
    yield within(f"degrees{of}", min(*degrees, x.effective_shard_degree), 1, math.inf)
    yield same(f"axes{of}", tuple(sorted(x.axis_order)), tuple(sorted(DEFAULT_AXIS_ORDER)))


def within(name: str, claimed: float, least: float, most: float) -> Claim:
    """Whether a number lies between two."""
    words = f"from {least:g}" + ("" if math.isinf(most) else f" to {most:g}")
    return Claim(name=name, holds=least <= claimed <= most, claimed=f"{claimed:g}", found=words)


def same(name: str, claimed: object, derived: object) -> Claim:
    """Whether two things are equal."""
    return Claim(name=name, holds=claimed == derived, claimed=str(claimed), found=str(derived))


def close(first: float, other: float) -> bool:
    """Whether two numbers are equal but for what a text file loses."""
    return math.isclose(first, other, rel_tol=EQUAL, abs_tol=EQUAL**2)


def _counts(plan: Plan) -> Iterator[Claim]:
    """One count for each stage and chunk, one GPU of the cluster for each rank."""
    x, mesh = plan.layout, plan.mesh
    layers, is_held = plan.request.model.num_layers, plan.optimality.status == "given"
    yield from _stages(x, plan.layers_of_stage, plan.recompute_of_stage, layers, "", is_held=is_held)
    gpus = set(mesh.gpu_of_rank)
    yield same("axes of the mesh", mesh.axes, tuple((axis, getattr(x, axis)) for axis in x.axis_order))
    yield same("ranks", len(mesh.gpu_of_rank), x.num_gpus)
    yield same("ranks on distinct GPUs", len(gpus), x.num_gpus)
    outside = sum(not 0 <= gpu < plan.request.cluster.num_gpus for gpu in gpus)
    yield same("ranks on GPUs outside the cluster", outside, 0)
    if plan.pool is not None:
        used = is_part(plan.request.cluster, plan.pool.offered)
        yield same("used nodes are some kinds of the pool", used, derived=True)
    if plan.kind_of_stage:
        yield from _kinds(x, plan.kind_of_stage, len(kinds_of(plan.request.cluster)), "")


def _kinds(x: ParallelLayout, kind_of_stage: tuple[int, ...], kinds: int, of: str) -> Iterator[Claim]:
    """Stages on unlike kinds of node: each has one, every kind has some, side by side."""
    yield same(f"stages with a kind of node{of}", len(kind_of_stage), x.pp)
    yield same(f"kinds of node of the stages{of}", tuple(sorted(set(kind_of_stage))), tuple(range(kinds)))
    runs = [kind for kind, _ in groupby(kind_of_stage)]
    yield same(f"stages of a kind follow each other{of}", len(runs), len(set(runs)))
    yield same(f"stages of unlike kinds are one chunk of 1f1b, side by side{of}", is_plain(x), derived=True)


def _places(plan: Plan, other: Alternative, of: str) -> tuple[Claim, ...]:
    """Whether the kinds of node of another plan, and those of its stages, are there."""
    offered = len(kinds_of(plan.pool.offered)) if plan.pool is not None else 0
    there = tuple(sorted({place for place in other.kinds if 0 <= place < offered}))
    claims = (same(f"kinds of the pool{of}", other.kinds, there),)
    if not other.kind_of_stage or not claims[0].holds:
        return claims
    count = len(other.kinds) or len(kinds_of(plan.request.cluster))
    return (*claims, *_kinds(other.layout, other.kind_of_stage, count, of))


def _stages(
    x: ParallelLayout,
    layers: tuple[int, ...],
    values: tuple[int, ...],
    num_layers: int,
    of: str,
    *,
    is_held: bool = False,
) -> Iterator[Claim]:
    """Layers and recomputed layers of stages; nothing is made of a number of stages that is not theirs.

    Stages that were given may hold any layers (`is_held`); a search makes chunks of a rank equal.
    """
    stages = same(f"stages{of}", len(layers), x.pp * x.virtual_stages)
    ranks = same(f"pipeline ranks that recompute{of}", len(values), x.pp)
    yield from (stages, ranks, same(f"layers{of}", sum(layers), num_layers))
    if not (stages.holds and ranks.holds):
        return
    owners = ranks_of_chunks(x)
    yield same(f"chunks of the schedule{of}", len(owners), len(layers))
    if len(owners) != len(layers):
        return
    held = [sum(n for n, owner in zip(layers, owners, strict=True) if owner == rank) for rank in range(x.pp)]
    yield same(f"stages without a layer{of}", min(held) < 1 or min(layers) < 0, derived=False)
    if not is_held:
        yield same(f"layers of each stage{of}", layers, layers_of_chunks(owners, tuple(held)))
    most = held if x.recompute == "full" else [0] * x.pp
    there = all(0 <= r <= n for r, n in zip(values, most, strict=True))
    yield same(f"recomputed layers are there{of}", there, derived=True)


def _parts(estimate: Estimate, ranks: int) -> Iterator[Claim]:
    """Parts that are there and sum to their totals, bands around what they are of."""
    time, memory = estimate.time, estimate.memory_by_stage
    spent = [getattr(time, part.name) for part in fields(TimeBreakdown) if part.name != "hidden_s"]
    held = [getattr(stage, part.name) for stage in memory for part in fields(MemoryBreakdown)]
    yield within("least part of the step", min(*spent, 0.0, *time.hidden_s.values()), 0.0, math.inf)
    yield _sums("parts of the step", estimate.step_time_s, time.total_s)
    yield same("stages with a memory", len(memory), ranks)
    yield within("least part of the memory", min([0.0, *held]), 0.0, math.inf)
    fullest = max((stage.total_bytes for stage in memory), default=0.0)
    yield _sums("memory of the fullest stage", estimate.peak_memory_bytes, fullest)
    yield _band("band of the step", estimate.lower_s, estimate.step_time_s, estimate.upper_s)
    lower, upper = estimate.memory_lower_bytes, estimate.memory_upper_bytes
    yield _band("band of the peak", lower, estimate.peak_memory_bytes, upper)
    yield within("chance of OOM", estimate.out_of_memory_chance, 0.0, 1.0)
    counts = [count for evidence in estimate.evidence for count in (evidence.runs, evidence.elsewhere)]
    yield within("fewest runs of the evidence", min(counts, default=0), 0, math.inf)


def _sums(name: str, claimed: float, total: float) -> Claim:
    return Claim(name=name, holds=close(claimed, total), claimed=f"{claimed:g}", found=f"{total:g}")


def _band(name: str, lower: float, middle: float, upper: float) -> Claim:
    holds = 0 <= lower <= middle * (1 + EQUAL) and middle <= upper * (1 + EQUAL)
    return Claim(name=name, holds=holds, claimed=f"{lower:g} – {upper:g}", found=f"a band around {middle:g}")


def _alternatives(plan: Plan) -> Iterator[Claim]:
    """The same of every other plan."""
    request = plan.request
    kinds = kinds_of(plan.pool.offered) if plan.pool is not None else ()
    for number, other in enumerate(plan.alternatives, start=1):
        of, x = f" of alternative {number}", other.layout
        degrees = tuple(_degrees(x, of))
        yield from degrees
        if not all(claim.holds for claim in degrees):
            continue
        places = _places(plan, other, of)
        yield from places
        if not all(claim.holds for claim in places):
            continue
        room = sum(kinds[i].count * kinds[i].gpus_per_node for i in other.kinds) or request.cluster.num_gpus
        yield within(f"GPUs{of}", x.num_gpus, 1, room)
        yield from _stages(x, other.layers_of_stage, other.recompute_of_stage, request.model.num_layers, of)
        yield within(f"step time{of}", other.step_time_s, EQUAL**2, math.inf)
        yield _band(f"band of the step{of}", other.lower_s, other.step_time_s, other.upper_s)
        yield within(f"chance of OOM{of}", other.out_of_memory_chance or 0.0, 0.0, 1.0)
