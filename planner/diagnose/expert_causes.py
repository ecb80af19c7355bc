"""Causes of lost time between ranks that hold experts, and of axes that leave their node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.diagnose.classes import classes_of, computes, kernel_classes
from planner.diagnose.evidence import SLOWER_LEAST, finding_of, least_s
from planner.diagnose.record import RecordedJob
from planner.diagnose.repairs import Seen, scaled_by_rank
from planner.traces.events import Events
from topology.base.units import format_seconds

INSIDE: Final = ("tp", "cp", "ep", "expert_tp")
"""Axes whose traffic is that of layers: links within a node carry it several times faster than NICs."""
DISPATCHED: Final = ("deep_ep", "hybrid_ep", "nvshmem", "mscclpp")
"""Words in kernels that send tokens by themselves."""


def _of_experts(events: Events) -> NDArray[np.bool_]:
    chosen: NDArray[np.bool_] = classes_of(events) == kernel_classes().index("experts")
    return events.of("kernel") & chosen


def _busy_s(job: RecordedJob) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds a step of experts' kernels, and of all others that compute, by rank."""
    experts, rest = dict[int, float](), dict[int, float]()
    for rank, line in job.timelines.items():
        events = line.trace.events
        of_experts = _of_experts(events)
        experts[rank] = float(events.duration_s[of_experts].sum()) / job.steps
        rest[rank] = float(events.duration_s[computes(events) & ~of_experts].sum()) / job.steps
    return experts, rest


def imbalance(job: RecordedJob) -> tuple[int, float, dict[int, float]] | None:
    """The rank whose experts have the most tokens, what it costs a step, and seconds of experts by rank.

    Experts of other ranks of its stage are done earlier, and all else takes as long there: it is not the GPU.
    """
    degree, stride = job.layout.degrees.get("pp", 1), job.layout.strides.get("pp", 0)
    experts, rest = _busy_s(job)
    worst = max(experts, key=lambda rank: experts[rank])
    alike = [
        rank
        for rank in experts
        if degree == 1 or not stride or rank // stride % degree == worst // stride % degree
    ]
    if len(alike) < 2:
        return None
    others = [rank for rank in alike if rank != worst]
    excess = experts[worst] - float(np.mean([experts[rank] for rank in alike]))
    same = rest[worst] < SLOWER_LEAST * max(float(np.median([rest[rank] for rank in others])), 1e-12)
    if excess < least_s(job) or not same:
        return None
    return worst, excess, {rank: experts[rank] for rank in alike}


def _router(job: RecordedJob) -> Iterator[Seen]:
    """Experts of one rank work longer than those of the others."""
    seen = imbalance(job)
    if seen is not None:
        worst, excess, experts = seen
        mean = float(np.mean([*experts.values()]))
        evidence = (
            f"experts of rank {worst} compute {format_seconds(experts[worst])} of a step and the mean rank "
            f"{format_seconds(mean)}; all else takes as long there"
        )
        factors = {rank: mean / spent for rank, spent in experts.items() if spent}
        yield (
            finding_of(job, "router imbalance", excess, evidence, worst),
            scaled_by_rank(job, _of_experts, factors),
        )


def _dispatcher(job: RecordedJob) -> Iterator[Seen]:
    """Tokens are dispatched by NCCL's all-to-all, and nothing computes meanwhile."""
    cost = job.mean_part("exposed communication ep")
    names = {name for trace in job.traces for name in trace.events.names}
    if "ep" not in job.layout.degrees or any(word in name for name in names for word in DISPATCHED):
        return
    if cost >= least_s(job):
        calls = sum(
            job.layout.axis_of.get(tuple(sorted(call.group))) == "ep"
            for of in job.calls.values()
            for call in of
        )
        each = calls / len(job.calls) / job.steps
        evidence = (
            f"{each:,.0f} transfers a step by NCCL among ranks of an expert group, of which "
            f"{format_seconds(cost)} run while nothing computes"
        )
        yield finding_of(job, "dispatcher backend", cost, evidence), None


def _across_nodes(job: RecordedJob) -> Iterator[Seen]:
    """A group of an axis of layers has ranks of several nodes."""
    devices = min((trace.devices for trace in job.traces), default=0)
    if not 0 < devices < job.layout.world_size:
        return
    for axis in INSIDE:
        groups = [ranks for ranks, name in job.layout.axis_of.items() if name == axis]
        leaving = [ranks for ranks in groups if len({rank // devices for rank in ranks}) > 1]
        cost = job.mean_part(f"exposed communication {axis}")
        if leaving and len(leaving) == len(groups) and cost >= least_s(job):
            nodes = len({rank // devices for rank in leaving[0]})
            evidence = (
                f"ranks of a {axis} group of {len(leaving[0])} are on {nodes} nodes of {devices} GPUs, and "
                f"{format_seconds(cost)} of its communication run while nothing computes"
            )
            finding = finding_of(job, "axis across nodes", cost, evidence, axis=axis, devices=devices)
            yield finding, None


EXPERT_RULES: Final = (_router, _dispatcher, _across_nodes)
"""Each looks for one kind of cause."""
