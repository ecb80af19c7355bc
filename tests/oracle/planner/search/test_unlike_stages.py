"""Stages on unlike kinds of node, judged by every layout, arrangement, split and recomputation one by one."""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import numpy.typing as npt
import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.spec import layer_runs
from costmodel.pipeline.stage_costs import StageSplit, UnlikeStages, fits_capacity, step_time
from costmodel.training.priced import Priced
from costmodel.training.unlike import price_unlike, unlike_costs
from planner.engines.contracts import recomputes_of
from planner.plan import Plan, PlanRequest, Problem, problem_of
from planner.pricing import clusters_of_kinds
from planner.search.candidates import decidable
from planner.search.pools.unlike import UnlikeSearch, _begin, _every, _unfold, search_unlike
from planner.search.search import search
from planner.stages.unlike import kind_tables, split_unlike
from tests.counts import tries
from tests.oracle.planner.search.plain_enumeration import every_layout
from tests.oracle.planner.search.plain_splits import every_split
from topology.builders import machine_node
from topology.hardware.datasheets import machines
from topology.spec import ClusterSpec, TierSpec

CAL = load_calibration()
SLACK = 1e-6
"""The documented rounding of seconds."""
MOST_STAGES = tries(4, 8)
"""Of layouts of a pool that is too large to look at every layout."""


def small_pool(counts: tuple[tuple[str, int, int], ...]) -> ClusterSpec:
    """Nodes of a machine, so many of so many GPUs, in this order."""
    nodes = tuple(machine_node(machines()[name], count, gpus_per_node=gpus) for name, count, gpus in counts)
    return ClusterSpec(name="small", nodes=nodes, tiers=(TierSpec(name="leaf", nodes_per_unit=32),))


def cases() -> Iterator[PlanRequest]:
    """Pools of at most six GPUs, models of at most four layers, memory from roomy to scarce."""
    r = Random(14)
    pools = [
        (("dgx-h100", 1, 2), ("dgx-a100", 1, 2)),
        (("dgx-a100-40gb", 1, 2), ("dgx-h100", 2, 2)),
        (("dgx-h100", 1, 4), ("dgx-a100-40gb", 1, 2)),
        (("dgx-h100", 3, 1), ("dgx-a100", 3, 1)),
    ]
    for number in range(8):
        big = r.random() < 0.5
        shape = model("llama-3.1-8b" if big else "llama-3.2-1b")
        layers = r.choice([2, 3, 4])
        yield PlanRequest(
            model=replace(shape, num_layers=layers),
            cluster=small_pool(pools[number % len(pools)]),
            job=TrainingJob(sequence_length=r.choice([4096, 16384]), global_batch_size=r.choice([4, 8])),
            memory_headroom=r.choice([0.05, 0.6, 0.75]),
            pins={"cp": 1, "microbatch_size": r.choice([1, 2])},
            engine=r.choice(["any", "megatron"]) if not big else "any",
        )


def plain_best(request: PlanRequest) -> float:
    """The shortest step of any layout whose stages follow each other on unlike kinds, by looking at all."""
    return min((step_s for _, step_s in every_arrangement(request)), default=math.inf)


def every_arrangement(request: PlanRequest) -> Iterator[tuple[list[int], float]]:
    """GPUs of each kind, and the shortest step, of every layout in every order of two kinds."""
    s, each = problem_of(request, CAL), clusters_of_kinds(request.cluster)
    budgets = [one.gpu.memory_bytes * (1 - s.memory_headroom) for one in each]
    pins = {**request.pins, "schedule": "1f1b", "virtual_stages": 1}
    for layout in every_layout(s, pins) or []:
        outer = next((axis for axis in layout.axis_order if getattr(layout, axis) > 1), "")
        if layout.pp < 2 or outer != "pp":
            continue
        priced = price_unlike(s.case, each, LayoutTable.from_rows([layout]))
        for first, stages in itertools.product((0, 1), range(1, layout.pp)):
            of_stage = (first,) * stages + (1 - first,) * (layout.pp - stages)
            needed = [of_stage.count(kind) * layout.stage_ranks for kind in (0, 1)]
            if all(need <= one.num_gpus for need, one in zip(needed, each, strict=True)):
                costs = unlike_costs(s.case.workload, priced, layout, budgets, of_stage)
                yield needed, min(_steps(s, costs, layout), default=math.inf)


def _steps(s: Problem, costs: UnlikeStages, layout: ParallelLayout) -> Iterator[float]:
    """Steps of every split that fits."""
    runs = tuple(run.count for run in layer_runs(s.model))
    for rows in every_split(runs, layout.pp, 1):
        for again in _recomputations(s, layout, [sum(row) for row in rows]):
            split = StageSplit(layers_of_stage=rows, recompute_of_stage=again)
            if fits_capacity(costs, split):
                yield step_time(costs, split)


def _recomputations(s: Problem, layout: ParallelLayout, held: list[int]) -> Iterator[tuple[int, ...]]:
    """Numbers of recomputed layers of every stage that the engine can be told."""
    if layout.recompute != "full":
        yield (0,) * len(held)
    elif recomputes_of(s.engine) == "per-rank":
        yield from itertools.product(*(range(count + 1) for count in held))
    else:
        yield from (tuple(min(n, count) for count in held) for n in range(max(held) + 1))


@pytest.mark.parametrize("number", range(tries(3, 8)))
def test_stages_of_unlike_kinds_are_the_best_of_all(number: int) -> None:
    """The search finds the shortest step that enumeration finds, with nothing to beat and with a score."""
    request = next(itertools.islice(cases(), number, None))
    best_s = plain_best(request)
    done = search_unlike(request, CAL, math.inf)
    assert done is not None
    found_s = done.best.step_time_s if done.best is not None else math.inf
    assert found_s == (pytest.approx(best_s, rel=SLACK) if math.isfinite(best_s) else math.inf)
    if math.isfinite(best_s):
        again = search_unlike(request, CAL, best_s * 1.0001)
        assert again is not None
        assert again.best is not None
        assert again.best.step_time_s == pytest.approx(best_s, rel=SLACK)
        none = search_unlike(request, CAL, best_s * 0.9999)
        assert none is not None
        assert none.best is None


@pytest.mark.parametrize("number", [0, 1, 3])
def test_the_plan_of_a_pool_is_the_best_of_all(number: int) -> None:
    """The whole answer is no slower than any arrangement, and says that it is proven."""
    request = next(itertools.islice(cases(), number, None))
    found, best_s = search(request, CAL), plain_best(request)
    if isinstance(found, Plan):
        assert found.estimate.step_time_s <= best_s * (1 + SLACK)
        assert found.optimality.status == "proven"
        assert found.optimality.bound_s <= best_s * (1 + SLACK)
    else:
        assert math.isinf(best_s)


@pytest.mark.slow
def test_a_pool_of_32_is_planned_as_by_every_kind_of_every_stage() -> None:
    """16 H100 + 16 A100, 10B: stages on kinds in any order, in runs or not, take no less than the plan.

    Of the layouts of so many stages, in an order, those are tried that could win if layers could be cut anywhere.
    """
    nodes = tuple(machine_node(machines()[name], 2) for name in ("dgx-h100", "dgx-a100"))
    tier = TierSpec(name="leaf", nodes_per_unit=32)
    request = PlanRequest(
        model=replace(model("llama-3.1-8b"), num_layers=40),
        cluster=ClusterSpec(name="pool", nodes=nodes, tiers=(tier,)),
        job=TrainingJob(sequence_length=8192, global_batch_size=512),
    )
    plan = search(request, CAL)
    assert isinstance(plan, Plan)
    assert plan.optimality.status == "proven"
    found = _begin(request, CAL, math.inf)
    assert found is not None
    table, _ = _every(found, None)
    layouts = _unfold(found, table.take(np.flatnonzero(table.pp <= MOST_STAGES)))
    priced = price_unlike(found.problem.case, found.each, layouts)
    least_s, tried = math.inf, 0
    most_fast = np.minimum(priced[0].table.pp - 1, 16 // priced[0].table.stage_ranks)
    for row in np.flatnonzero(_ideal_s(priced, most_fast) < plan.estimate.step_time_s):
        one = tuple(kind.take(slice(row, row + 1)) for kind in priced)
        tables = None  # of the layout, in whatever order
        for costs in _every_order(found, one):
            fast = np.asarray([costs.kind_of_stage.count(0)])
            if _ideal_s(one, fast)[0] >= plan.estimate.step_time_s:
                continue
            tables = tables or kind_tables(costs.kinds, "per-rank", spare_bytes=0.0)
            strict = functools.partial(kind_tables, costs.kinds, "per-rank", spare_bytes=0.0)
            least_s = min(least_s, split_unlike(costs, tables, strict, math.inf).step_s)
            tried += 1
    assert tried > 50 * MOST_STAGES
    assert plan.estimate.step_time_s == pytest.approx(least_s, rel=SLACK)


def _ideal_s(priced: tuple[Priced, ...], fast: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Seconds of each layout if its layers could be cut anywhere, and so many of its stages are on H100."""
    (h100, a100), M, pp = (
        [one.costs.layer_s[0] for one in priced],
        priced[0].costs.num_microbatches,
        priced[0].table.pp,
    )
    return np.asarray(40 * ((M - 1) / (fast / h100 + (pp - fast) / a100) + h100))


def _every_order(found: UnlikeSearch, one: tuple[Priced, ...]) -> Iterator[UnlikeStages]:
    """Costs of the stages of one layout on the kinds in every order that has the GPUs."""
    s, layout = found.problem, one[0].table.layout(0)
    budgets = [problem.memory_budget_bytes for problem in found.problems]
    plain = unlike_costs(s.case.workload, one, layout, budgets, (0,) * layout.pp)
    kinds = tuple(decidable(kind, layout) for kind in plain.kinds)
    for of_stage in itertools.product((0, 1), repeat=layout.pp):
        if all(1 <= of_stage.count(kind) <= 16 // layout.stage_ranks for kind in (0, 1)):
            yield replace(plain, kinds=kinds, kind_of_stage=of_stage)
