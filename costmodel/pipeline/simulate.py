"""The best plans timed once more by playing their schedule, event by event.

The search compares layouts by a closed form of the step; this plays every pass of every microbatch on every
rank. Past the fill of the pipeline each further microbatch takes as long as the slowest rank, so long steps
are played for a few rounds and continued at that pace, or at that of the last round where a schedule stalls.
"""

from __future__ import annotations

from costmodel.layout import ParallelLayout
from costmodel.pipeline.schedules import RECORDS
from costmodel.pipeline.simulator import StageSeconds, step_ends
from costmodel.pipeline.stage_costs import (
    AnyStages,
    StageSplit,
    UnlikeStages,
    microbatch_seconds,
    recomputed_layers,
    step_time,
    tail_seconds,
)
from costmodel.pipeline.stages import chunks_of_rank, ranks_of_chunks

SIMULATED_ROUNDS = 3
"""Microbatches played, in multiples of the ranks: one round fills, one is steady, one drains."""


def simulated_step_s(costs: AnyStages, layout: ParallelLayout, split: StageSplit) -> float:
    """Seconds of one step by event simulation, gradients, optimizer and sends as in the closed form.

    Args:
        costs: what layers and ranks cost.
        layout: pp, virtual_stages and schedule are read.
        split: layers and recomputed layers of every rank.
    """
    if layout.pp == 1:
        return step_time(costs, split)
    M = costs.num_microbatches
    played = min(M, SIMULATED_ROUNDS * layout.pp)
    slowest = float(microbatch_seconds(costs, split).max())
    record, chunks = RECORDS[layout.schedule], chunk_seconds(costs, layout, split)
    ends = step_ends(layout, played, chunks)
    played_s = ends.span_s if record.runs_over else ends.makespan_s
    if record.may_stall and played < M:
        before_s = step_ends(layout, played - layout.pp, chunks).makespan_s
        slowest = max(slowest, (played_s - before_s) / layout.pp)
    tail_s = float(tail_seconds(costs, split).max())
    return played_s + (M - played) * slowest + tail_s + costs.constant_s


def chunk_seconds(costs: AnyStages, layout: ParallelLayout, split: StageSplit) -> StageSeconds:
    """Forward, input-gradient and weight-gradient seconds of every virtual stage, in model order.

    Recomputation lengthens the half of the backward that the previous stage waits for. A rank's seconds are
    shared by its chunks in proportion to their layers.
    """
    if isinstance(costs, UnlikeStages):
        kinds = [chunk_seconds(kind, layout, split) for kind in costs.kinds]
        stages = list(enumerate(costs.kind_of_stage))
        return StageSeconds(
            forward_s=tuple(kinds[kind].forward_s[stage] for stage, kind in stages),
            input_s=tuple(kinds[kind].input_s[stage] for stage, kind in stages),
            weight_s=tuple(kinds[kind].weight_s[stage] for stage, kind in stages),
        )
    recomputed = recomputed_layers(costs, split) @ costs.recompute_s
    whole = microbatch_seconds(costs, split) - recomputed
    owners = ranks_of_chunks(layout)
    layers = split.chunk_layers(owners)
    held = {rank: sum(layers[chunk] for chunk in chunks_of_rank(owners, rank)) for rank in range(layout.pp)}
    shares = [(rank, layers[chunk] / max(1, held[rank])) for chunk, rank in enumerate(owners)]
    F, W = costs.forward_share, costs.weight_share
    return StageSeconds(
        forward_s=tuple(float(whole[rank]) * F * share for rank, share in shares),
        input_s=tuple(float(whole[rank] * (1 - F - W) + recomputed[rank]) * share for rank, share in shares),
        weight_s=tuple(float(whole[rank]) * W * share for rank, share in shares),
    )
