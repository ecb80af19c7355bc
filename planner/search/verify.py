"""A plan held against its own claims: structure, rules, estimate, certificate.

What a plan says is computed anew from its request, its layout and its split; `planner.search.rederive`
derives its bound. A claim that does not hold is named with what is said and what is found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from costmodel.kernels.tables import Calibration
from costmodel.layout import DEGREES, ParallelLayout
from costmodel.models.spec import layer_runs
from costmodel.pipeline.stage_costs import StageSplit
from costmodel.pipeline.stages import layers_of_chunks, ranks_of_chunks, runs_of_ranks
from costmodel.training.estimate import estimate
from costmodel.training.stages import stage_costs
from planner.plan import Plan
from planner.problem import Setting, setting_of
from planner.rules.check import check
from planner.search.objective import goal_of
from planner.search.placement import place
from planner.search.rederive import Progress, Rederived, rederive
from planner.search.search import PROVEN_GAP
from planner.search.simulate import simulated_step_s
from topology.base.decode import unstructure
from topology.base.units import format_bytes, format_seconds
from topology.fabric.mesh import mesh

EQUAL = 1e-9
"""Relative difference up to which two numbers of a plan are the same: they went through a text file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One thing a plan says: in its words, and in ours."""

    name: str
    holds: bool
    claimed: str
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Verdicts on the claims of a plan; `rederived` is None where the proof was not asked for."""

    claims: tuple[Claim, ...]
    rederived: Rederived | None

    @property
    def holds(self) -> bool:
        """Whether every claim does."""
        return all(claim.holds for claim in self.claims)


def verify(
    plan: Plan, cal: Calibration, *, proof: bool = True, progress: Progress = lambda _: None
) -> Verification:
    """Hold a plan against its claims: structure, rules, estimate, certificate.

    Args:
        plan: as written by the search or read from a file.
        cal: the tables it was planned with.
        proof: also derive the bound anew, which unfolds the whole space.
        progress: told in a few words how far the proof is.
    """
    setting = setting_of(plan.request)
    claims = [*_numbers(plan)]
    if all(claim.holds for claim in claims):
        claims += _structure(plan, setting)
    if not all(claim.holds for claim in claims):
        return Verification(claims=tuple(claims), rederived=None)
    claims.append(_legal(plan, setting))
    if not claims[-1].holds:
        return Verification(claims=tuple(claims), rederived=None)
    claims += [*_estimate(plan, setting, cal), *_certificate(plan)]
    if not proof:
        return Verification(claims=tuple(claims), rederived=None)
    found, proven = _proof(plan, setting, cal, progress)
    return Verification(claims=(*claims, *proven), rederived=found)


def split_of(plan: Plan) -> StageSplit:
    """The split of a plan as the cost model reads it: layers of each run on each pipeline rank."""
    runs = tuple(run.count for run in layer_runs(plan.request.model))
    rows = runs_of_ranks(ranks_of_chunks(plan.layout), plan.layers_of_stage, runs)
    return StageSplit(layers_of_stage=rows, recompute_of_stage=plan.recompute_of_stage)


def _numbers(plan: Plan) -> Iterator[Claim]:
    """Numbers that nothing can be computed from unless they are in their range."""
    request, x = plan.request, plan.layout
    yield _within("degrees", min(getattr(x, name) for name in DEGREES), 1, math.inf)
    yield _within("memory headroom", request.memory_headroom or 0.0, 0.0, 1.0 - EQUAL)
    yield _within("level of the anchor", request.anchor.level if request.anchor else 1.0, EQUAL, math.inf)
    yield _within("step time", plan.estimate.step_time_s, EQUAL**2, math.inf)
    yield _within("peak memory", plan.estimate.peak_memory_bytes, 1.0, math.inf)


def _within(name: str, claimed: float, least: float, most: float) -> Claim:
    words = f"from {least:g}" + ("" if math.isinf(most) else f" to {most:g}")
    return Claim(name=name, holds=least <= claimed <= most, claimed=f"{claimed:g}", found=words)


def _structure(plan: Plan, setting: Setting) -> Iterator[Claim]:
    """Numbers that must fit together before anything can be computed from them."""
    x, layers = plan.layout, plan.layers_of_stage
    owners, gpus = ranks_of_chunks(x), set(plan.mesh.gpu_of_rank)
    yield _same("stages", len(layers), len(owners))
    yield _same("layers", sum(layers), setting.model.num_layers)
    yield _same("pipeline ranks that recompute", len(plan.recompute_of_stage), x.pp)
    yield _same("GPUs", x.num_gpus + plan.idle_gpus, setting.cluster.num_gpus)
    yield _same("ranks on distinct GPUs", len(gpus), x.num_gpus)
    yield _same("ranks on GPUs of the cluster", len(gpus - set(range(setting.cluster.num_gpus))), 0)
    in_order = mesh([(axis, getattr(x, axis)) for axis in x.axis_order])
    yield _same("ranks in their places", plan.mesh in (in_order, place(setting, x)[0]), found=True)
    if len(layers) == len(owners) and len(plan.recompute_of_stage) == x.pp:
        held = [
            sum(n for n, owner in zip(layers, owners, strict=True) if owner == rank) for rank in range(x.pp)
        ]
        yield _same("layers of each stage", layers, layers_of_chunks(owners, tuple(held)))
        yield _same("ranks without a layer", min(held) < 1 or min(layers) < 0, found=False)
        most = held if x.recompute == "full" else [0] * x.pp
        again = all(0 <= r <= n for r, n in zip(plan.recompute_of_stage, most, strict=True))
        yield _same("recomputed layers are there", again, found=True)


def _same(name: str, claimed: object, found: object) -> Claim:
    return Claim(name=name, holds=claimed == found, claimed=str(claimed), found=str(found))


def _legal(plan: Plan, s: Setting) -> Claim:
    """Whether the layout breaks a rule of its own stack."""
    broken = check(s.model, s.cluster, s.job, s.stack, plan.layout)
    found = "; ".join(f"{violation.rule}: {violation.message}" for violation in broken) or "legal"
    return Claim(name="rules", holds=not broken, claimed="legal", found=found)


def _estimate(plan: Plan, s: Setting, cal: Calibration) -> Iterator[Claim]:
    """Step time and peak memory, estimated anew for this layout and split."""
    split, then = split_of(plan), plan.estimate
    rented = plan.layout.num_gpus if goal_of(plan.request).rents_what_it_uses else None
    now = estimate(s.model, s.cluster, s.job, s.stack, plan.layout, cal, split, paid_gpus=rented)
    yield _close("step time", then.step_time_s, now.step_time_s, format_seconds)
    yield _close("peak memory", then.peak_memory_bytes, now.peak_memory_bytes, format_bytes)
    differ = ", ".join(_differences(unstructure(then), unstructure(now)))
    yield Claim(
        name="rest of the estimate", holds=not differ, claimed="as estimated", found=differ or "as estimated"
    )
    costs = stage_costs(s.model, s.cluster, s.job, s.stack, plan.layout, cal)
    if plan.simulated_s is not None:
        played_s = simulated_step_s(costs, plan.layout, split)
        yield _close("step by event simulation", plan.simulated_s, played_s, format_seconds)
    room, budget = now.peak_memory_bytes, s.memory_budget_bytes
    within = "within the GPU's memory and headroom"
    fits = room <= budget * (1 + EQUAL)
    yield Claim(
        name="fits", holds=fits, claimed=within, found=f"{format_bytes(room)} of {format_bytes(budget)}"
    )


def _close(name: str, claimed: float, found: float, words: Callable[[float], str]) -> Claim:
    equal = abs(claimed - found) <= EQUAL * abs(found)
    texts = (words(claimed), words(found))
    if not equal and texts[0] == texts[1]:
        texts = (repr(claimed), repr(found))
    return Claim(name=name, holds=equal, claimed=texts[0], found=texts[1])


def _differences(then: Any, now: Any, where: str = "") -> Iterator[str]:
    """Where two documents differ by more than what a text file loses."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted({*then, *now}):
            yield from _differences(then.get(key), now.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for i, (one, other) in enumerate(zip(then, now, strict=True)):
            yield from _differences(one, other, f"{where}[{i}]")
    elif isinstance(then, float | int) and isinstance(now, float | int):
        if not math.isclose(then, now, rel_tol=EQUAL, abs_tol=EQUAL**2):
            yield where
    elif then != now:
        yield where


def _certificate(plan: Plan) -> Iterator[Claim]:
    """What the certificate says of itself: counts add up, the gap is one, the floors bear the bound."""
    c, step_s = plan.optimality, plan.estimate.step_time_s
    yield _same("layouts enumerated", c.enumerated, sum(c.pruned.values()) + c.solved)
    yield _same("floors are of bounds that dismissed", sorted(set(c.floors_s) - set(c.pruned)), [])
    of_memory = plan.request.objective == "memory" and c.enumerated > 1
    there = (c.bound_bytes is not None, c.within_s is not None)
    yield _same("bound of memory is there", there, (of_memory, of_memory))
    if c.bound_bytes is not None and c.within_s is not None:
        band = f"{format_seconds(c.bound_s)} – {format_seconds(c.within_s)}"
        inside = c.bound_s <= step_s * (1 + EQUAL) and step_s <= c.within_s * (1 + EQUAL)
        yield Claim(
            name="in the band of the fastest", holds=inside, claimed=format_seconds(step_s), found=band
        )
        yield _gap(plan, max(0.0, 1 - c.bound_bytes / plan.estimate.peak_memory_bytes))
        return
    yield _gap(plan, max(0.0, 1 - c.bound_s / step_s))
    low = {name: floor for name, floor in c.floors_s.items() if floor < c.bound_s * (1 - PROVEN_GAP)}
    words = ", ".join(f"{name} {format_seconds(floor)}" for name, floor in low.items())
    bound = f"at least {format_seconds(c.bound_s)}"
    yield Claim(name="dismissed layouts", holds=not low, claimed=bound, found=words or bound)


def _gap(plan: Plan, gap: float) -> Claim:
    """Whether the gap is the one between the plan and its bound, and none where the plan is called proven."""
    c = plan.optimality
    holds = abs(gap - c.gap) <= PROVEN_GAP and (c.status != "proven" or gap <= PROVEN_GAP)
    return Claim(name="gap", holds=holds, claimed=f"{c.status}, {c.gap:.1e}", found=f"{gap:.1e}")


def _proof(
    plan: Plan, setting: Setting, cal: Calibration, progress: Progress
) -> tuple[Rederived, tuple[Claim, ...]]:
    """The bound by the slow path; under ``memory`` also that no plan of the band does with less."""
    request, c = plan.request, plan.optimality
    if c.enumerated == 1:
        request = replace(request, pins=_pins_of(plan.layout, setting))
    goal, gpus = goal_of(request), plan.layout.num_gpus
    found = rederive(setting, goal, request, float(goal.score(gpus, c.bound_s)), gpus, cal, progress)
    holds = found.bound_s >= c.bound_s * (1 - PROVEN_GAP)
    words = format_seconds(found.bound_s) + (f" by {found.better}" if found.better and not holds else "")
    claims = [Claim(name="bound", holds=holds, claimed=format_seconds(c.bound_s), found=words)]
    if c.bound_bytes is not None and c.within_s is not None:
        share = c.bound_bytes / setting.cluster.gpu.memory_bytes
        tight = replace(setting, memory_headroom=1 - share)
        found = rederive(tight, goal, request, c.within_s, gpus, cal, progress)
        none = found.better is None and found.bound_s >= c.within_s * (1 - PROVEN_GAP)
        bound = f"no plan within {format_seconds(c.within_s)} in {format_bytes(c.bound_bytes)}"
        claims.append(
            Claim(name="bound of memory", holds=none, claimed=bound, found=str(found.better or bound))
        )
    return found, tuple(claims)


def _pins_of(layout: ParallelLayout, setting: Setting) -> dict[str, object]:
    """Every field of one given layout; recomputing no layer is ``full`` of none where there is that."""
    pins: dict[str, object] = {f.name: getattr(layout, f.name) for f in fields(layout)}
    if layout.shard_degree is None:
        del pins["shard_degree"]
    if layout.recompute == "none" and "full" in setting.stack.supports.recomputes:
        pins["recompute"] = "full"
    return pins
