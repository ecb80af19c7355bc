"""Costs of one layout before its layers are split over pipeline ranks: what the stage solver sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.layout import SCHEDULES, ParallelLayout, num_microbatches
from costmodel.memory.stage import (
    held_microbatches,
    holds_ends,
    memory_form,
)
from costmodel.models.spec import layer_order, layer_runs
from costmodel.pipeline.stage_costs import StageCosts
from costmodel.pipeline.stages import Order
from costmodel.training.constants import Constants
from costmodel.training.priced import Priced, price_layout
from topology.base.arrays import Vector


def stage_costs(case: Case, layout: ParallelLayout, *, constants: Constants | None = None) -> StageCosts:
    """Costs of one layout before its layers are split over pipeline ranks: what the stage solver sees."""
    runs = [run.count for run in layer_runs(case.model)]
    priced = price_layout(case, layout, constants=constants, hands_on=True)
    return stage_costs_of(
        priced, layout, case.job, runs, case.cluster.gpu.memory_bytes, layer_order(case.model)
    )


def stage_costs_of(
    priced: Priced,
    layout: ParallelLayout,
    job: TrainingJob,
    runs: Sequence[int],
    capacity_bytes: float,
    order: Order = (),
) -> StageCosts:
    """Costs of the only layout that was priced, as plain numbers."""
    costs, pieces, ranks = priced.costs, priced.pieces, range(layout.pp)
    form = memory_form(pieces)
    code, M = SCHEDULES.index(layout.schedule), num_microbatches(layout, job)
    ends = [tuple(float(flag) for flag in holds_ends(code, layout.pp, s)) for s in ranks]
    relief = _number(pieces.first_backward_relief)
    return StageCosts(
        runs=tuple(runs),
        layer_s=_numbers(costs.layer_s),
        recompute_s=_numbers(costs.recompute_s),
        static_bytes=tuple(map(_number, form.static_bytes)),
        saved_bytes=tuple(map(_number, form.saved_bytes)),
        saved_bytes_recomputed=tuple(map(_number, form.saved_bytes_recomputed)),
        fixed_s=tuple(_number(costs.every_s + f * costs.first_s + la * costs.last_s) for f, la in ends),
        fixed_static_bytes=tuple(_number(form.state_at(f, la)) for f, la in ends),
        fixed_activation_bytes=tuple(_number(form.activations_at(f, la)) for f, la in ends),
        in_flight=tuple(
            float(held_microbatches(relief, code, layout.pp, layout.virtual_stages, M, s)) for s in ranks
        ),
        working_bytes=_number(form.every_bytes),
        recompute_working_bytes=tuple(_number(form.recompute_working_at(la)) for _, la in ends),
        tail_layer_s=tuple(_numbers(form) for form in costs.tail_layer_s),
        tail_fixed_s=tuple(
            tuple(_number(f * first + la * last) for f, la in ends)
            for first, last in zip(costs.tail_first_s, costs.tail_last_s, strict=True)
        ),
        num_microbatches=M,
        bubble_weight=_number(costs.bubble_weight),
        forward_share=_number(costs.forward_share),
        weight_share=_number(costs.weight_share),
        constant_s=_number(costs.constant_s),
        capacity_bytes=capacity_bytes,
        order=order,
    )


def _number(value: object) -> float:
    """The only entry of a vector, or the number itself."""
    return float(np.asarray(value, dtype=np.float64).reshape(-1)[0])


def _numbers(rows: Vector) -> tuple[float, ...]:
    """First entry of every row."""
    return tuple(float(row[0]) for row in rows)
