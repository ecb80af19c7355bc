"""Plans that keep a part of the state in host memory: the best share of it, and whether the hosts hold it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeVar

from costmodel.case import Workload
from costmodel.memory.stage import memory_by_stage
from costmodel.updates.offload import Offload, host_path
from planner.plan import Plan, PlanRequest, stack_of
from planner.search.pools.unlike_plan import plan_score
from topology.base.errors import InputError
from topology.base.units import GIB

Refusal = TypeVar("Refusal")


def best_of_shares(request: PlanRequest, search: Callable[[PlanRequest], Plan | Refusal]) -> Plan | Refusal:
    """The best plan over the shares of the optimizer's state that may be offloaded; the first of equals.

    Each share is searched as a job of its own, so the answer is proven where each of them is, or cannot be
    better. Shares that the hosts do not hold are left out.

    Args:
        request: what is asked, with `offload_shares`.
        search: answers a request whose share is said.
    """
    plans: list[Plan] = []
    refused: Refusal | InputError | None = None
    for share in request.offload_shares:
        try:
            answer = search(_with_share(request, share))
        except InputError as error:
            answer, refused = None, refused or error
        if isinstance(answer, Plan):
            plans.append(answer)
        elif answer is not None:
            refused = answer
    if plans:
        best = min(plans, key=plan_score)
        status = _status(best, plans)
        bound_s = best.optimality.bound_s
        if status != "proven":
            bound_s = min(plan.optimality.bound_s for plan in plans)
        gap = max(0.0, 1 - bound_s / best.estimate.step_time_s)
        return replace(best, optimality=replace(best.optimality, status=status, bound_s=bound_s, gap=gap))
    if isinstance(refused, InputError):
        raise refused
    if refused is None:
        raise ValueError("no share of an offload was asked for")
    return refused


def _with_share(request: PlanRequest, share: float) -> PlanRequest:
    """The question with this share said; nothing is offloaded where that was all."""
    asked = request.job.offload or Offload(optimizer=1.0)
    job = replace(request.job, offload=None)
    if share or asked.activations:
        job = replace(job, offload=replace(asked, optimizer=share))
    return replace(request, job=job, offload_shares=())


def _status(best: Plan, plans: list[Plan]) -> Literal["proven", "best-found", "given"]:
    """Proven where no share could hold anything better."""
    open_ = [plan for plan in plans if plan.optimality.status != "proven"]
    could = any(plan.optimality.bound_s < best.estimate.step_time_s for plan in open_)
    return "best-found" if could else best.optimality.status


def host_bytes(plan: Plan) -> float:
    """Bytes that a GPU of the fullest stage keeps in host memory: what it would hold more of without it."""
    request = plan.request
    job, stack = request.job, stack_of(request)
    if job.offload is None:
        return 0.0
    from planner.pricing import split_of

    layers = split_of(
        request.model, plan.layout, plan.layers_of_stage, plan.recompute_of_stage
    ).layers_of_stage
    recomputed = _recomputed(plan, layers)
    here, whole = (
        memory_by_stage(Workload(model=request.model, job=each, stack=stack), plan.layout, layers, recomputed)
        for each in (job, replace(job, offload=None))
    )
    return max(all_.allocated_bytes - part.allocated_bytes for all_, part in zip(whole, here, strict=True))


def _recomputed(plan: Plan, layers: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    """Recomputed layers of each run, the earliest runs first."""
    result = []
    for counts, recomputed in zip(layers, plan.recompute_of_stage, strict=True):
        left, mine = recomputed, []
        for count in counts:
            mine.append(min(count, left))
            left -= mine[-1]
        result.append(tuple(mine))
    return result


def with_offload_notes(plan: Plan) -> Plan:
    """The plan, told what of it waits in host memory; raises where a host does not hold it."""
    if plan.request.job.offload is None:
        return plan
    return replace(plan, assumptions=(*plan.assumptions, *offload_notes(plan)))


def offload_notes(plan: Plan) -> tuple[str, ...]:
    """What is offloaded in words; raises where a host does not hold it."""
    offload = plan.request.job.offload
    if offload is None:
        return ()
    each, path = host_bytes(plan), host_path(plan.request.cluster)
    nodes = plan.request.cluster.nodes  # that with least memory a GPU is the one that may not hold it
    gpus = min(nodes, key=lambda node: node.host_memory_bytes / node.gpus_per_node).gpus_per_node
    node = f"{each * gpus / GIB:,.0f} GiB of a node of {gpus} GPUs"
    if path.memory_bytes is not None and each > path.memory_bytes:
        raise InputError(
            what=f"host memory does not hold what --offload {offload.words} moves there",
            cause=f"{node} at least, and there are {path.memory_bytes * gpus / GIB:,.0f} GiB",
            fix="use more nodes, or a smaller share of the optimizer alone"
            if offload.parameters
            else "offload a smaller share, or shard the state: --set layout.zero_stage=1",
        )
    rate = f"copies at {path.link_bytes_per_s / 1e9:,.0f} GB/s each way"
    unknown = "" if path.memory_bytes is not None else "; how much host memory there is, is not known"
    return (f"{offload.words} waits in host memory: {node}, {rate}{unknown}",)
