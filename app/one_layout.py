"""One given layout as a plan: its stages are split as the planner would, its estimate is the cost model's.

Fields that were not pinned take the value a launch script would: dp fills the GPUs, sequence parallelism
follows the stack, several virtual stages mean the interleaved schedule.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from app.errors import NoFeasiblePlanError
from app.measured import calibration_for
from costmodel.chunks import layers_of_chunks, ranks_of_chunks
from costmodel.layout import ParallelLayout
from costmodel.model import layer_runs
from costmodel.splits import even_split
from costmodel.stack import SoftwareStack
from costmodel.stage_costs import StageSplit, step_time
from costmodel.training import estimate, stage_costs
from planner.plan import Optimality, Plan, PlanRequest, stack_of
from planner.rules import check
from planner.stages import solve_stages
from planner.violation import Violation
from topology.builders import build
from topology.errors import InputError
from topology.mesh import mesh


def plan_of_layout(request: PlanRequest) -> Plan:
    """The plan of the layout that the request pins; an illegal layout is an error, one too large is not."""
    started = time.monotonic()
    cluster, stack = build(request.cluster), stack_of(request)
    layout = complete_layout(request.pins, cluster.num_gpus, stack)
    violations = check(request.model, cluster, request.job, stack, layout)
    if violations:
        raise illegal(violations)
    cal = calibration_for(request.cluster)
    question = (request.model, cluster, request.job, stack, layout, cal)
    costs = stage_costs(*question)
    chunk_ranks = ranks_of_chunks(layout)
    solution = solve_stages(costs, chunk_ranks)
    split = solution.split or even_split([run.count for run in layer_runs(request.model)], layout)
    answer = estimate(*question, split)
    seconds = step_time(costs, split)
    return Plan(
        request=request,
        layout=layout,
        layers_of_stage=stage_layers(chunk_ranks, split),
        recompute_of_stage=split.recompute_of_stage,
        mesh=mesh([(axis, getattr(layout, axis)) for axis in layout.axis_order]),
        estimate=answer,
        alternatives=(),
        optimality=Optimality(
            status="proven",
            bound_s=min(solution.bound_s, seconds),
            gap=0.0,
            enumerated=1,
            pruned={},
            solved=1,
        ),
        search_time_s=time.monotonic() - started,
        idle_gpus=cluster.num_gpus - layout.num_gpus,
        assumptions=("one given layout: only its stages and recomputed layers were optimised",),
    )


def stage_layers(chunk_ranks: tuple[int, ...], split: StageSplit) -> tuple[int, ...]:
    """Layers of every virtual stage, in model order."""
    return layers_of_chunks(chunk_ranks, tuple(sum(row) for row in split.layers_of_stage))


def complete_layout(pins: Mapping[str, Any], num_gpus: int, stack: SoftwareStack) -> ParallelLayout:
    """Fill the fields that were not given.

    >>> from costmodel.stack import stack
    >>> complete_layout({"tp": 8, "pp": 2}, 32, stack("megatron-core")).dp
    2
    """
    fields: dict[str, Any] = dict(pins)
    others = fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)
    if "dp" not in fields:
        if num_gpus % others:
            raise InputError(
                what="the layout does not fill the GPUs",
                cause=f"tp·pp·cp = {others} does not divide {num_gpus} GPUs",
                fix="change a degree so that the product divides the GPUs, or set layout.dp yourself",
            )
        fields["dp"] = num_gpus // others
    if fields.get("virtual_stages", 1) > 1:
        fields.setdefault("schedule", "interleaved")
    fields.setdefault("sequence_parallel", stack.sequence_parallel_default and fields.get("tp", 1) > 1)
    return ParallelLayout(**fields)


def illegal(violations: tuple[Violation, ...]) -> NoFeasiblePlanError:
    """The error of a layout that breaks rules: the first in full, the others by name."""
    first, *others = violations
    more = f" (and {len(others)} more: {', '.join(v.rule for v in others)})" if others else ""
    return NoFeasiblePlanError(
        what=f"this layout is not possible: rule {first.rule}{more}", cause=first.message, fix=first.hint
    )
