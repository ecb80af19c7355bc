"""One given layout as a plan: it is held as it is given, its estimate is the cost model's.

Fields that were not pinned take the value a launch script would: dp fills the GPUs, ZeRO and sequence
parallelism follow the stack, several virtual stages mean the interleaved schedule, stages are filled as the
engine fills them, and no layer is recomputed. Only ``layers_of_stage=auto`` has the planner split the layers.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from costmodel.estimate import Estimate
from costmodel.kernels.tables import Calibration
from costmodel.layout import AXIS_FIELDS, LayoutTable, ParallelLayout
from costmodel.models.spec import layer_order, layer_runs
from costmodel.parallel.axes import RANK_AXES
from costmodel.parallel.divisions import RANKS
from costmodel.pipeline.even_split import even_split
from costmodel.pipeline.schedules import usual_schedule
from costmodel.pipeline.simulate import simulated_step_s
from costmodel.pipeline.stage_costs import StageSplit
from costmodel.pipeline.stages import ranks_of_chunks
from costmodel.stack import SoftwareStack
from costmodel.training.estimate import estimate, estimate_and_costs
from costmodel.training.stages import stage_costs
from planner.bounds.priced import priced_columns
from planner.campaign.rental import paid_gpus_of
from planner.engines.contracts import CONTRACTS
from planner.law import Violation
from planner.placement.cost import placement_words
from planner.placement.nodes import place_on_nodes
from planner.plan import (
    FREE,
    LAYERS_OF_STAGE,
    RECOMPUTE_OF_STAGE,
    Optimality,
    Plan,
    PlanRequest,
    Problem,
    problem_of,
)
from planner.rules.check import check, parse_pins
from planner.search.candidates import candidate, decide, named, recomputed_whole, settled_by_bound
from planner.search.easing import with_easing_note
from planner.search.held_split import held_layers, held_split, is_optimised, layers_text
from planner.search.offloaded import with_offload_notes
from planner.search.origin import origin_of
from planner.search.pools.pool import best_part
from planner.search.search import pin_notes
from planner.stages.cpsat import STOPPED_BY_CLOCK
from topology.base.errors import InputError
from topology.pools.kinds import kinds_of


def plan_of_layout(request: PlanRequest, cal: Calibration) -> Plan | tuple[Violation, ...]:
    """The plan of the layout that the request pins, even one too large; or the rules that it breaks.

    Where nodes differ, it runs on the kinds of node on which its step is shortest, if it says how many GPUs.
    """
    if len(kinds_of(request.cluster)) > 1 and "dp" in request.pins:
        return best_part(request, lambda part: _on_all(part, cal))
    on_all = _on_all(request, cal)
    return (
        with_easing_note(on_all, lambda other: _estimate_of(other, cal))
        if isinstance(on_all, Plan)
        else on_all
    )


def _estimate_of(request: PlanRequest, cal: Calibration) -> Estimate | None:
    """The estimate of the layout of a request on GPUs planned for alike; None where a rule breaks."""
    pins = request.pins
    s, asked, violations = _asked(request, cal)
    if violations:
        return None
    split = _optimised(s, asked) if is_optimised(pins) else _held(s, asked, pins)
    if isinstance(split, Violation):
        return None
    filled = split[0]
    return estimate(s.case, named(asked, filled), filled)


def _on_all(request: PlanRequest, cal: Calibration) -> Plan | tuple[Violation, ...]:
    """The plan of the layout on a cluster whose GPUs are all planned for alike."""
    started = time.monotonic()
    pins = request.pins
    s, asked, violations = _asked(request, cal)
    if violations:
        return violations
    split = _optimised(s, asked) if is_optimised(pins) else _held(s, asked, pins)
    if isinstance(split, Violation):
        return (split,)
    filled, bound_s, status, notes = split
    layout = named(asked, filled)
    rented = paid_gpus_of(request, asked)
    answer, costs = estimate_and_costs(s.case, layout, filled, paid_gpus=rented)
    seconds, ranks = answer.step_time_s, place_on_nodes(s, layout, answer)
    plan = Plan(
        request=request,
        layout=layout,
        layers_of_stage=filled.chunk_layers(ranks_of_chunks(layout)),
        recompute_of_stage=filled.recompute_of_stage,
        mesh=ranks,
        estimate=answer,
        alternatives=(),
        optimality=Optimality(
            status=status,
            bound_s=min(bound_s, seconds),
            gap=max(0.0, 1 - bound_s / seconds),
            enumerated=1,
            pruned={},
            solved=1,
        ),
        search_time_s=time.monotonic() - started,
        idle_gpus=s.cluster.num_gpus - layout.num_gpus,
        simulated_s=simulated_step_s(costs, layout, filled),
        assumptions=(
            *_split_words(s, pins, filled, layout),
            *_filled(pins, layout),
            *notes,
            *pin_notes(pins, s.model.num_layers, sum(filled.recompute_of_stage)),
            *answer.assumptions,
            *placement_words(s, layout, ranks, answer),
        ),
        provenance=answer.provenance,
        origin=origin_of(request, cal),
    )
    return with_offload_notes(plan)


def _asked(request: PlanRequest, cal: Calibration) -> tuple[Problem, ParallelLayout, tuple[Violation, ...]]:
    """The problem of a request, the layout that its pins name, and the rules that it breaks."""
    s = problem_of(request, cal)
    return s, *_legal(s, complete_layout(request.pins, s.cluster.num_gpus, s.stack), request.pins)


def _legal(
    s: Problem, usual: ParallelLayout, pins: Mapping[str, Any]
) -> tuple[ParallelLayout, tuple[Violation, ...]]:
    """The usual layout, or the first that its stack can run with other values of fields that were not given.

    Where none is legal, the usual one with the rules that it breaks.
    """
    violations = check(s, usual)
    if not violations:
        return usual, ()
    can = s.stack.supports
    stages = can.zero_stages_with_pipeline if usual.pp > 1 else can.zero_stages
    choices: dict[str, tuple[Any, ...]] = {
        "zero_stage": (usual.zero_stage, *sorted(set(stages) - {usual.zero_stage}, reverse=True)),
        "sequence_parallel": (usual.sequence_parallel, usual.tp > 1 and not usual.sequence_parallel),
        "cp_kind": can.cp_kinds if usual.cp > 1 else (usual.cp_kind,),
    }
    open_ = {name: values for name, values in choices.items() if name not in pins}
    for values in itertools.product(*open_.values()):
        other = replace(usual, **dict(zip(open_, values, strict=True)))
        if not check(s, other):
            return other, ()
    return usual, violations


Filled = tuple[StageSplit, float, Literal["proven", "best-found", "given"], tuple[str, ...]]
"""A split, a step that no split of the layout beats (none of a split that is held), what is proven, notes."""


def _held(s: Problem, x: ParallelLayout, pins: Mapping[str, Any]) -> Filled | Violation:
    """The stages as they are given, or as the engine fills them; nothing is optimised."""
    layers = held_layers(s, x, pins)
    if isinstance(layers, Violation):
        return layers
    costs = stage_costs(s.case, x)
    return held_split(s, x, pins, layers, costs), math.inf, "given", ()


def _optimised(s: Problem, x: ParallelLayout) -> Filled:
    """The best split within the memory that a plan may fill, else within all there is, else an even one."""
    given = s.recomputed_layers if x.recompute == "full" else None
    most = given if isinstance(given, int) else None
    asked = s if most is None else replace(s, recomputed_layers="all")
    for within in (asked, replace(asked, memory_headroom=0.0)):
        result = candidate(within, priced_columns(within, LayoutTable.from_rows([x])), 0)
        if math.isinf(result.known.bound_s):  # no split fits
            continue
        solution = settled_by_bound(result) or decide(result, math.inf)
        if solution.split is not None:
            split = solution.split if most is None else recomputed_whole(solution.split, most)
            notes = (STOPPED_BY_CLOCK,) if solution.by_clock else ()
            is_open = solution.status == "best-found"
            return split, solution.bound_s, "best-found" if is_open else "proven", notes
    runs = [run.count for run in layer_runs(s.model)]
    split = even_split(runs, x, layer_order(s.model), s.job.mtp_layers)
    return (split if most is None else recomputed_whole(split, most)), math.inf, "given", ()


def _split_words(
    s: Problem, pins: Mapping[str, Any], split: StageSplit, layout: ParallelLayout
) -> tuple[str, ...]:
    """What decided the layers of the stages."""
    if is_optimised(pins):
        return ("one given layout: only its stages and recomputed layers were optimised",)
    if pins.get(LAYERS_OF_STAGE) is not None:
        return ("one given layout, held as it is: its stages and recomputed layers are not optimised",)
    layers = split.chunk_layers(ranks_of_chunks(layout))
    engine = CONTRACTS[s.engine].title if s.engine != FREE else "an even split"
    words = f"one given layout, held as it is: layers of stages as {engine} has them"
    return (words if len(set(layers)) == 1 else f"{words}, {layers_text(layers)}",)


def _filled(pins: Mapping[str, Any], layout: ParallelLayout) -> tuple[str, ...]:
    """Say which values that matter were not given."""
    names = ("dp", "zero_stage", "schedule", "microbatch_size")
    chosen = [f"{name} {getattr(layout, name)}" for name in names if name not in pins]
    return (f"not given, so as a launch script would have it: {', '.join(chosen)}",) if chosen else ()


def complete_layout(pins: Mapping[str, Any], num_gpus: int, stack: SoftwareStack) -> ParallelLayout:
    """Fill the fields that were not given; no layer is recomputed but where that is asked for.

    >>> from costmodel.stack import stack
    >>> complete_layout({"tp": 8, "pp": 2}, 32, stack("megatron-core")).dp
    2
    """
    fields: dict[str, Any] = parse_pins(pins)
    names = [name for name in AXIS_FIELDS if name in RANK_AXES and name != "dp"]
    others = math.prod(fields.get(name, 1) for name in names)
    if "dp" not in fields:
        if RANKS.rest(num_gpus, others):
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
    fields.setdefault("recompute", "full" if any(pins.get(RECOMPUTE_OF_STAGE) or ()) else "none")
    return ParallelLayout(**fields)


def _usual_zero_stage(fields: Mapping[str, Any], stack: SoftwareStack) -> int:
    """A distributed optimizer where the stack has one, else all its sharding; none without replicas."""
    offered = (
        stack.supports.zero_stages_with_pipeline if fields.get("pp", 1) > 1 else stack.supports.zero_stages
    )
    if fields["dp"] * fields.get("cp", 1) == 1:
        return min(offered)
    return 1 if 1 in offered else max(offered)
