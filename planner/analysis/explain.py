"""Why a plan is what it is: what binds it, why the runner-up lost, and which one change would help most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from costmodel.estimate import PART_NAMES, Estimate, throughput_change
from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.parallel.axes import PARTS
from costmodel.training.rank_strides import axis_strides
from planner.analysis.headroom import HeadroomPrice, headroom_price
from planner.analysis.switch_effects import SwitchEffect, switch_effects
from planner.plan import Alternative, Plan, PlanRequest, Problem, tables_of
from planner.pricing import capacity_of_fullest, estimate_split, split_of
from planner.questions.batches import better_batch
from planner.questions.traced import require_of_a_module
from planner.search.best_first import explore
from planner.search.pools.pool import plan_beside
from topology.base.errors import InputError
from topology.base.units import format_bandwidth, format_bytes, format_seconds
from topology.fabric.hierarchy import crosses_node, ring_bandwidth
from topology.pools.kinds import stages_on

MORE_MEMORY = 1.5
FASTER = 2

_NEGLIGIBLE = 5e-4
"""Communication below this share of the step is not spoken of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One part of the step: its seconds and its share of the whole."""

    part: str
    seconds_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """The next best different plan: how much slower, what it does differently, and which parts cost it."""

    layout: ParallelLayout
    step_time_s: float
    slower_by: float
    tied: bool
    difference: str
    lost_on: tuple[Share, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The best plan after one change; `faster_by` compares tokens per second, 0.1 means 10 % more."""

    change: str
    flag: str
    step_time_s: float
    faster_by: float
    layout: ParallelLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What can be said about a plan beyond its numbers.

    `shares` are the parts of the step, largest first; `memory` and `links` are sentences about what is full
    and which links carry exposed communication; `what_if` is sorted by what helps most, and so are
    `switches`, of the layout as it is. `headroom` is what the memory that is left free costs.
    """

    shares: tuple[Share, ...]
    memory: str
    links: tuple[str, ...]
    runner_up: RunnerUp | None
    what_if: tuple[WhatIf, ...]
    switches: tuple[SwitchEffect, ...] = ()
    headroom: HeadroomPrice | None = None


def explain(plan: Plan, cal: Calibration | None = None) -> Explanation:
    """Explain a plan; every what-if is a search of its own.

    Args:
        plan: a plan of `planner.search.search.search`.
        cal: calibration tables; those that the plan was made with by default.
    """
    cal = cal or tables_of(plan)
    problem = plan.problem.of(cal=cal)
    return Explanation(
        shares=time_shares(plan.estimate),
        memory=memory_sentence(plan, capacity_of_fullest(plan)),
        links=_unlike_links(plan) or link_sentences(problem, plan.layout, plan.estimate),
        runner_up=runner_up(plan, problem),
        what_if=() if plan.kind_of_stage else what_if(plan, cal),
        switches=switch_effects(plan, cal),
        headroom=headroom_price(plan, cal),
    )


def time_shares(full: Estimate) -> tuple[Share, ...]:
    """Parts of the step that take any time, largest first."""
    parts = [
        Share(
            part=name, seconds_s=getattr(full.time, field), share=getattr(full.time, field) / full.step_time_s
        )
        for field, name in PART_NAMES.items()
    ]
    return tuple(sorted((part for part in parts if part.seconds_s > 0), key=lambda part: -part.seconds_s))


def memory_sentence(plan: Plan, capacity_bytes: float) -> str:
    """Which stage is fullest, how full it is, and what fills it."""
    totals = [stage.total_bytes for stage in plan.estimate.memory_by_stage]
    stage = int(np.argmax(totals))
    fullest = plan.estimate.memory_by_stage[stage]
    names = ("weights", "gradients", "optimizer", "activations", "buffers", "overhead")
    largest = max(names, key=lambda name: float(getattr(fullest, f"{name}_bytes")))
    free = capacity_bytes - totals[stage]
    return (
        f"stage {stage} of {len(totals)} is fullest: {format_bytes(totals[stage])} of "
        f"{format_bytes(capacity_bytes)}, "
        f"{format_bytes(free)} free; most is {largest}, {format_bytes(getattr(fullest, f'{largest}_bytes'))}"
    )


def _unlike_links(plan: Plan) -> tuple[str, ...]:
    """Where stages run that are on unlike kinds of node: each group has the links of its own kind."""
    if not plan.kind_of_stage:
        return ()
    stages = ", ".join(stages_on(plan.request.cluster, plan.kind_of_stage))
    return (f"{stages}: groups inside a stage have the links of its nodes, sends the slowest of all",)


def link_sentences(problem: Problem, layout: ParallelLayout, full: Estimate) -> tuple[str, ...]:
    """For each axis whose communication shows, what links its groups run on, worst axis first."""
    table = LayoutTable.from_rows([layout])
    strides, h = axis_strides(table), problem.cluster.hierarchy
    groups = {part: (getattr(layout, axis.members), strides[axis.group]) for part, axis in PARTS.items()}
    shown = sorted(groups, key=lambda axis: -getattr(full.time, f"{axis}_s"))
    sentences = []
    for axis in shown:
        size, stride = groups[axis][0], int(groups[axis][1][0])
        seconds = getattr(full.time, f"{axis}_s")
        if size > 1 and seconds > _NEGLIGIBLE * full.step_time_s:
            rate = float(np.asarray(ring_bandwidth(h, size, stride)))
            where = (
                "crosses nodes" if bool(np.asarray(crosses_node(h, size, stride))) else "stays inside a node"
            )
            sentences.append(
                f"{axis} of {size} {where} at {format_bandwidth(rate)} per GPU: {format_seconds(seconds)} "
                "exposed, "
                f"{100 * seconds / full.step_time_s:.1f} % of the step"
            )
    return tuple(sentences)


def runner_up(plan: Plan, problem: Problem) -> RunnerUp | None:
    """The best alternative and the parts of the step in which it loses, worst first."""
    if not plan.alternatives:
        return None
    other = plan.alternatives[0]
    asked = _estimate_of(plan, problem, other)
    lost = [
        Share(part=name, seconds_s=delta, share=delta / plan.estimate.step_time_s)
        for field, name in PART_NAMES.items()
        if (delta := getattr(asked.time, field) - getattr(plan.estimate.time, field)) != 0
    ]
    return RunnerUp(
        layout=other.layout,
        step_time_s=other.step_time_s,
        slower_by=other.slower_by,
        tied=other.tied,
        difference=other.difference,
        lost_on=tuple(sorted(lost, key=lambda part: -part.seconds_s)),
    )


def _estimate_of(plan: Plan, problem: Problem, other: Alternative) -> Estimate:
    """Estimate an alternative under its own split, on its own nodes."""
    there = plan_beside(plan, other)
    s = there.problem if other.kinds else problem
    split = split_of(s.model, other.layout, other.layers_of_stage, other.recompute_of_stage)
    return estimate_split(s, there, other.layout, split)[0]


def what_if(plan: Plan, cal: Calibration) -> tuple[WhatIf, ...]:
    """The fastest plan after each single change, what helps most first; against the fastest without it."""
    tokens, before_s = plan.request.job.tokens_per_step, plan.estimate.step_time_s
    if plan.request.objective != "step-time":
        fastest = _best(replace(plan.request, objective="step-time"), cal)
        before_s = before_s if fastest is None else fastest[0]
    result = []
    for changed, change, flag in changes(plan):
        best = _best(changed, cal)
        if best is not None:
            step_s, layout = best
            per_token = step_s / changed.job.tokens_per_step * tokens
            faster_by = throughput_change(before_s, per_token)
            result.append(
                WhatIf(change=change, flag=flag, step_time_s=step_s, faster_by=faster_by, layout=layout)
            )
    return tuple(sorted(result, key=lambda item: -item.faster_by))


def _best(request: PlanRequest, cal: Calibration) -> tuple[float, ParallelLayout] | None:
    """Step and layout of a request; None where it has no plan, or would be refused as a question."""
    try:
        if request.model.module:
            require_of_a_module(request.model.module, request.job, request.pins)
        done = explore(request, cal)
    except InputError:  # a change that this cluster cannot be built with helps nobody
        return None
    if done.best is None:
        return None
    return done.best.step_time_s, done.best.layout


def changes(plan: Plan) -> Iterator[tuple[PlanRequest, str, str]]:
    """Single changes worth asking about: hardware, the job, then the microbatch that was chosen."""
    request = replace(plan.request, objective="step-time")
    spec, job = request.cluster, request.job
    asked = plan.problem.cluster.gpu
    roomy = replace(asked, memory_bytes=asked.memory_bytes * MORE_MEMORY)
    kept = tuple(gpu for gpu in spec.gpus if gpu.name != asked.name)
    yield (
        replace(request, cluster=replace(spec, gpus=(*kept, roomy))),
        f"{format_bytes(roomy.memory_bytes)} of memory per GPU instead of {format_bytes(asked.memory_bytes)}",
        "",
    )
    if spec.num_nodes > 1:
        nodes = tuple(
            replace(node, nic_bandwidth_bytes_per_s=FASTER * node.nic_bandwidth_bytes_per_s)
            for node in spec.nodes
        )
        rate = nodes[0].nic_bandwidth_bytes_per_s
        flag = f"--set cluster.nic_bandwidth_bytes_per_s={rate:g}"
        yield replace(request, cluster=replace(spec, nodes=nodes)), "NICs twice as fast", flag
    if max(node.gpus_per_node for node in spec.nodes) > 1:
        nodes = tuple(
            replace(node, scaleup_bandwidth_bytes_per_s=FASTER * node.scaleup_bandwidth_bytes_per_s)
            for node in spec.nodes
        )
        yield replace(request, cluster=replace(spec, nodes=nodes)), "links inside the node twice as fast", ""
    larger = replace(job, global_batch_size=FASTER * job.global_batch_size)
    yield (
        replace(request, job=larger),
        f"a global batch of {larger.global_batch_size:,} sequences",
        f"--global-batch-size {larger.global_batch_size}",
    )
    suits = better_batch(request)
    if suits is not None and "global_batch_size" not in request.pins:
        changed = replace(request, job=replace(job, global_batch_size=suits))
        words = f"a global batch of {suits:,} sequences, which {spec.num_gpus:,} GPUs divide better"
        yield changed, words, f"--global-batch-size {suits}"
    if "fp8" in asked.peak_flop_per_s and not job.is_low_precision:
        yield replace(request, job=replace(job, precision="fp8")), "matrix products in fp8", "--precision fp8"
    yield from _other_microbatches(request, plan.layout)


def _other_microbatches(
    request: PlanRequest, layout: ParallelLayout
) -> Iterator[tuple[PlanRequest, str, str]]:
    """Twice and half the microbatch, everything else free."""
    sizes = {FASTER * layout.microbatch_size, layout.microbatch_size // FASTER} - {0}
    for size in sorted(sizes):
        pins = {**request.pins, "microbatch_size": size}
        yield replace(request, pins=pins), f"microbatches of {size}", f"--set layout.microbatch_size={size}"
