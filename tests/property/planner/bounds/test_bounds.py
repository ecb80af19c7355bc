"""Every bound of the funnel against the exact score of every layout of random small spaces.

A layout's exact step is the least over all its splits that fit, by `tests.oracle.planner.search.plain_enumeration`. What the
funnel derives for the cut, the core, the placement, the pipeline and the ranks it came from may not be above.
"""

from dataclasses import replace
from random import Random

import numpy as np
import numpy.typing as npt
import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, num_microbatches
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec
from costmodel.training.score import evaluate
from planner.bounds.funnel import (
    best_placement_times,
    compute_times,
    degrees_of,
    least_bubble,
    least_gpus,
    placed_times,
    smallest_bubble,
    smallest_memory,
    step_bound,
)
from planner.bounds.priced import priced_columns
from planner.bounds.ranks import plain_bounds, variant_bounds
from planner.plan import PlanRequest, Problem
from planner.rules.check import parse_pins
from planner.space.degrees import combinations
from planner.space.unfold import eased, pipelines, placements, variants
from tests.counts import cases_of_run, tries
from tests.oracle.planner.search.plain_enumeration import exact_steps, problem_of
from tests.oracle.planner.search.random_requests import case_of
from tests.unit.costmodel.models.small_modules import traced
from tests.unit.costmodel.models.small_towers import seeing
from topology.base.arrays import Vector
from topology.builders import default_cluster, gpu_named

CAL = load_calibration()
SEED, GROUPS, CASES_OF_GROUP, MOST_LAYOUTS = 21, 6, tries(4, 20), 120
SLACK = 1 + 1e-9
COMBINATION = ("tp", "cp", "pp", "dp", "microbatch_size", "ep", "expert_tp", "sequence_parallel")
PLACEMENT = (*COMBINATION, "axis_order", "cp_kind")
PIPELINE = (*PLACEMENT, "schedule", "virtual_stages")


def index_of(rows: LayoutTable, sources: LayoutTable, names: tuple[str, ...]) -> npt.NDArray[np.intp]:
    """For every row, the source that it was unfolded from."""
    keys = {key: i for i, key in enumerate(zip(*(getattr(sources, n).tolist() for n in names), strict=True))}
    return np.array([keys[key] for key in zip(*(getattr(rows, n).tolist() for n in names), strict=True)])


def sample(rows: int, most: int, r: Random) -> npt.NDArray[np.intp]:
    """Some rows, in order."""
    return np.array(sorted(r.sample(range(rows), min(rows, most))), dtype=np.intp)


def drawn(table: LayoutTable, most: int, r: Random | None) -> LayoutTable:
    """The table, or some rows of it."""
    return table if r is None else table.take(sample(len(table), most, r))


def bounds_of(
    s: Problem, request: PlanRequest, random: Random | None = None
) -> tuple[LayoutTable, dict[str, Vector], Vector]:
    """Layouts, what each stage of the funnel bounds them by, and the least memory of their cores.

    All of them, or those of some hundred cores and some thousand pipelines.
    """
    pins = parse_pins(request.pins)
    combined = drawn(combinations(s, pins)[0], 300, random)
    placed, _ = placements(s, pins, combined)
    every, of_placed, _ = pipelines(s, pins, placed)
    index = np.arange(len(every)) if random is None else sample(len(every), 3_000, random)
    pipeline, placement = every.take(index), of_placed[index]
    usual, _ = variants(s, pins, pipeline)
    table = LayoutTable.concat([usual, eased(s, pins, usual)[0]])
    alone = {"pp": 1 + 0 * combined.pp, "dp": 1 + 0 * combined.dp}
    times = placed_times(s, placed)

    def step(layouts: LayoutTable, seconds: object, beta: Vector) -> Vector:
        return step_bound(s, seconds, degrees_of(layouts), num_microbatches(layouts, s.job), beta)  # type: ignore[arg-type]

    of_combined = index_of(table, combined, COMBINATION)
    priced = priced_columns(s, table)
    plain = plain_bounds(s, priced)
    sharded = LayoutTable(**{n: alone.get(n, getattr(combined, n)) for n in LayoutTable.__dataclass_fields__})
    bounds = {
        "cut": step(combined, compute_times(s, sharded), smallest_bubble(s, pins, combined.pp))[of_combined],
        "core": step(combined, best_placement_times(s, combined), smallest_bubble(s, pins, combined.pp))[
            of_combined
        ],
        "placement": step(placed, times, smallest_bubble(s, pins, placed.pp))[
            index_of(table, placed, PLACEMENT)
        ],
        "pipeline": step(pipeline, times.take(placement), least_bubble(pipeline))[
            index_of(table, pipeline, PIPELINE)
        ],
        "plain": plain,
        "ranks": variant_bounds(s, priced, plain, np.full(len(table), np.inf)),
    }
    return table, bounds, smallest_memory(s, combined)[of_combined]


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_no_layout_beats_a_bound_of_what_it_was_unfolded_from(group: int) -> None:
    """Whatever fits is no faster than any bound of it, and its core was not said to need more memory."""
    checked, wrong = 0, []
    for number in range(group * CASES_OF_GROUP, (group + 1) * CASES_OF_GROUP):
        case = case_of(SEED, number, CAL, most_layouts=MOST_LAYOUTS)
        if case is None:
            continue
        request, _ = case
        s = problem_of(request)
        table, bounds, memory = bounds_of(s, request)
        exact = exact_steps(s, [table.layout(row) for row in range(len(table))], CAL)
        fits = np.isfinite(exact)
        checked += int(fits.sum())
        names = [name for name, bound in bounds.items() if np.any(bound[fits] > exact[fits] * SLACK)]
        names += ["memory"] if np.any(memory[fits] > s.memory_budget_bytes * SLACK) else []
        wrong += [(number, name) for name in names]
    assert wrong == []
    assert checked > CASES_OF_GROUP


LADDER = (
    ("qwen3-0.6b", "h100-sxm", 8, "internevo", 40_960, 3),
    ("mixtral-8x7b", "mi300x", 8, "internevo", 32_768, 4),
    ("qwen3-4b", "l40s", 32, "ideal", 2_048, 16),
    ("mixtral-8x7b", "h100-sxm", 32, "torchtitan", 4_096, 64),
    ("llama-3.1-8b", "a100-pcie-80gb", 16, "megatron-core", 8_192, 16),
    ("llama-3.1-8b", "h100-sxm", 32, "meshplan", 65_536, 2),
    ("deepseek-v2-lite", "gb200", 144, "ideal", 4_096, 144),
    ("gpt-oss-20b", "mi300x", 16, "megatron-core", 4_096, 16),
    ("qwen3-30b-a3b", "h100-sxm", 32, "megatron-bridge-overlap", 4_096, 64),
    ("llama-3.1-8b that sees", "h100-sxm", 32, "megatron-core", 8_192, 64),
    ("mixtral-8x7b that sees", "mi300x", 16, "pytorch", 4_096, 32),
    ("traced", "h100-sxm", 32, "torchtitan", 1, 128),
    ("traced", "b200-sxm", 16, "pytorch", 1, 64),
)
LIKE_OTHERS = [LADDER[number] for number in (2, 5, 7, 8, 10, 12)]


def named(name: str) -> ModelSpec:
    """A model of the catalog, one that sees, or a traced module."""
    if name == "traced":
        return traced(23)
    spec = model(name.removesuffix(" that sees"))
    return seeing(spec, 24, 2048) if name.endswith("that sees") else spec


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gpu", "gpus", "stack", "length", "batch"), cases_of_run(LADDER, LIKE_OTHERS)
)
def test_no_even_split_of_a_catalog_model_beats_a_bound(
    name: str, gpu: str, gpus: int, stack: str, length: int, batch: int
) -> None:
    """On whole machines, memory aside, the even split of 300 cores' layouts is no faster than any bound."""
    request = PlanRequest(
        model=named(name),
        cluster=replace(
            default_cluster(gpu, gpus).spec, gpus=(replace(gpu_named(gpu), memory_bytes=2.0**45),)
        ),
        job=TrainingJob(sequence_length=length, global_batch_size=batch),
        stack=stack,
        memory_headroom=0.0,
    )
    s = problem_of(request)
    table, bounds, _ = bounds_of(s, request, random=Random(name))
    step_s = evaluate(s.case, table, recomputed_share=np.zeros(len(table))).step_time_s
    wrong = {n: float((b / step_s)[np.isfinite(b)].max()) for n, b in bounds.items()}
    assert {name: ratio for name, ratio in wrong.items() if ratio > SLACK} == {}
    fewest = np.array([least_gpus(s, float(seconds)) for seconds in step_s])
    assert np.all(fewest <= table.num_gpus)
