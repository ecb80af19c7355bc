"""Admissible bounds of combinations, placements and pipelines: what none of their variants can beat.

A *combination* is bounded by the compute of its shard and by its collectives on the best placement any
order of axes could give them, under the stack's smallest bubble; a *placement* and a *pipeline* by their own.
Nothing here is a guess: raising any bound above the truth would break "proven". Variants are bounded rank by
rank in `planner.bounds.ranks`.

Legend: ``P`` pipeline ranks, ``M`` microbatches, ``L`` layers, ``t`` seconds of a microbatch on a rank,
    ``β`` bubble.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from costmodel.case import Workload
from costmodel.kernels.collectives import OPS
from costmodel.layout import (
    AXIS_ORDERS,
    CP_KINDS,
    PLAIN_SCHEDULE,
    RECOMPUTES,
    SCHEDULES,
    LayoutTable,
    num_microbatches,
)
from costmodel.memory.stage import memory_form, memory_pieces
from costmodel.models.parameters import active_parameter_count, embedding_parameters
from costmodel.models.spec import decoder_of, layer_runs
from costmodel.ops.shards import distinct_rows
from costmodel.parallel.axes import LAYER_AXES, RANK_AXES
from costmodel.pipeline.schedules import column
from costmodel.stack import SoftwareStack
from costmodel.training.constants import default_constants
from costmodel.training.raw_times import features_of
from costmodel.training.step_time import compose, step_stretch
from planner.plan import Problem
from planner.space.columns import Draft, Integers
from planner.space.unfold import schedules
from topology.base.arrays import Vector
from topology.base.columns import Columns

ROUNDING = 1e-9
"""Relative slack of every comparison between a bound and an incumbent: far above float error."""

TRAINING_FLOP_PER_PARAMETER = 6
"""Forward 2 and backward 4 multiply-adds' flop per parameter and token: no kernel runs above the peak."""

_TP_INNERMOST = AXIS_ORDERS.index(("pp", "dp", "cp", "tp"))
_CP_INNERMOST = AXIS_ORDERS.index(("pp", "dp", "tp", "cp"))
_PAIRS_MICROBATCHES = column(lambda schedule: schedule.pairs_microbatches)
_CLOSED_FORM_BUBBLE = column(lambda schedule: schedule.bubble is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchTimes(Columns):
    """Least seconds of a microbatch, of the whole model and of its cheapest layer, on one node."""

    total_s: Vector
    layer_s: Vector


def step_bound(
    problem: Problem, times: MicrobatchTimes, degrees: Mapping[str, Any], microbatches: Any, beta: Any
) -> Vector:
    """Seconds that no step of these microbatches can beat, by the mean rank and by whole layers.

    (M − β)·max(total/P, ⌈L/P⌉·layer) + β·total, stretched by the number of nodes. Arguments broadcast.

    Args:
        problem: what is asked.
        times: least seconds of a microbatch.
        degrees: tp, cp, pp, dp.
        microbatches: M.
        beta: share of the fill-and-drain time that shows.
    """
    gpus = math.prod(degrees[axis] for axis in RANK_AXES)
    nodes = np.maximum(1.0, gpus / problem.cluster.hierarchy.gpus_per_node)
    stretch = step_stretch(nodes, problem.stack.level, default_constants())
    whole = np.ceil(problem.model.num_layers / degrees["pp"]) * times.layer_s
    slowest = np.maximum(times.total_s / degrees["pp"], whole)
    return np.asarray(stretch * ((microbatches - beta) * slowest + beta * times.total_s) * (1 - ROUNDING))


def least_gpus(problem: Problem, step_s: float) -> float:
    """GPUs below which even the peak flop/s, at the level of the user's own runs, takes longer than a step.

    G ≥ level · products · 6 · parameters · tokens / (peak · step), the products of parameters alone.
    """
    decoder = decoder_of(problem.model)
    parameters = active_parameter_count(decoder) - embedding_parameters(decoder)
    flop = TRAINING_FLOP_PER_PARAMETER * parameters * problem.job.tokens_per_step
    fastest = max(problem.cluster.gpu.peak_flop_per_s.values())
    measured = problem.stack.measured
    slower = 1.0 if measured is None else measured.level * measured.products
    return slower * flop / (fastest * step_s)


def compute_times(problem: Problem, shards: LayoutTable) -> MicrobatchTimes:
    """Least seconds of a microbatch per shard if collectives were free: what compute alone takes.

    Kernels differ by how context is exchanged (a ring computes in chunks), so every exchange is tried.
    """
    return _times(problem, *compute_seconds(problem, shards))


def compute_seconds(problem: Problem, shards: LayoutTable) -> tuple[Vector, Vector]:
    """Seconds of a microbatch of `compute_times` per layer of each run, and of both ends."""
    alone = replace(shards, dp=np.maximum(1, problem.job.global_batch_size // shards.microbatch_size))
    return _best_seconds(problem, alone, transfers=False)


def best_placement_times(problem: Problem, table: LayoutTable) -> MicrobatchTimes:
    """Least seconds of a microbatch per combination with its collectives on the best placement.

    Priced once per distinct shard, without data parallelism, under the two orders that put tensor or context
    ranks next to each other; every other order only spreads one of them further. On a fabric where that may
    be faster (`neighbours_are_best`) collectives are free.
    """
    return _times(problem, *best_placement_seconds(problem, table))


def best_placement_seconds(problem: Problem, table: LayoutTable) -> tuple[Vector, Vector]:
    """Seconds of a microbatch of `best_placement_times` per layer of each run, and of both ends."""
    single = num_microbatches(table, problem.job) == 1
    replicas = np.where(single, table.dp, _fewest_replicas(table))
    keys = [*(getattr(table, axis) for axis in LAYER_AXES), table.microbatch_size, replicas]
    first, shard_of = distinct_rows([*keys, table.sequence_parallel.astype(np.int64)])
    shards = replace(table.take(first), dp=replicas[first])
    transfers = neighbours_are_best(problem)
    layers, outer = _best_seconds(problem, shards, transfers=transfers)
    return layers[:, shard_of], outer[shard_of]


def neighbours_are_best(problem: Problem) -> bool:
    """Whether no group is faster for being spread: equal links inside a domain, ever thinner ones beyond it.

    Hosts on PCIe or bridged pairs may be slower inside than their NICs are, and a user's own measurements of
    collectives on such GPUs may say anything.
    """
    h = problem.cluster.hierarchy
    rates = [h.scaleup.bandwidth_bytes_per_s, *(level.uplink_bytes_per_s for level in h.levels)]
    equal_inside = h.scaleup.kind == "nvswitch" and all(x.unit_gpus >= h.gpus_per_node for x in h.levels)
    return (
        h.symmetric
        and equal_inside
        and rates == sorted(rates, reverse=True)
        and not any(problem.case.cal.measured(op, h.gpu) for op in OPS)
    )


def placed_times(problem: Problem, placed: LayoutTable) -> MicrobatchTimes:
    """Least seconds of a microbatch under each placement: sharding of state and schedules can only add."""
    s, none = problem, np.zeros(len(placed), dtype=np.int64)
    table = replace(
        placed,
        zero_stage=none,
        shard_degree=placed.replicas,
        recompute=none,
        schedule=np.full(len(placed), _kindest_schedule(s)),
    )
    times = features_of(replace(s.case, stack=_kindest(s.stack)), table, exchanges=False)
    costs = compose(times, default_constants())
    return _times(problem, costs.layer_s / costs.stretch, (costs.first_s + costs.last_s) / costs.stretch)


def _times(problem: Problem, layers: Vector, outer: Vector) -> MicrobatchTimes:
    counts = np.array([run.count for run in layer_runs(problem.model)], dtype=np.float64)
    return MicrobatchTimes(total_s=counts @ layers + outer, layer_s=layers.min(axis=0))


def degrees_of(table: LayoutTable) -> dict[str, npt.NDArray[np.int64]]:
    """Degrees of a table by name."""
    return {axis: getattr(table, axis) for axis in RANK_AXES}


def least_bubble(table: LayoutTable) -> Vector:
    """Least share of the fill-and-drain time that each layout's own schedule can leave."""
    return _bubble_share(table.schedule, table.pp, table.virtual_stages)


def _bubble_share(schedule: Integers, pp: Integers, virtual_stages: Integers) -> Vector:
    """Least share of the fill-and-drain time: none where a schedule has its own closed form, else 1/V."""
    share = np.where(_CLOSED_FORM_BUBBLE[schedule], 0.0, 1 / virtual_stages)
    return np.asarray(np.where(pp > 1, share, 0.0))


def _best_seconds(problem: Problem, shards: LayoutTable, *, transfers: bool) -> tuple[Vector, Vector]:
    """Seconds of a microbatch per layer of each run, and of both ends, at best over exchanges and orders.

    Without context parallelism there is one exchange; inside a node, with one of the two axes, or if
    transfers are free, one order.
    """
    layers, outer = np.empty((len(layer_runs(problem.model)), len(shards))), np.empty(len(shards))
    far = transfers & (shards.tp > 1) & (shards.tp * shards.cp > problem.cluster.hierarchy.gpus_per_host)
    kinds = [CP_KINDS.index(kind) for kind in problem.stack.supports.cp_kinds]
    groups = [
        (np.flatnonzero(shards.cp == 1), [(0, _TP_INNERMOST)]),
        (np.flatnonzero((shards.cp > 1) & ~far), [(kind, _TP_INNERMOST) for kind in kinds]),
        (
            np.flatnonzero((shards.cp > 1) & far),
            list(itertools.product(kinds, (_TP_INNERMOST, _CP_INNERMOST))),
        ),
    ]
    for rows, placements in groups:
        if len(rows) == 0:
            continue
        kind, order = (np.repeat(codes, len(rows)) for codes in zip(*placements, strict=True))
        every = shards.take(np.tile(rows, len(placements)))
        of_layers, of_ends = _seconds(problem, every, kind, order, transfers=transfers)
        layers[:, rows] = of_layers.reshape(len(layers), len(placements), len(rows)).min(axis=1)
        outer[rows] = of_ends.reshape(len(placements), len(rows)).min(axis=0)
    return layers, outer


def _seconds(
    problem: Problem, shards: LayoutTable, kind: Integers, order: Integers, *, transfers: bool
) -> tuple[Vector, Vector]:
    """Seconds of a microbatch per layer of each run, and of both ends, under an exchange and order each."""
    s, ones = problem, np.ones(len(shards), dtype=np.int64)
    schedule = _kindest_schedule(s)
    table = replace(
        shards, pp=(1 + _PAIRS_MICROBATCHES[schedule]) * ones, virtual_stages=ones, schedule=schedule * ones,
        zero_stage=0 * ones, shard_degree=shards.replicas, recompute=0 * ones,
        cp_kind=kind, axis_order=order,
    )  # fmt: skip
    times = features_of(replace(s.case, stack=_kindest(s.stack)), table, transfers=transfers, exchanges=False)
    costs = compose(times, default_constants())
    return costs.layer_s / costs.stretch, (costs.first_s + costs.last_s) / costs.stretch


def _kindest_schedule(problem: Problem) -> int:
    """Code of the schedule under which a layer takes least: one that pairs passes hides expert traffic."""
    has = [SCHEDULES.index(name) for name in problem.stack.supports.schedules]
    pairing = [code for code in has if problem.model.is_moe and _PAIRS_MICROBATCHES[code]]
    return (pairing or has)[0]


def _kindest(profile: SoftwareStack) -> SoftwareStack:
    """The profile as if all passes of experts ran in pairs, and pairs held nothing."""
    if not profile.timing.pairs_expert_passes:
        return profile
    timing = replace(profile.timing, pairs_expert_passes=False, expert_overlap_share=1.0)
    return replace(profile, timing=timing)


def _fewest_replicas(table: LayoutTable) -> npt.NDArray[np.int64]:
    """Least dp whose block can hold the experts as they are cut."""
    block = table.expert_shards
    return np.asarray(block // np.gcd(block, table.cp * table.tp), dtype=np.int64)


def smallest_bubble(problem: Problem, pins: Mapping[str, Any], pp: npt.NDArray[np.int64]) -> Vector:
    """Least share of the fill-and-drain time that any pipeline of the space leaves on so many ranks.

    Read off the pipelines that `planner.space.unfold.schedules` unfolds: a wider space widens the bound.

    Args:
        problem: what is asked.
        pins: fields that are given.
        pp: pipeline ranks, any shape.
    """
    ranks, which = np.unique(pp, return_inverse=True)
    least = [_least_of_pipelines(schedules(problem, pins, int(P)), int(P)) for P in ranks]
    return np.asarray(np.array(least, dtype=np.float64)[which].reshape(np.shape(pp)))


def _least_of_pipelines(pipelines: Draft, pp: int) -> float:
    """Least share that the offered schedules and virtual stages leave; 1 where none is offered."""
    schedule, chunks = pipelines["schedule"], pipelines["virtual_stages"]
    return float(_bubble_share(schedule, np.full_like(schedule, pp), chunks).min(initial=1.0))


def smallest_memory(problem: Problem, table: LayoutTable) -> Vector:
    """Bytes per GPU that no variant can go below on its fullest rank: the mean over ranks at best.

    Every ZeRO stage is tried: sharding parameters needs buffers to gather them, so the highest is not the
    smallest. Modules that predict further tokens keep least under one policy or another, since none is
    recomputed in full: then every policy is tried too.
    """
    has = problem.stack.supports
    full = "full" if "full" in has.recomputes else has.recomputes[0]
    policies = has.recomputes if problem.job.mtp_layers else (full,)
    tried = itertools.product(has.zero_stages, map(RECOMPUTES.index, policies))
    return np.asarray(np.min([_mean_memory(problem, table, *each) for each in tried], axis=0))


def _mean_memory(problem: Problem, combined: LayoutTable, zero_stage: int, policy: int) -> Vector:
    """Mean bytes over ranks of 1F1B, one microbatch in flight, at this ZeRO stage and policy, layers least.

    Where gradients are allocated on demand, those of a step's only microbatch may take the place of all its
    activations (`in_flight.held_microbatches`), so then none are counted. Where the loss is let go before the
    backward, what its head holds beyond it depends on what a layer of the variant needs: none is counted.
    """
    s, ones = problem, np.ones(len(combined), dtype=np.int64)
    table = replace(
        combined,
        schedule=SCHEDULES.index(PLAIN_SCHEDULE) * ones,
        zero_stage=zero_stage * ones,
        shard_degree=combined.replicas,
        recompute=policy * ones,
    )
    form = memory_form(memory_pieces(Workload(model=s.model, job=s.job, stack=_kindest(s.stack)), table))
    held = np.where(s.stack.memory.gradients_on_demand & (num_microbatches(table, s.job) == 1), 0.0, 1.0)
    saved = map(np.minimum, form.saved_bytes, form.saved_bytes_recomputed)
    layers = sum(
        run.count * (static + held * least)
        for run, static, least in zip(layer_runs(s.model), form.static_bytes, saved, strict=True)
    )
    outer = form.state_at(1.0, 1.0) + form.activations_at(0.0, float(not s.stack.memory.frees_loss))
    return np.asarray((layers + outer) / combined.pp + form.every_bytes) * (1 - ROUNDING)
