"""One given layout as a plan: its stages are split as the planner would, its estimate is the cost model's.

Fields that were not pinned take the value a launch script would: dp fills the GPUs, ZeRO and sequence
parallelism follow the stack, several virtual stages mean the interleaved schedule, and layers are recomputed
only as far as memory asks for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodel.kernels.tables import Calibration
from costmodel.layout import AXIS_FIELDS, ParallelLayout
from costmodel.models.spec import layer_order, layer_runs
from costmodel.parallel.axes import RANK_AXES
from costmodel.pipeline.even_split import even_split
from costmodel.pipeline.schedules import usual_schedule
from costmodel.pipeline.simulate import simulated_step_s
from costmodel.pipeline.stage_costs import StageCosts, StageSplit, step_time
from costmodel.pipeline.stages import layers_of_chunks, ranks_of_chunks
from costmodel.stack import SoftwareStack
from costmodel.training.estimate import estimate
from costmodel.training.stages import stage_costs
from planner.bounds.objective import goal_of
from planner.engines.contracts import recomputes_of
from planner.placement.cost import placement_words
from planner.placement.nodes import place
from planner.plan import Optimality, Plan, PlanRequest, Recomputes
from planner.problem import setting_of
from planner.rules.check import check, parse_pins
from planner.rules.rule import Violation
from planner.search.candidates import decidable, named, recomputed_whole
from planner.search.offloaded import with_offload_notes
from planner.search.origin import origin_of
from planner.search.pools.pool import best_part
from planner.search.search import pin_notes
from planner.stages.integer_program import StageSolution, solve_stages
from topology.base.errors import InputError
from topology.pools.kinds import kinds_of


def plan_of_layout(request: PlanRequest, cal: Calibration) -> Plan | tuple[Violation, ...]:
    """The plan of the layout that the request pins, even one too large; or the rules that it breaks.

    Where nodes differ, it runs on the kinds of node on which its step is shortest, if it says how many GPUs.
    """
    if len(kinds_of(request.cluster)) == 1 or "dp" not in request.pins:
        return _on_all(request, cal)
    return best_part(request, lambda part: _on_all(part, cal))


def _on_all(request: PlanRequest, cal: Calibration) -> Plan | tuple[Violation, ...]:
    """The plan of the layout on a cluster whose GPUs are all planned for alike."""
    started = time.monotonic()
    setting = setting_of(request)
    cluster, stack = setting.cluster, setting.stack
    asked = complete_layout(request.pins, cluster.num_gpus, stack)
    violations = check(request.model, cluster, request.job, stack, asked, engine=setting.engine)
    if violations:
        return violations
    rented = asked.num_gpus if goal_of(request).rents_what_it_uses else None
    given = setting.recomputed_layers if asked.recompute == "full" else None
    costs = stage_costs(request.model, cluster, request.job, stack, asked, cal)
    deciding = decidable(costs, asked, every_layer=given is not None)
    costs = deciding if given is None else costs
    chunk_ranks = ranks_of_chunks(asked)
    solution = _solution(deciding, chunk_ranks, setting.memory_budget_bytes, recomputes_of(setting.engine))
    runs = [run.count for run in layer_runs(request.model)]
    split = solution.split or even_split(runs, asked, layer_order(request.model), request.job.mtp_layers)
    if given is not None:
        split = recomputed_whole(split, None if given == "all" else given)
    layout = named(asked, split)
    answer = estimate(request.model, cluster, request.job, stack, layout, cal, split, paid_gpus=rented)
    seconds = step_time(costs, split)
    ranks = place(setting, layout, answer)
    plan = Plan(
        request=request,
        layout=layout,
        layers_of_stage=virtual_stage_layers(chunk_ranks, split),
        recompute_of_stage=split.recompute_of_stage,
        mesh=ranks,
        estimate=answer,
        alternatives=(),
        optimality=Optimality(
            status="best-found" if solution.status == "best-found" else "proven",
            bound_s=min(solution.bound_s, seconds),
            gap=max(0.0, 1 - solution.bound_s / seconds),
            enumerated=1,
            pruned={},
            solved=1,
        ),
        search_time_s=time.monotonic() - started,
        idle_gpus=cluster.num_gpus - layout.num_gpus,
        simulated_s=simulated_step_s(costs, layout, split),
        assumptions=(
            "one given layout: only its stages and recomputed layers were optimised",
            *_filled(request.pins, layout),
            *pin_notes(request.pins, request.model.num_layers, sum(split.recompute_of_stage)),
            *answer.assumptions,
            *placement_words(setting, layout, ranks, answer),
        ),
        provenance=answer.provenance,
        origin=origin_of(request, cal),
    )
    return with_offload_notes(plan)


def _solution(
    costs: StageCosts, chunk_ranks: tuple[int, ...], budget_bytes: float, told: Recomputes
) -> StageSolution:
    """The best split within the memory that a plan may fill, else within all there is."""
    kept = solve_stages(replace(costs, capacity_bytes=budget_bytes), chunk_ranks, recomputes=told)
    return kept if kept.split is not None else solve_stages(costs, chunk_ranks, recomputes=told)


def _filled(pins: Mapping[str, Any], layout: ParallelLayout) -> tuple[str, ...]:
    """Say which values that matter were not given."""
    names = ("dp", "zero_stage", "schedule", "microbatch_size")
    chosen = [f"{name} {getattr(layout, name)}" for name in names if name not in pins]
    return (f"not given, so as a launch script would have it: {', '.join(chosen)}",) if chosen else ()


def virtual_stage_layers(chunk_ranks: tuple[int, ...], split: StageSplit) -> tuple[int, ...]:
    """Layers of every virtual stage, in model order."""
    return layers_of_chunks(chunk_ranks, tuple(sum(row) for row in split.layers_of_stage))


def complete_layout(pins: Mapping[str, Any], num_gpus: int, stack: SoftwareStack) -> ParallelLayout:
    """Fill the fields that were not given; layers are recomputed as memory asks for, or as the setting says.

    >>> from costmodel.stack import stack
    >>> complete_layout({"tp": 8, "pp": 2}, 32, stack("megatron-core")).dp
    2
    """
    fields: dict[str, Any] = parse_pins(pins)
    names = [name for name in AXIS_FIELDS if name in RANK_AXES and name != "dp"]
    others = math.prod(fields.get(name, 1) for name in names)
    if "dp" not in fields:
        if num_gpus % others:
            raise InputError(
                what="the layout does not fill the GPUs",
                cause=f"{'·'.join(names)} = {others} does not divide {num_gpus} GPUs",
                fix="change a degree so that the product divides the GPUs, or set layout.dp yourself",
            )
        fields["dp"] = num_gpus // others
    fields.setdefault("schedule", usual_schedule(fields.get("virtual_stages", 1)))
    fields.setdefault(
        "sequence_parallel", stack.supports.sequence_parallel_default and fields.get("tp", 1) > 1
    )
    fields.setdefault("zero_stage", _usual_zero_stage(fields, stack))
    fields.setdefault("recompute", "full" if "full" in stack.supports.recomputes else "none")
    return ParallelLayout(**fields)


def _usual_zero_stage(fields: Mapping[str, Any], stack: SoftwareStack) -> int:
    """A distributed optimizer where the stack has one, else all its sharding; none without replicas."""
    offered = (
        stack.supports.zero_stages_with_pipeline if fields.get("pp", 1) > 1 else stack.supports.zero_stages
    )
    if fields["dp"] * fields.get("cp", 1) == 1:
        return min(offered)
    return 1 if 1 in offered else max(offered)
