"""Bounds of layouts of several chunks a rank where kinds of layers alternate: few splits, with their memory.

Chunks are equal but for the ends of the model, so what every rank holds is known. A rank short of memory
frees it by the kinds that it holds, the cheapest seconds a byte first, as if layers could be cut.

Legend: ``P`` ranks, ``K`` kinds, ``N`` layouts, ``J`` forms of the tail.
"""

from __future__ import annotations

import math

import numpy as np

from costmodel.layout import RECOMPUTES, num_microbatches
from costmodel.memory.stage import MemoryForm, held_microbatches, holds_ends, memory_form
from costmodel.models.spec import layer_order, layer_runs
from costmodel.ops.shards import distinct_rows
from costmodel.pipeline.stages import ranks_of_chunks, runs_of_ranks
from planner.bounds.funnel import ROUNDING
from planner.bounds.priced import Priced
from planner.plan import Problem
from planner.stages.dynamic_program import chunk_splits
from topology.base.arrays import Vector

_FULL = RECOMPUTES.index("full")


def interleaved_bounds(problem: Problem, priced: Priced) -> Vector:
    """Seconds of a step that no split of each layout can beat; 0 for layouts of one chunk a rank.

    Infinite where no split fits.
    """
    table, result = priced.table, np.zeros(len(priced.table))
    chosen, index = distinct_rows([table.pp, table.virtual_stages, table.schedule])
    for i, row in enumerate(chosen):
        members = np.flatnonzero(index == i)
        chunk_ranks = ranks_of_chunks(table.layout(int(row)))
        if len(chunk_ranks) > int(table.pp[row]):
            result[members] = _least_of_splits(problem, priced.take(members), chunk_ranks)
    return result


def _least_of_splits(problem: Problem, priced: Priced, chunk_ranks: tuple[int, ...]) -> Vector:
    """The least step of the few splits of layouts of the same pipeline."""
    runs, order = [run.count for run in layer_runs(problem.model)], layer_order(problem.model)
    least = np.full(len(priced.table), math.inf)
    form = memory_form(priced.pieces)
    for chunks in chunk_splits(sum(runs), len(chunk_ranks)):
        held = np.array(runs_of_ranks(chunk_ranks, chunks, runs, order), dtype=np.float64)
        least = np.minimum(least, _step_seconds(problem, priced, form, held))
    return least * (1 - ROUNDING)


def _step_seconds(problem: Problem, priced: Priced, form: MemoryForm, held: Vector) -> Vector:
    """Seconds of a step whose ranks hold so many layers of each kind, (P, K), and free as little as fits."""
    costs, table = priced.costs, priced.table
    rank = np.arange(len(held))[:, None]
    first, last = (np.asarray(end, dtype=np.float64) for end in holds_ends(table.schedule, table.pp, rank))
    seconds = held @ costs.layer_s + costs.every_s + first * costs.first_s + last * costs.last_s
    seconds = seconds + _freeing_seconds(problem, priced, form, held)
    fixed_s = first * costs.tail_first_s[:, None] + last * costs.tail_last_s[:, None]
    tail = (np.einsum("pk,jkn->jpn", held, costs.tail_layer_s) + fixed_s).max(axis=(0, 1))
    M, beta = costs.num_microbatches, costs.bubble_weight
    return np.asarray((M - beta) * seconds.max(axis=0) + beta * seconds.sum(axis=0) + tail + costs.constant_s)


def _freeing_seconds(problem: Problem, priced: Priced, form: MemoryForm, held: Vector) -> Vector:
    """Seconds a microbatch in which every rank frees what it lacks, (P, N); infinite where it cannot."""
    costs, table, pieces = priced.costs, priced.table, priced.pieces
    rank = np.arange(len(held))[:, None]
    M, pp = num_microbatches(table, problem.job), table.pp
    waiting = np.asarray(
        held_microbatches(pieces.first_backward_relief, table.schedule, pp, table.virtual_stages, M, rank)
    )
    first, last = holds_ends(table.schedule, pp, rank)
    static, saved, values = (
        np.stack([np.broadcast_to(np.asarray(part, dtype=np.float64), len(table)) for part in parts])
        for parts in (form.static_bytes, form.saved_bytes, form.saved_bytes_recomputed)
    )
    room = problem.memory_budget_bytes * (1 + ROUNDING) - form.fixed_at(first, last)
    lacking = held @ static + waiting * (held @ saved) - room
    freed = np.maximum(saved - values, 0.0) * (table.recompute == _FULL)
    lacking = np.where(lacking > 0, np.maximum(lacking + form.recompute_working_at(last), 0.0), 0.0)
    frees = freed > 0
    per_byte = np.where(frees, np.maximum(costs.recompute_s, 0.0) / np.where(frees, freed, 1.0), 0.0)
    seconds = np.zeros_like(lacking)
    cheapest_first = np.argsort(np.where(frees, per_byte, math.inf), axis=0)
    for kinds in cheapest_first:
        row = kinds[None]
        taken = np.minimum(lacking, waiting * np.take_along_axis(freed, row, axis=0) * held[:, kinds])
        seconds += taken / waiting * np.take_along_axis(per_byte, row, axis=0)
        lacking = lacking - taken
    room_left = problem.memory_budget_bytes * ROUNDING
    return np.asarray(np.where(lacking <= room_left, seconds, math.inf))
