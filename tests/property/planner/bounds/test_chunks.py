"""Bounds of interleaved hybrids against every split that their layouts have, with room and without."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable
from costmodel.models.catalog import model
from costmodel.models.spec import layer_order, layer_runs
from costmodel.pipeline.stage_costs import fits_capacity, step_time
from costmodel.pipeline.stages import ranks_of_chunks
from costmodel.training.stages import stage_costs_of
from planner.bounds.chunks import interleaved_bounds
from planner.bounds.priced import priced_columns
from planner.plan import PlanRequest
from planner.rules.check import parse_pins
from planner.search.candidates import decidable
from planner.space.degrees import combinations
from planner.space.unfold import eased, pipelines, placements, variants
from planner.stages.dynamic_program import chunk_splits, consecutive_split
from planner.stages.one_count import split_of_count
from tests.oracle.planner.search.plain_enumeration import problem_of
from topology.base.arrays import Index
from topology.base.units import GIB
from topology.builders import default_cluster, gpu_named

CAL = load_calibration()
ROWS, MOST = 30, 3_000
CASES = (
    ("nemotron-3-nano-30b-a3b", 16, 80),
    ("nemotron-3-nano-30b-a3b", 16, 46),
    ("qwen3-next-80b-a3b", 32, 60),
    ("llama-4-scout", 32, 80),
    ("deepseek-v4-flash", 128, 80),
    ("nemotron-h-8b", 8, 40),
)


def sample(rows: Index, most: int, r: Random) -> Index:
    """Some of these rows, in order."""
    return np.array(sorted(r.sample(rows.tolist(), min(len(rows), most))), dtype=np.intp)


@pytest.mark.parametrize(("name", "gpus", "gib"), CASES)
def test_no_split_of_chunks_beats_its_bound(name: str, gpus: int, gib: int) -> None:
    """Every way to make chunks, as many recomputed layers of each, or as each rank needs."""
    spec, r = model(name), Random(f"{name} {gib}")
    gpu = replace(gpu_named("h100-sxm"), memory_bytes=gib * GIB)
    request = PlanRequest(
        model=spec,
        cluster=replace(default_cluster("h100-sxm", gpus).spec, gpus=(gpu,)),
        job=TrainingJob(sequence_length=4096, global_batch_size=128),
        stack="megatron-core",
        memory_headroom=0.05,
    )
    s, pins = problem_of(request), parse_pins(request.pins)
    placed, _ = placements(s, pins, combinations(s, pins)[0])
    every, _, _ = pipelines(s, pins, placed)
    usual, _ = variants(s, pins, every.take(np.flatnonzero(every.virtual_stages > 1)))
    some = usual.take(sample(np.arange(len(usual)), MOST, r))
    table = LayoutTable.concat([some, eased(s, pins, some)[0]])
    every_bound = interleaved_bounds(s, priced_columns(s, table))
    finite = np.isfinite(every_bound)
    chosen = np.concatenate([sample(np.flatnonzero(mask), ROWS, r) for mask in (finite, ~finite)])
    priced, bounds, tight = priced_columns(s, table.take(chosen)), every_bound[chosen], []
    runs, order = [run.count for run in layer_runs(spec)], layer_order(spec)
    for row, bound in enumerate(bounds):
        layout, one = priced.table.layout(row), priced.take(slice(row, row + 1))
        costs = decidable(stage_costs_of(one, layout, s.job, runs, s.memory_budget_bytes, order), layout)
        ranks = ranks_of_chunks(layout)
        many = chunk_splits(sum(runs), len(ranks))
        told = [split_of_count(costs, ranks, chunks, n) for chunks in many for n in range(max(chunks) + 1)]
        splits = [*told, *(consecutive_split(costs, ranks, chunks) for chunks in many)]
        fitting = [split for split in splits if split is not None and fits_capacity(costs, split)]
        best_s = min((step_time(costs, split) for split in fitting), default=np.inf)
        assert bound <= best_s * (1 + 1e-9), layout
        tight += [bound / best_s] if np.isfinite(best_s) else []
    assert len(tight) > ROWS / 4
    assert np.median(tight) > 0.9  # what recomputation costs is bounded as if layers could be cut
