"""A plan held against its own claims, and its bound derived once more by a slower, simpler path.

The search proves with seven bounds, an incumbent and an order. Here every layout of the space is unfolded and
priced, one inequality (`planner.bounds.ranks.step_lower_bound`) dismisses those that cannot beat the claim,
and the dynamic program, then CP-SAT, decide each of the rest. No bound of cores, placements, pipelines, ranks
or memory takes part, no incumbent and no coarse search, so a mistake in any of them shows as a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.spec import layer_runs
from costmodel.pipeline.stage_costs import StageSplit
from costmodel.pipeline.stages import ranks_of_chunks, runs_of_ranks
from costmodel.training.estimate import estimate
from planner.bounds.priced import price
from planner.bounds.ranks import plain_bounds
from planner.plan import Plan, PlanRequest
from planner.problem import Setting, setting_of
from planner.rules.check import check, parse_pins
from planner.search.candidates import candidate, decide
from planner.search.objective import Goal, goal_of
from planner.search.search import PROVEN_GAP
from planner.space.degrees import cores
from planner.space.unfold import eased, pipelines, placements, variants
from topology.base.units import format_bytes, format_seconds

Progress = Callable[[str], None]

CORES_AT_ONCE = 2_000
"""Cores unfolded at once, to bound memory: about forty thousand layouts."""

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
class Rederived:
    """What the slow path found: seconds that no layout can beat on as many GPUs, and how it knows.

    Attributes:
        bound_s: least step that any layout could reach; the claim itself where none can beat it.
        layouts: layouts unfolded and priced.
        dismissed: those of them that one inequality dismissed.
        split: those that the dynamic program decided.
        solved: those that CP-SAT decided.
        better: the first layout found that beats the claim, if any does.
    """

    bound_s: float
    layouts: int
    dismissed: int
    split: int
    solved: int
    better: ParallelLayout | None


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
    claims = [*_structure(plan, setting)]
    if not all(claim.holds for claim in claims):
        return Verification(claims=tuple(claims), rederived=None)
    claims += [_legal(plan, setting), *_estimate(plan, setting, cal), *_certificate(plan)]
    if not proof or plan.optimality.enumerated == 1:
        return Verification(claims=tuple(claims), rederived=None)
    found, proven = _proof(plan, setting, cal, progress)
    return Verification(claims=(*claims, *proven), rederived=found)


def split_of(plan: Plan) -> StageSplit:
    """The split of a plan as the cost model reads it: layers of each run on each pipeline rank."""
    runs = tuple(run.count for run in layer_runs(plan.request.model))
    rows = runs_of_ranks(ranks_of_chunks(plan.layout), plan.layers_of_stage, runs)
    return StageSplit(layers_of_stage=rows, recompute_of_stage=plan.recompute_of_stage)


def _structure(plan: Plan, setting: Setting) -> Iterator[Claim]:
    """Numbers that must fit together before anything can be computed from them."""
    x, layers = plan.layout, plan.layers_of_stage
    yield _same("stages", len(layers), x.pp * x.virtual_stages)
    yield _same("layers", sum(layers), setting.model.num_layers)
    yield _same("no stage has a negative number of layers", min(layers, default=0) >= 0, True)  # noqa: FBT003
    yield _same("pipeline ranks that recompute", len(plan.recompute_of_stage), x.pp)
    yield _same("GPUs", x.num_gpus + plan.idle_gpus, setting.cluster.num_gpus)
    yield _same("ranks on distinct GPUs", len(set(plan.mesh.gpu_of_rank)), x.num_gpus)


def _same(name: str, claimed: object, found: object) -> Claim:
    return Claim(name=name, holds=claimed == found, claimed=str(claimed), found=str(found))


def _legal(plan: Plan, s: Setting) -> Claim:
    """Whether the layout breaks a rule of its own stack."""
    broken = check(s.model, s.cluster, s.job, s.stack, plan.layout)
    found = "; ".join(f"{violation.rule}: {violation.message}" for violation in broken) or "legal"
    return Claim(name="rules", holds=not broken, claimed="legal", found=found)


def _estimate(plan: Plan, s: Setting, cal: Calibration) -> Iterator[Claim]:
    """Step time and peak memory, estimated anew for this layout and split."""
    now, then = estimate(s.model, s.cluster, s.job, s.stack, plan.layout, cal, split_of(plan)), plan.estimate
    yield _close("step time", then.step_time_s, now.step_time_s, format_seconds)
    yield _close("peak memory", then.peak_memory_bytes, now.peak_memory_bytes, format_bytes)
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


def _certificate(plan: Plan) -> Iterator[Claim]:
    """What the certificate says of itself: counts add up, the gap is one, the floors bear the bound."""
    c, step_s = plan.optimality, plan.estimate.step_time_s
    yield _same("layouts enumerated", c.enumerated, sum(c.pruned.values()) + c.solved)
    if c.bound_bytes is not None:
        return
    gap = max(0.0, 1 - c.bound_s / step_s)
    proven = c.status != "proven" or gap <= PROVEN_GAP
    yield Claim(
        name="gap",
        holds=proven and abs(gap - c.gap) <= PROVEN_GAP,
        claimed=f"{c.status}, {c.gap:.1e}",
        found=f"{gap:.1e}",
    )
    low = {name: floor for name, floor in c.floors_s.items() if floor < c.bound_s * (1 - PROVEN_GAP)}
    words = ", ".join(f"{name} {format_seconds(floor)}" for name, floor in low.items())
    bound = f"at least {format_seconds(c.bound_s)}"
    yield Claim(name="dismissed layouts", holds=not low, claimed=bound, found=words or bound)


def _proof(
    plan: Plan, setting: Setting, cal: Calibration, progress: Progress
) -> tuple[Rederived, tuple[Claim, ...]]:
    """The bound by the slow path; under ``memory`` also that no plan of the band does with less."""
    request, c = plan.request, plan.optimality
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


def rederive(
    setting: Setting,
    goal: Goal,
    request: PlanRequest,
    score: float,
    gpus: int,
    cal: Calibration,
    progress: Progress = lambda _: None,
) -> Rederived:
    """Unfold the whole space and find the least step that any layout could reach, if it is below a score.

    Args:
        setting: what layouts are judged against.
        goal: what "best" means.
        request: its pins are read.
        score: the claim: only layouts that could beat it are decided.
        gpus: GPUs that the bound is expressed in.
        cal: kernel and collective tables.
        progress: told how far it is.
    """
    pins = parse_pins(request.pins)
    every, _ = cores(setting, pins)
    cut, least, better = goal.shortened(score, PROVEN_GAP), score, None
    layouts = dismissed = split = solved = 0
    for start in range(0, len(every), CORES_AT_ONCE):
        progress(f"{start:,} of {len(every):,} combinations of degrees, {layouts:,} layouts")
        table = _unfold(setting, pins, every.take(np.arange(start, min(start + CORES_AT_ONCE, len(every)))))
        layouts += len(table)
        if len(table) == 0:
            continue
        priced = price(setting, table, cal)
        scores = goal.score(table.num_gpus, plain_bounds(setting, priced))
        for row in np.flatnonzero(scores < cut):
            found = candidate(setting, priced, int(row))
            G, split = found.layout.num_gpus, split + 1
            if float(goal.score(G, found.known.bound_s)) >= cut:
                continue
            solution, solved = decide(found, float(goal.cutoff_s(G, cut))), solved + 1
            least = min(least, float(goal.score(G, solution.bound_s)))
            if solution.split is not None and better is None:
                better = found.layout
        dismissed += int((scores >= cut).sum())
    bound_s = float(goal.cutoff_s(gpus, least))
    return Rederived(
        bound_s=bound_s, layouts=layouts, dismissed=dismissed, split=split, solved=solved, better=better
    )


def _unfold(setting: Setting, pins: dict[str, object], table: LayoutTable) -> LayoutTable:
    """Every legal layout of some cores."""
    placed, _ = placements(setting, pins, table)
    found, _, _ = pipelines(setting, pins, placed)
    usual, _ = variants(setting, pins, found)
    return LayoutTable.join([usual, eased(setting, pins, usual)[0]])
