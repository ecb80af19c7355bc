"""Why there is no plan, the nearest changes of the request that would give one, and both as an error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from costmodel.campaign.record import KEPT, chance_within
from costmodel.kernels.precisions import TRAINING, HalfPrecision, TrainingPrecision
from costmodel.kernels.tables import Calibration
from costmodel.layout import ParallelLayout
from costmodel.memory.fit import fit_text, headroom_for, out_of_memory_chance
from costmodel.memory.stage import MemoryBreakdown
from costmodel.training.bands import peak_spread
from costmodel.training.estimate import estimate
from costmodel.updates.adapters import parse_adapter
from costmodel.updates.offload import Offload, host_path
from costmodel.updates.optimizers import USUAL
from planner.bounds.funnel import smallest_memory
from planner.law import Violation
from planner.plan import FREE, RECOMPUTED_LAYERS, SPLIT_PINS, PlanRequest, Problem, steps_of_request
from planner.rules.check import check, check_memory, ground_of, rules_of
from planner.search.best_first import explore, has_layout
from planner.search.candidates import estimate_of
from planner.search.least_memory import least_memory_layout
from planner.search.state import Search
from planner.space.degrees import combinations
from topology.base.counts import counted
from topology.base.errors import InputError, NoFeasiblePlanError
from topology.base.units import DAY, HOUR, format_chance, format_seconds
from topology.builders import build, default_cluster
from topology.catalog import gpus
from topology.hardware.datasheets import generation_of, reference_machine, sheet_named
from topology.hardware.gpu import Gpu
from topology.spec import ClusterSpec

DEADLINE = "deadline"
MOST_DOUBLINGS_OF_GPUS = 6
SHORTEST_SHARE = 16
"""Sequences are shortened to a 16th at most before giving up."""
_SHARES = 1000
"""Shares of memory are named in tenths of a percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestChange:
    """One change of the request that makes it feasible, as a sentence and as a flag of the command line."""

    change: str
    flag: str
    step_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """There is no plan: the rules in the way, what each rejected, the nearest changes that help.

    `problem` is what the layouts of the request were judged against.
    """

    request: PlanRequest
    violations: tuple[Violation, ...]
    rejected: Mapping[str, int]
    nearest: tuple[RequestChange, ...]
    search_time_s: float
    problem: Problem = field(repr=False, compare=False)


Candidates = Iterator[tuple[PlanRequest, str, str]]


def explain_infeasible(request: PlanRequest, done: Search) -> Infeasible:
    """Name the rules in the way, and try one change at a time until some make a plan possible.

    Args:
        request: what was asked.
        done: the search that found nothing.
    """
    violations = done.contradictions or _reasons(request, done)
    return Infeasible(
        request=request,
        violations=violations,
        rejected=dict(sorted(done.dismissed.counts.items())),
        nearest=tuple(nearest_changes(request, done, violations)),
        search_time_s=0.0,
        problem=done.problem,
    )


def nearest_changes(
    request: PlanRequest, done: Search, violations: Sequence[Violation]
) -> Iterator[RequestChange]:
    """The smallest change of each kind that makes a request feasible, nearest kinds first."""
    broken = {violation.rule: violation for violation in violations}
    kinds = [_unpinned(request), _less_headroom(request, done), _shorter(request)]
    if DEADLINE in broken:
        late = broken[DEADLINE]
        kinds = [_more_gpus(request, late.have / late.need), _later(request, late.have), _unpinned(request)]
    elif not broken.keys() & {"sequence-limit", "precision-hardware"}:
        kinds[2:2] = [_larger_gpu(request), _more_gpus(request), _offloaded(request)]
        kinds.append(_with_adapters(request))
    if "precision-hardware" in broken:
        kinds.insert(0, _in_half_precision(request))
    yield from _possible(kinds, done.problem.case.cal)


def easing_changes(request: PlanRequest, cal: Calibration) -> Iterator[RequestChange]:
    """The smallest change of each kind with which some layout fits, where memory alone is in the way."""
    changes = (_unpinned, _larger_gpu, _more_gpus, _offloaded, _shorter)
    yield from _possible([change(request) for change in changes], cal)


def _possible(kinds: Sequence[Candidates], cal: Calibration) -> Iterator[RequestChange]:
    """The first change of each kind that helps."""
    for candidates in kinds:
        for changed, change, flag in candidates:
            if _is_possible(changed, cal):
                yield RequestChange(change=change, flag=flag)
                break


def _is_possible(request: PlanRequest, cal: Calibration) -> bool:
    """Whether a change helps; one that makes no cluster or no question helps nobody."""
    try:
        return has_layout(request, cal)
    except InputError:
        return False


def _later(request: PlanRequest, needed_s: float) -> Candidates:
    """A deadline that the fastest layout keeps nine times in ten, in whole hours or days."""
    unit_s, unit = (DAY, "d") if needed_s >= 2 * DAY else (HOUR, "h")
    count = math.ceil(needed_s / unit_s)
    job = replace(request.job, deadline_s=count * unit_s)
    yield replace(request, job=job), "give it more time", f"--deadline {count}{unit}"


def _in_half_precision(request: PlanRequest) -> Candidates:
    """In the sixteen bits that the GPU multiplies."""
    peaks = build(request.cluster).gpu.peak_flop_per_s
    half: HalfPrecision = "bf16" if "bf16" in peaks else "fp16"
    job = replace(request.job, precision=half)
    yield replace(request, job=job), f"use {half}", f"--precision {half}"


def _offloaded(request: PlanRequest) -> Candidates:
    """With all of the optimizer's state in host memory, where the rate of that memory is known."""
    plain = request.job.optimizer == USUAL and request.job.adapter is None
    if plain and request.job.offload is None and host_path(request.cluster).memory_bytes_per_s is not None:
        job = replace(request.job, offload=Offload(optimizer=1.0))
        yield replace(request, job=job), "keep the optimizer's state in host memory", "--offload optimizer"


def _unpinned(request: PlanRequest) -> Candidates:
    """Without one pinned field, then without any."""
    for name in request.pins:
        if name in SPLIT_PINS:  # they go with their layout
            continue
        gone = (name, RECOMPUTED_LAYERS) if name == "recompute" else (name,)
        kept = {field: value for field, value in request.pins.items() if field not in gone}
        yield replace(request, pins=kept), f"leave layout.{name} to the planner", f"drop --set layout.{name}"
    if len(request.pins) > 1:
        yield replace(request, pins={}), "leave every layout field to the planner", "drop --set"


def _less_headroom(request: PlanRequest, done: Search) -> Candidates:
    """The usual share of memory, what the leanest layout leaves, or none, each with its chance of OOM."""
    problem, pins = done.problem, done.pins
    spread = peak_spread(problem.case)
    shares = {headroom_for(spread), 0.0}
    if len(combinations(problem, pins)[0]):
        shares.add(max(0.0, leanest_share(problem, pins)))
    for free in sorted(shares, reverse=True):
        if free < problem.memory_headroom:
            chance = format_chance(out_of_memory_chance(1 - free, 1.0, spread))
            text = share_text(free)
            change = f"leave {text} % of memory free: {chance} chance of OOM"
            yield replace(request, memory_headroom=free), change, f"--memory-headroom {text}%"


def share_text(share: float) -> str:
    """A share of memory in percent, as `--memory-headroom` reads it.

    >>> share_text(0.399), share_text(0.05)
    ('39.9', '5')
    """
    return f"{100 * share:.1f}".removesuffix(".0")


def _more_gpus(request: PlanRequest, least_times: float = 1.0) -> Candidates:
    """One and a half, two, three, four, six … times the nodes, from the multiple that might be enough."""
    if len(request.cluster.nodes) != 1 or request.cluster.switches:
        return
    (node,) = request.cluster.nodes
    doubled = [node.count << power for power in range(MOST_DOUBLINGS_OF_GPUS + 1)]
    between = [3 * count // 2 for count in doubled[:-1] if count % 2 == 0]
    by_flag = _named_by_flag(request.cluster)
    for count in sorted((*doubled[1:], *between)):
        if count < node.count * least_times:
            continue
        spec = _of_nodes(request.cluster, count)
        if by_flag:
            try:
                spec = default_cluster(node.gpu, spec.num_gpus).spec
            except InputError:  # they do not fill its machines
                continue
        yield replace(request, cluster=spec), f"use {spec.num_gpus:,} GPUs", f"--gpus {spec.num_gpus}"


def _named_by_flag(spec: ClusterSpec) -> bool:
    """Whether a cluster is what `--gpu` and `--gpus` make."""
    (node, *others) = spec.nodes
    return not others and node.gpu in gpus() and spec == default_cluster(node.gpu, spec.num_gpus).spec


def _of_nodes(spec: ClusterSpec, count: int) -> ClusterSpec:
    """So many nodes; a tier that joins all of them joins all of the more, units keep their size."""
    (node,) = spec.nodes
    tiers = tuple(
        replace(
            tier,
            units=None,
            nodes_per_unit=count if tier.nodes_per_unit >= node.count else tier.nodes_per_unit,
        )
        for tier in spec.tiers
    )
    return replace(spec, nodes=(node.times(count),), tiers=tiers)


def _larger_gpu(request: PlanRequest) -> Candidates:
    """The next larger GPUs of the catalog, smallest memory first; in machines of their own by name."""
    now, by_flag = build(request.cluster), _named_by_flag(request.cluster)
    if now.gpu.name not in gpus():
        return  # a card of one's own, of which nothing like it is known
    for gpu in sorted(gpus().values(), key=lambda gpu: (gpu.memory_bytes, gpu.name)):
        if gpu.memory_bytes > now.gpu.memory_bytes and _comparable(now.gpu, gpu, request.job.precision):
            nodes = tuple(replace(node, gpu=gpu.name) for node in request.cluster.nodes)
            spec = replace(request.cluster, nodes=nodes)
            if by_flag:
                try:
                    spec = default_cluster(gpu.name, now.num_gpus).spec
                except InputError:  # they do not fill its machines
                    continue
            flag = f"--gpu {gpu.name}" if by_flag else ""
            yield replace(request, cluster=spec), f"use {gpu.name} GPUs", flag


def _comparable(asked: Gpu, other: Gpu, precision: TrainingPrecision) -> bool:
    """One of the same maker that is no slower, in machines as large, verified in all that a plan rests on."""
    sheets = [sheet_named(gpu.name) for gpu in (asked, other)]
    machines = [reference_machine(sheet) for sheet in sheets]
    peak = TRAINING[precision].peak
    return (
        generation_of(asked).maker == generation_of(other).maker
        and machines[0].gpus_per_node == machines[1].gpus_per_node
        and sheets[0].scaleup_gb_per_s <= sheets[1].scaleup_gb_per_s
        and other.peak_flop_per_s.get(peak, 0.0) >= asked.peak_flop_per_s.get(peak, math.inf)
        and not {"memory", "memory_bandwidth", "scaleup", peak} & {*other.unverified}
    )


def _with_adapters(request: PlanRequest) -> Candidates:
    """Small matrices trained beside frozen weights, which is another training."""
    if request.job.adapter is not None:
        return
    for name, words in (("lora", "freeze the weights"), ("qlora", "freeze the weights in four bits")):
        job, change = replace(request.job, adapter=parse_adapter(name)), f"{words} and train adapters"
        yield replace(request, job=job), change, f"--adapter {name}"
        yield replace(request, job=job, engine=FREE), change, f"--adapter {name} --for {FREE}"


def _shorter(request: PlanRequest) -> Candidates:
    """Half, a quarter, … of the sequence, within the model's limit."""
    length = min(request.job.sequence_length, 2 * request.model.max_sequence_length)
    share = 2
    while share <= SHORTEST_SHARE and length // share >= 1:
        job = replace(request.job, sequence_length=length // share)
        yield (
            replace(request, job=job),
            f"use sequences of {length // share:,} tokens",
            f"--sequence-length {length // share}",
        )
        share *= 2


def _reasons(request: PlanRequest, done: Search) -> tuple[Violation, ...]:
    """What stands in the way of a search that found nothing: a rule, the deadline, or memory."""
    everything, _ = combinations(done.problem, done.pins)
    if len(everything) == 0:
        return _broken_by_all(done.problem, done.dismissed.counts)
    return _missed_deadline(request, done) or _least_memory(done.problem, done.pins)


def _missed_deadline(request: PlanRequest, done: Search) -> tuple[Violation, ...]:
    """How long a run of the fastest layout takes that has a deadline to keep."""
    deadline_s = request.job.deadline_s
    if deadline_s is None or not done.goal.has_deadline:
        return ()
    fastest = explore(replace(request, objective="step-time"), done.problem.case.cal)
    if fastest.best is None:
        return ()
    full, outlook = estimate_of(done.problem, fastest.best), done.goal.outlook
    alone_s = steps_of_request(request) * full.step_time_s
    days = () if outlook is None else outlook.finish_days(fastest.best.layout, full)
    needed_s = DAY * days[round(KEPT * (len(days) - 1))] if days else alone_s
    arithmetic = (
        f"{steps_of_request(request):,} steps × {format_seconds(full.step_time_s)} = {_long(alone_s)}"
    )
    words = f"{arithmetic} with the fastest layout"
    if math.isfinite(needed_s):
        chance = format_chance(chance_within(days, deadline_s / DAY))
        words += f", nine times in ten up to {_long(needed_s)} with failures (chance to keep it {chance})"
    else:
        words += ", and failures leave it no headway"
    return (
        Violation(
            rule=DEADLINE,
            message=f"{words}, the deadline is {_long(deadline_s)}",
            have=needed_s if math.isfinite(needed_s) else alone_s,
            need=deadline_s,
            unit="s",
            hint="give it more time or more GPUs",
        ),
    )


def _long(seconds: float) -> str:
    """A time in days, where it takes some.

    >>> _long(864000.0), _long(3600.0)
    ('10.0 days', '60 min')
    """
    return f"{seconds / DAY:,.1f} days" if seconds >= 2 * DAY else format_seconds(seconds)


def _broken_by_all(problem: Problem, rejected: Mapping[str, int]) -> tuple[Violation, ...]:
    """The rule that the smallest layout breaks, when every layout breaks some."""
    s = problem
    smallest = check(s, ParallelLayout())
    rules = {rule.name: rule for rule in rules_of(s.engine)}
    return smallest or tuple(
        Violation(
            rule=name,
            ground=ground_of(rules[name], s, ParallelLayout()),
            message=f"{count:,} layouts break it",
            have=count,
            need=0,
            unit="layouts",
            hint="",
        )
        for name, count in sorted(rejected.items(), key=lambda item: -item[1])
        if name in rules
    )


def _leanest_of(s: Problem, leanest: ParallelLayout, pins: Mapping[str, Any]) -> ParallelLayout:
    """The same degrees with as many shards and as much recomputation as the rules of the engine allow."""
    offered = s.stack.supports.zero_stages_with_pipeline if leanest.pp > 1 else s.stack.supports.zero_stages
    stages = sorted(offered, reverse=True) if leanest.replicas > 1 else [0]
    policies = ["full"] * ("full" in s.stack.supports.recomputes) + [leanest.recompute]
    every = [
        replace(leanest, zero_stage=pins.get("zero_stage", stage), recompute=pins.get("recompute", policy))
        for policy in policies
        for stage in (*stages, leanest.zero_stage)
    ]
    legal = (x for x in every if not check(s, x))
    return next(legal, every[0])


def _least_memory(problem: Problem, pins: Mapping[str, Any]) -> tuple[Violation, ...]:
    """The memory of the layout that needs least of it, part by part."""
    s = problem
    smallest, memory = leanest_layout(problem, pins)
    violation = check_memory(memory, s.cluster.gpu.memory_bytes, s.memory_headroom)
    if violation is None:
        return ()
    degrees = (
        f"tp {smallest.tp}, pp {smallest.pp}, dp {smallest.dp}, cp {smallest.cp}, ep {smallest.ep}, ZeRO-"
        f"{smallest.zero_stage}, recompute {smallest.recompute}"
    )
    peak = max(stage.total_bytes for stage in memory)
    chance = out_of_memory_chance(peak, s.cluster.gpu.memory_bytes, peak_spread(s.case))
    message = f"the leanest layout ({degrees}): {fit_text(chance)}; {violation.message}"
    return (replace(violation, message=message),)


def leanest_layout(
    problem: Problem, pins: Mapping[str, Any]
) -> tuple[ParallelLayout, tuple[MemoryBreakdown, ...]]:
    """The layout that needs least memory, and what each of its stages needs, in bytes on one GPU.

    A bound names the first, and searches in less and less memory those that need less still.
    """
    table, _ = combinations(problem, pins)
    s, least = problem, smallest_memory(problem, table)
    smallest = _leanest_of(s, table.layout(int(np.argmin(least))), pins)
    memory = estimate(s.case, smallest).memory_by_stage
    choice = least_memory_layout(s, pins, max(stage.total_bytes for stage in memory), float(least.min()))
    return (smallest, memory) if choice is None else (choice.layout, estimate_of(s, choice).memory_by_stage)


def leanest_share(problem: Problem, pins: Mapping[str, Any]) -> float:
    """Share of memory that the leanest layout leaves free, in whole tenths of a percent; below 0 if none."""
    _, memory = leanest_layout(problem, pins)
    need = max(stage.total_bytes for stage in memory) / problem.cluster.gpu.memory_bytes
    return math.floor(_SHARES * (1 - need)) / _SHARES


def no_plan(infeasible: Infeasible) -> NoFeasiblePlanError:
    """Say why there is no plan, and the nearest change that gives one."""
    request, rules = infeasible.request, {violation.rule for violation in infeasible.violations}
    of = f"no layout of {request.model.name} on {counted(request.cluster.num_gpus, 'GPU')}"
    verdict = _lacking_memory(request) if rules == {"memory"} else "is possible"
    if rules == {DEADLINE}:
        verdict = "keeps the deadline"
    if {violation.ground for violation in infeasible.violations} == {"unpriced"}:
        verdict = "is priced here"
    what = f"{of} {verdict}"
    return NoFeasiblePlanError(
        what=what, cause=cause_of(infeasible), fix=fix_of(infeasible), answer=infeasible
    )


def _lacking_memory(request: PlanRequest) -> str:
    """What no layout does where memory alone is in the way."""
    if request.memory_headroom is None:
        return "fits"
    if request.memory_headroom == 0:
        return "keeps within the memory of a GPU"
    return f"leaves {100 * request.memory_headroom:.1f} % of memory free"


def cause_of(infeasible: Infeasible) -> str:
    """The broken rules in full, or how many layouts each rule rejected."""
    if infeasible.violations:
        return "; ".join(f"{violation.rule}: {violation.message}" for violation in infeasible.violations)
    return f"every layout was rejected: {rejected_text(infeasible.rejected)}"


def rejected_text(rejected: Mapping[str, int]) -> str:
    """Rules by how many layouts they rejected, most first."""
    ordered = sorted(
        ((rule, count) for rule, count in rejected.items() if count), key=lambda item: (-item[1], item[0])
    )
    return ", ".join(f"{rule} {count:,}" for rule, count in ordered)


def fix_of(infeasible: Infeasible) -> str:
    """The nearest change of each kind that helps, else the hint of the first rule."""
    if infeasible.nearest:
        changes = (
            f"{each.change} ({each.flag})" if each.flag else each.change for each in infeasible.nearest
        )
        return ", or ".join(changes)
    if infeasible.violations:
        return infeasible.violations[0].hint
    return "use more GPUs, GPUs with more memory, or fewer pinned fields"
