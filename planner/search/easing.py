"""The switch that would make a given layout fit: what is tight is told with what eases it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from costmodel.estimate import Estimate
from costmodel.memory.fit import fit_of, fit_text
from costmodel.updates.offload import Offload, host_path
from costmodel.updates.optimizers import USUAL
from planner.plan import RECOMPUTE_OF_STAGE, RECOMPUTED_LAYERS, Plan, PlanRequest, stack_of
from topology.base.errors import InputError
from topology.base.units import format_bytes, format_seconds

WITH = "enough memory is left free with "
"""How the note on the switch begins."""


Estimated = Callable[[PlanRequest], Estimate | None]
"""The estimate of the layout that a request pins; None where it breaks a rule."""


def with_easing_note(plan: Plan, estimated: Estimated) -> Plan:
    """The plan; where it is tight or does not fit, with a note on the fastest switch with which it fits."""
    if fit_of(plan.estimate.out_of_memory_chance) == "fits":
        return plan
    eased = [
        (estimate.step_time_s, flag, estimate)
        for flag, estimate in _eased(plan, estimated)
        if fit_of(estimate.out_of_memory_chance) == "fits"
    ]
    if not eased:
        return plan
    seconds, flag, e = min(eased, key=lambda row: row[:2])
    peak = f"{format_bytes(e.peak_memory_bytes)}, {fit_text(e.out_of_memory_chance)}"
    note = f"{WITH}{flag}: {peak}, {format_seconds(seconds)} a step"
    return replace(plan, assumptions=(note, *plan.assumptions))


def _eased(plan: Plan, estimated: Estimated) -> Iterator[tuple[str, Estimate]]:
    """Flags and estimates of the same layout with one thing changed; what cannot be is passed over."""
    for request, flag in _requests(plan):
        try:
            estimate = estimated(request)
        except InputError:
            continue
        if estimate is not None:
            yield flag, estimate


def _requests(plan: Plan) -> Iterator[tuple[PlanRequest, str]]:
    """Requests of one change: recomputation, sharding, sequence parallelism, the optimizer on the host."""
    request, x, can = plan.request, plan.layout, stack_of(plan.request).supports
    for policy in can.recomputes:
        if policy not in ("none", x.recompute):
            pins = {key: value for key, value in request.pins.items() if key != RECOMPUTE_OF_STAGE}
            whole = {RECOMPUTED_LAYERS: "all"} if policy == "full" else {}
            changed = {**pins, "recompute": policy, **whole}
            yield replace(request, pins=changed), f"--set layout.recompute={policy}"
    for stage in can.zero_stages_with_pipeline if x.pp > 1 else can.zero_stages:
        if stage > x.zero_stage and x.replicas > 1:
            yield (
                replace(request, pins={**request.pins, "zero_stage": stage}),
                f"--set layout.zero_stage={stage}",
            )
    if x.tp > 1 and not x.sequence_parallel:
        pins = {**request.pins, "sequence_parallel": True}
        yield replace(request, pins=pins), "--set layout.sequence_parallel=true"
    plain = request.job.optimizer == USUAL and request.job.adapter is None and request.job.offload is None
    if plain and host_path(request.cluster).memory_bytes_per_s is not None:
        job = replace(request.job, offload=Offload(optimizer=1.0))
        yield replace(request, job=job), "--offload optimizer"
