"""A plan held against its own claims: structure, rules, estimate, certificate.

What a plan says is computed anew from its request, its layout and its split; `planner.search.rederive`
derives its bound. A claim that does not hold is named with what is said and what is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

from costmodel.estimate import Estimate
from costmodel.kernels.tables import Calibration
from costmodel.layout import ParallelLayout
from costmodel.pipeline.simulate import simulated_step_s
from planner.bounds.objective import goal_of, goal_of_plan
from planner.campaign.finish import campaign_of
from planner.campaign.rental import paid_gpus_of
from planner.placement.nodes import place_on_nodes
from planner.plan import Plan, PlanRequest, Problem
from planner.pricing import clusters_of_kinds, estimate_split, split_of
from planner.rules.check import check
from planner.search.best_first import begin
from planner.search.origin import digest
from planner.search.pools.pool import part_request, plan_beside
from planner.search.pools.unlike import rederive_unlike
from planner.search.pools.unlike_plan import mesh_unlike
from planner.search.rederive import Progress, Rederived, rederive
from planner.stages.integer_program import ROUNDED_AWAY as PROVEN_GAP
from planner.structure import EQUAL, Claim, close, same, structure_claims, within
from topology.base.errors import InputError, shortened
from topology.base.units import format_bytes, format_chance, format_seconds
from topology.fabric.mesh import mesh
from topology.pools.kinds import kinds_of, nodes_in_words, parts_of_pool


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
    claims = [*structure_claims(plan)]
    if not all(claim.holds for claim in claims):
        return Verification(claims=tuple(claims), rederived=None)
    problem = plan.problem.of(cal=cal)
    claims += [in_place(plan, problem), _legal(plan, problem)]
    if not all(claim.holds for claim in claims):
        return Verification(claims=tuple(claims), rederived=None)
    claims += number_claims(plan, problem)
    if not proof:
        return Verification(claims=tuple(claims), rederived=None)
    rederived, proven = _proof(plan, problem, progress)
    claims += [*proven, *_other_parts(plan, cal, progress)]
    return Verification(claims=tuple(claims), rederived=rederived)


def in_place(plan: Plan, problem: Problem) -> Claim:
    """Whether ranks are where the estimate takes them to be."""
    x = plan.layout
    if plan.kind_of_stage:
        there = plan.mesh == mesh_unlike(problem, x, plan.kind_of_stage)
        return same("ranks in their places, each stage on nodes of its kind", there, derived=True)
    in_order = mesh([(axis, getattr(x, axis)) for axis in x.axis_order])
    there = plan.mesh == in_order or plan.mesh == place_on_nodes(problem, x, plan.estimate)
    return same("ranks in their places", there, derived=True)


def number_claims(plan: Plan, problem: Problem) -> tuple[Claim, ...]:
    """Every number of a sound and legal plan, estimated anew, and what its certificate says of itself."""
    return (
        *_question(plan),
        *_estimate(plan, problem),
        *_others(plan, problem),
        *_certificate(plan),
        *_deadline(plan),
        *_campaign(plan),
    )


def estimate_anew(plan: Plan, problem: Problem) -> Plan:
    """The plan with the numbers of its layout and split as they are estimated here."""
    s, split = (
        problem,
        split_of(plan.request.model, plan.layout, plan.layers_of_stage, plan.recompute_of_stage),
    )
    rented = paid_gpus_of(plan.request, plan.layout, plan.kind_of_stage)
    now, costs = estimate_split(s, plan, plan.layout, split, paid_gpus=rented)
    played_s = simulated_step_s(costs, plan.layout, split)
    return replace(plan, estimate=now, simulated_s=played_s, provenance=now.provenance)


def _question(plan: Plan) -> Iterator[Claim]:
    """Whether the plan still answers what it was asked."""
    if plan.origin is not None:
        yield same("question", plan.origin.request, digest(plan.request))


def _legal(plan: Plan, s: Problem) -> Claim:
    """Whether the layout breaks a rule of its own stack."""
    broken = check(s, plan.layout)
    legal = "; ".join(f"{violation.rule}: {violation.message}" for violation in broken) or "legal"
    return Claim(name="rules", holds=not broken, claimed="legal", found=legal)


def _estimate(plan: Plan, s: Problem) -> Iterator[Claim]:
    """Step time, peak memory and all the rest, estimated anew for this layout and split."""
    anew = estimate_anew(plan, s)
    then, now = plan.estimate, anew.estimate
    yield _close("step time", then.step_time_s, now.step_time_s, format_seconds)
    yield _close("peak memory", then.peak_memory_bytes, now.peak_memory_bytes, format_bytes)
    if plan.simulated_s is not None and anew.simulated_s is not None:
        yield _close("step by event simulation", plan.simulated_s, anew.simulated_s, format_seconds)
    rest = [
        claim for claim in _differences(then, now) if claim.name not in ("step_time_s", "peak_memory_bytes")
    ]
    yield from rest or (same("rest of the estimate", "as estimated", "as estimated"),)
    unsaid = [text for text in now.assumptions if text not in plan.assumptions]
    yield same("assumptions left out", "; ".join(unsaid) or "none", "none")
    yield same("provenance", "; ".join(plan.provenance), "; ".join(now.provenance))
    yield _fits(plan, *_fullest(plan, now, s))


def _fullest(plan: Plan, now: Estimate, s: Problem) -> tuple[float, float]:
    """Peak memory of a stage and what its GPU has for it, of the stage where the latter is scarcest."""
    if not plan.kind_of_stage:
        return now.peak_memory_bytes, s.memory_budget_bytes
    budgets = [
        s.of(cluster=cluster).memory_budget_bytes for cluster in clusters_of_kinds(plan.request.cluster)
    ]
    stages = zip(now.memory_by_stage, plan.kind_of_stage, strict=True)
    return max(
        ((memory.total_bytes, budgets[kind]) for memory, kind in stages), key=lambda pair: pair[0] / pair[1]
    )


def _fits(plan: Plan, peak: float, budget: float) -> Claim:
    """Whether a plan that was searched keeps the memory free that it was to; one given layout is as it is."""
    asked = plan.optimality.enumerated == 1
    return Claim(
        name="memory left free",
        holds=asked or peak <= budget * (1 + EQUAL),
        claimed="one given layout" if asked else "within the GPU's memory and headroom",
        found=f"{format_bytes(peak)} of {format_bytes(budget)}",
    )


def _others(plan: Plan, s: Problem) -> Iterator[Claim]:
    """The same of the plans beside it."""
    for number, other in enumerate(plan.alternatives, start=1):
        of, x = f" of alternative {number}", other.layout
        there = plan_beside(plan, other)
        problem = there.problem if other.kinds else s
        broken = check(problem, x)
        yield same(f"rules{of}", ", ".join(violation.rule for violation in broken) or "legal", "legal")
        if broken:
            continue
        split = split_of(s.model, x, other.layers_of_stage, other.recompute_of_stage)
        now, costs = estimate_split(problem, there, x, split)
        slower = other.step_time_s / plan.estimate.step_time_s
        yield _close(f"step time{of}", other.step_time_s, now.step_time_s, format_seconds)
        yield _close(f"lower end{of}", other.lower_s, now.lower_s, format_seconds)
        yield _close(f"upper end{of}", other.upper_s, now.upper_s, format_seconds)
        yield _close(f"peak memory{of}", other.peak_memory_bytes, now.peak_memory_bytes, format_bytes)
        if other.out_of_memory_chance is not None:
            chances = other.out_of_memory_chance, now.out_of_memory_chance
            yield _close(f"chance of OOM{of}", *chances, format_chance)
        yield _close(f"ratio of steps{of}", 1 + other.slower_by, slower, "{:.4f}".format)
        if other.simulated_s is not None:
            played_s = simulated_step_s(costs, x, split)
            yield _close(f"step by event simulation{of}", other.simulated_s, played_s, format_seconds)


def _close(name: str, claimed: float, value: float, words: Callable[[float], str]) -> Claim:
    equal = close(claimed, value)
    texts = (words(claimed), words(value))
    if not equal and texts[0] == texts[1]:
        texts = (repr(claimed), repr(value))
    return Claim(name=name, holds=equal, claimed=texts[0], found=texts[1])


def _differences(then: Any, now: Any, where: str = "") -> Iterator[Claim]:
    """Where two values differ by more than what a text file loses, and what each says.

    A field with a default that says nothing in the file, as of a version that did not have it, is new: the
    file claims nothing of it.
    """
    if is_dataclass(then) and type(then) is type(now):
        for each in fields(then):
            value, other = getattr(then, each.name), getattr(now, each.name)
            name = f"{where}.{each.name}".lstrip(".")
            if value in (None, ()) and other != value and not _is_asked(each):
                yield Claim(
                    name=name, holds=True, claimed="not said", found=shortened(str(other)), is_new=True
                )
            else:
                yield from _differences(value, other, name)
    elif isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in sorted({*then, *now}):
            yield from _differences(then.get(key), now.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(then, tuple) and isinstance(now, tuple) and len(then) == len(now):
        for i, (value, other) in enumerate(zip(then, now, strict=True)):
            yield from _differences(value, other, f"{where}[{i}]")
    elif isinstance(then, float | int) and isinstance(now, float | int):
        if not close(then, now):
            yield Claim(name=where, holds=False, claimed=f"{then:.6g}", found=f"{now:.6g}")
    elif then != now:
        yield Claim(name=where, holds=False, claimed=shortened(str(then)), found=shortened(str(now)))


def _is_asked(each: Field[Any]) -> bool:
    """Whether every file of a dataclass says a field, since it has no default."""
    return each.default is MISSING and each.default_factory is MISSING


def _certificate(plan: Plan) -> Iterator[Claim]:
    """What the certificate says of itself: counts add up, the gap is one, the floors bear the bound."""
    c, step_s = plan.optimality, plan.estimate.step_time_s
    yield within("bound", c.bound_s, 0.0, step_s * (1 + PROVEN_GAP))
    yield same("layouts enumerated", c.enumerated, sum(c.pruned.values()) + c.solved)
    yield same("floors are of bounds that dismissed", sorted(set(c.floors_s) - set(c.pruned)), [])
    there = (c.bound_bytes is not None, c.within_s is not None)
    of_memory = plan.request.objective == "memory"
    alone = of_memory and c.enumerated == 1  # searched, one layout has it; given, it has not
    if not alone:
        yield same("bound of memory is there", there, (of_memory, of_memory))
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


def _deadline(plan: Plan) -> Iterator[Claim]:
    """Whether an answer to a deadline keeps it, failures included; a given layout need not."""
    goal = goal_of(plan.request)
    if not goal.has_deadline or plan.optimality.enumerated == 1:
        return
    kept = goal.keeps(plan.layout, plan.estimate)
    yield same("deadline", "kept", "kept" if kept else "not kept nine times in ten")


def _campaign(plan: Plan) -> Iterator[Claim]:
    """Every number of a finished run, computed anew in the world that the plan says it runs in."""
    if plan.campaign is None:
        return
    try:
        now = campaign_of(plan, plan.campaign.failures)
    except InputError as error:
        yield Claim(
            name="campaign", holds=False, claimed="a finished run", found=f"{error.what}: {error.cause}"
        )
        return
    campaign = replace(plan.campaign, notes=now.notes)  # what a version words otherwise is no other run
    wrong = list(_differences(campaign, now, "campaign"))
    if plan.campaign.notes != now.notes:
        words = [shortened("; ".join(each.notes)) for each in (plan.campaign, now)]
        wrong.append(Claim(name="campaign.notes", holds=True, claimed=words[0], found=words[1], is_new=True))
    yield from wrong or (same("campaign", "as computed", "as computed"),)


def _gap(plan: Plan, gap: float) -> Claim:
    """Whether the gap is the one between the plan and its bound, and none where the plan is called proven."""
    c = plan.optimality
    holds = abs(gap - c.gap) <= PROVEN_GAP and (c.status != "proven" or gap <= PROVEN_GAP)
    return Claim(name="gap", holds=holds, claimed=f"{c.status}, {c.gap:.1e}", found=f"{gap:.1e}")


def _proof(plan: Plan, problem: Problem, progress: Progress) -> tuple[Rederived, tuple[Claim, ...]]:
    """The bound by the slow path; under ``memory`` also that no plan of the band does with less."""
    request, c = plan.request, plan.optimality
    if c.status == "given":
        return _held(plan)
    if c.enumerated == 1:
        request = replace(request, pins=_pins_of(plan.layout, problem))
    goal, score, seconds = goal_of(request), _score_of(plan, c.bound_s), partial(_seconds_of, plan)
    rederived = rederive(problem, goal, request, score, seconds, progress)
    holds = rederived.bound_s >= c.bound_s * (1 - PROVEN_GAP)
    words = format_seconds(rederived.bound_s) + (
        f" by {rederived.better}" if rederived.better and not holds else ""
    )
    claims = [Claim(name="bound", holds=holds, claimed=format_seconds(c.bound_s), found=words)]
    if c.bound_bytes is not None and c.within_s is not None:
        share = c.bound_bytes / problem.cluster.gpu.memory_bytes
        tight = replace(problem, memory_headroom=1 - share)
        rederived = rederive(tight, goal, request, c.within_s, seconds, progress)
        none = rederived.better is None and rederived.bound_s >= c.within_s * (1 - PROVEN_GAP)
        bound = f"no plan within {format_seconds(c.within_s)} in {format_bytes(c.bound_bytes)}"
        claims.append(
            Claim(name="bound of memory", holds=none, claimed=bound, found=str(rederived.better or bound))
        )
    return rederived, tuple(claims)


def _held(plan: Plan) -> tuple[Rederived, tuple[Claim, ...]]:
    """The bound of one layout whose split was given: its own step, since nothing else was looked at."""
    step_s = plan.estimate.step_time_s
    rederived = Rederived(bound_s=step_s, layouts=1, dismissed=0, split=0, solved=0, better=None)
    return rederived, (_close("bound", plan.optimality.bound_s, step_s, format_seconds),)


def _other_parts(plan: Plan, cal: Calibration, progress: Progress) -> Iterator[Claim]:
    """Whether no layout on other kinds of node of the pool beats the bound; nothing where all are alike."""
    if plan.pool is None or plan.optimality.enumerated == 1:
        return
    goal, score = goal_of(plan.request), _score_of(plan, plan.optimality.bound_s)
    asked, bound_s = replace(plan.request, cluster=plan.pool.offered), plan.optimality.bound_s
    for part in parts_of_pool(plan.pool.offered):
        if part.nodes == plan.request.cluster.nodes:
            continue
        request = part_request(asked, part, goal)
        problem, seconds = begin(request, cal).problem, partial(_seconds_of, plan)
        rederived = rederive(problem, goal_of(request), request, score, seconds, progress)
        words = format_seconds(rederived.bound_s) + (f" by {rederived.better}" if rederived.better else "")
        holds = rederived.bound_s >= bound_s * (1 - PROVEN_GAP)
        name = f"bound on {nodes_in_words(part.nodes)}"
        yield Claim(name=name, holds=holds, claimed=format_seconds(bound_s), found=words)
    yield from _unlike_parts(plan, asked, cal, progress)


def _unlike_parts(plan: Plan, asked: PlanRequest, cal: Calibration, progress: Progress) -> Iterator[Claim]:
    """Whether no pipeline with stages on unlike kinds of node of the pool beats the bound."""
    goal, bound_s = goal_of(plan.request), plan.optimality.bound_s
    for part in parts_of_pool(asked.cluster):
        if len(kinds_of(part)) == 1:
            continue
        progress(f"stages on unlike kinds of {nodes_in_words(part.nodes)}")
        score = goal.shortened(_score_of(plan, bound_s), PROVEN_GAP)
        unlike_search = rederive_unlike(part_request(asked, part, goal), cal, score)
        if unlike_search is None:
            continue
        words = format_seconds(bound_s)
        if unlike_search.best is not None:
            words = f"{format_seconds(unlike_search.best.step_time_s)} by {unlike_search.best.layout}"
        name = f"bound of stages on unlike kinds of {nodes_in_words(part.nodes)}"
        yield Claim(name=name, holds=unlike_search.best is None, claimed=format_seconds(bound_s), found=words)


def _score_of(plan: Plan, step_s: float) -> float:
    """Score of a plan if its step took so long."""
    return float(goal_of_plan(plan).score(plan.layout.num_gpus, step_s))


def _seconds_of(plan: Plan, score: float) -> float:
    """Step with which a plan would have a score."""
    return float(goal_of_plan(plan).cutoff_s(plan.layout.num_gpus, score))


def _pins_of(layout: ParallelLayout, problem: Problem) -> dict[str, object]:
    """Every field of one given layout; recomputing no layer is ``full`` of none where there is that."""
    pins: dict[str, object] = {f.name: getattr(layout, f.name) for f in fields(layout)}
    if layout.shard_degree is None:
        del pins["shard_degree"]
    if layout.recompute == "none" and "full" in problem.stack.supports.recomputes:
        pins["recompute"] = "full"
    return pins
