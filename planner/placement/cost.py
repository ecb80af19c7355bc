"""What the order of nodes costs an axis, and which allocation would cost less.

The search prices an axis on units that are all alike, the common part of those that differ. Where no group
of the axis spans units of a level, as placed, it does not cross that level: its rate is that of the levels
that remain. Seconds scale with the rate; of those hidden under compute nothing is gained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.estimate import Estimate
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.parallel.axes import AXES, PARTS
from planner.placement.allocation import Wanted, asked_for
from planner.placement.nodes import least_lost, lost_of
from planner.placement.torn import exposed_s, rate_within, run_sizes, torn_seconds
from planner.plan import Problem
from topology.base.units import format_bandwidth, format_seconds
from topology.fabric.hierarchy import (
    reduction_words,
)
from topology.fabric.mesh import Mesh
from topology.fabric.packing import least_spanning, spanning, units_of_hosts

SHOWN_SHARE = 1e-3
"""Of a step; less is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisPlaced:
    """Groups of an axis that span units of a level, and what they cost.

    `in_order` counts runs of groups in the order of the nodes, `placed` as the plan has them, `least` those
    of any placement, all of `groups`. `gained_s` of a step is what the placement saves at most, `torn_s`
    what the groups that still span units take beyond those that do not. Rates are bytes/s of a GPU.
    `unit_hosts` are the most of one unit, `is_domain` says whether that is a scale-up domain.
    """

    axis: str
    level: str
    hosts: int
    groups: int
    in_order: int
    placed: int
    least: int
    gained_s: float
    torn_s: float
    torn_bytes_per_s: float
    whole_bytes_per_s: float
    unit_hosts: int
    is_domain: bool


def axes_placed(
    problem: Problem, layout: ParallelLayout, ranks: Mesh, estimate: Estimate
) -> tuple[AxisPlaced, ...]:
    """Every axis whose groups span units of a level that could hold them."""
    spec, h = problem.cluster.spec, problem.cluster.hierarchy
    host = spec.nodes[0].gpus_per_node
    if spec.num_nodes == 1 or any(node.gpus_per_node != host for node in spec.nodes):
        return ()
    order = np.asarray(ranks.gpu_of_rank)[::host] // host
    outer = h.levels[len(h.levels) - sum(level.unit_gpus >= h.gpus_per_node for level in h.levels) :]
    levels = list(zip(outer, units_of_hosts(spec), strict=False))
    result = []
    for axis, size in run_sizes(layout, host).items():
        fits = {level.name: int(np.bincount(units).max()) >= size for level, units in levels}
        counts = {
            level.name: (spanning(np.arange(len(order)), units, size), spanning(order, units, size), units)
            for level, units in levels
        }
        inside = [level.name for level, _ in levels if fits[level.name]]
        worst = next((name for name in inside if counts[name][0] or counts[name][1]), None)
        if worst is None or axis not in AXES or AXES[axis].part not in PARTS:
            continue
        before, now, units = counts[worst]
        rates = [
            rate_within(h, layout, axis, (name for name in inside if not torn[name]))
            for torn in (
                {name: counts[name][0] for name in inside},
                {name: counts[name][1] for name in inside},
                dict.fromkeys(inside, 0),
            )
        ]
        first, second, best = (exposed_s(h, layout, axis, estimate, rate) for rate in rates)
        result.append(
            AxisPlaced(
                axis=axis,
                level="scale-up domain" if worst == levels[0][0].name else worst,
                hosts=size,
                groups=len(order) // size,
                in_order=before,
                placed=now,
                least=least_spanning(units, size, len(order)),
                gained_s=max(0.0, first - second),
                torn_s=max(0.0, second - best),
                torn_bytes_per_s=rates[1],
                whole_bytes_per_s=rates[2],
                unit_hosts=int(np.bincount(units).max()),
                is_domain=worst == levels[0][0].name,
            )
        )
    return tuple(result)


def placement_words(
    problem: Problem, layout: ParallelLayout, ranks: Mesh, estimate: Estimate
) -> tuple[str, ...]:
    """What should be said about the places of ranks, one sentence each."""
    words = list(reduction_words(problem.cluster.hierarchy))
    moved = np.asarray(ranks.gpu_of_rank) != np.arange(ranks.num_ranks)
    if moved.any():
        words.append("ranks are not on GPUs in order: the order of nodes has fewer groups that span units")
    for axis in axes_placed(problem, layout, ranks, estimate):
        blocks = f"{AXES[axis.axis].label.lower()} groups: of {axis.groups:,} blocks of {axis.hosts:,} nodes"
        proof = "the least" if axis.placed == axis.least else f"at least {axis.least:,} of any placement"
        text = f"{blocks}, {axis.in_order:,} span several {axis.level}s in the order of nodes, "
        text += f"{axis.placed:,} as placed ({proof})"
        if axis.gained_s > SHOWN_SHARE * estimate.step_time_s:
            text += f"; the placement saves up to {format_seconds(axis.gained_s)} a step"
        if axis.placed and axis.torn_s > SHOWN_SHARE * estimate.step_time_s:
            rates = f"{format_bandwidth(axis.torn_bytes_per_s)} instead of"
            text += (
                f"; a block that spans two gets {rates} {format_bandwidth(axis.whole_bytes_per_s)}, up to "
            )
            text += f"{format_seconds(axis.torn_s)} a step: {asked_for(_wanted(axis, problem.job))}"
        elif not axis.gained_s > SHOWN_SHARE * estimate.step_time_s:
            continue
        words.append(text)
    words += _in_all(problem, layout, ranks, estimate)
    return tuple(words)


def _wanted(axis: AxisPlaced, job: TrainingJob) -> Wanted:
    """The allocation in which no block of an axis spans units."""
    return Wanted(
        level=axis.level,
        is_domain=axis.is_domain,
        block=axis.hosts,
        nodes=axis.groups * axis.hosts,
        unit_nodes=axis.unit_hosts,
        lost_s=axis.torn_s,
        steps=None if job.total_tokens is None else max(1, job.total_tokens // job.tokens_per_step),
    )


def _in_all(problem: Problem, layout: ParallelLayout, ranks: Mesh, estimate: Estimate) -> tuple[str, ...]:
    """What the order of nodes loses on all axes together, beside what every order of them does."""
    spec = problem.cluster.spec
    host = spec.nodes[0].gpus_per_node
    sizes, units = run_sizes(layout, host), units_of_hosts(spec)
    if any(node.gpus_per_node != host for node in spec.nodes) or not units:
        return ()
    lost_s = torn_seconds(problem.cluster.hierarchy, layout, estimate, units)
    order = np.asarray(ranks.gpu_of_rank)[::host] // host
    lost, least = lost_of(units, sizes, order, lost_s), least_lost(units, sizes, len(order), lost_s)
    if lost - least <= SHOWN_SHARE * estimate.step_time_s:
        return ()
    torn = [
        AXES[axis].label.lower()
        for axis, size in sizes.items()
        if axis in AXES and any(spanning(order, u, size) > least_spanning(u, size, len(order)) for u in units)
    ]
    in_all = (
        f"groups of unlike sizes are in each other's way: torn are those of {', '.join(torn)}, which lose"
    )
    bound = f"no order of nodes loses less than {format_seconds(least)}"
    return (f"{in_all} {format_seconds(lost)} a step; {bound}",)
