"""The best plan by plain enumeration: every legal layout, every split of its layers, nothing dismissed.

What the search is judged by, so it shares nothing with it: loops over every value of every field that
`planner.rules` allow, and costs from the estimate of one layout at a time
(`costmodel.training.stages.stage_costs`). The space here is wider where the search argues that something cannot win
or makes no difference: GPipe beside 1F1B, no recomputation beside full, selective recomputation under fused
attention, every ZeRO stage of a single replica; with `duplicates`, also every order of idle axes.

Legend: ``P`` pipeline ranks, ``V`` chunks of a rank, ``L`` layers, ``M`` microbatches, ``β`` bubble, ``t``
seconds of a microbatch on a rank, ``u`` seconds of it after the last one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.campaign.answer import campaign
from costmodel.campaign.failures import default_model
from costmodel.case import Case
from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.layout import AXIS_ORDERS, LayoutTable, ParallelLayout
from costmodel.memory.spread import Spread
from costmodel.models.spec import layer_runs
from costmodel.pipeline.stage_costs import (
    StageCosts,
    StageSplit,
)
from costmodel.training.bands import peak_spread
from costmodel.training.estimate import estimate
from costmodel.training.priced import price_layouts
from costmodel.training.stages import stage_costs, stage_costs_of
from planner.campaign.finish import job_of_layout
from planner.plan import PlanRequest, Problem, stack_of
from planner.rules.check import legal
from tests.oracle.planner.search.plain_splits import emptiest_split, fastest, splits_of
from topology.builders import build

AXES = ("pp", "dp", "cp", "tp")
Degrees = dict[str, int]


TABLES = load_calibration()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A layout with one split of its layers, and its score under the objective."""

    layout: ParallelLayout
    split: StageSplit
    step_time_s: float
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Enumeration:
    """The best of everything, and how much that was; `best` is None where nothing fits."""

    best: Found | None
    layouts: int
    splits: int


def problem_of(request: PlanRequest) -> Problem:
    """What a request is judged against: its cluster, its stack, the share of memory to leave free."""
    case = Case(
        model=request.model,
        cluster=build(request.cluster),
        job=request.job,
        stack=stack_of(request),
        cal=TABLES,
    )
    headroom = request.memory_headroom
    if headroom is None:
        headroom = _usual_headroom(peak_spread(case))
    return Problem(case=case, memory_headroom=headroom, engine=request.engine)


def _usual_headroom(spread: Spread) -> float:
    """The first tenth of a percent at which fewer than one in twenty peaks exceed the GPU."""
    errors = [NormalDist(sigma=deviation) for deviation in spread.deviations]
    free = (share / 1000 for share in range(1000))
    return next(
        share for share in free if 1 - fmean(each.cdf(-math.log(1 - share)) for each in errors) < 0.05
    )


# ---------------------------------------------------------------- layouts


def every_layout(
    s: Problem, pins: Mapping[str, Any], *, duplicates: bool = False, most: int | None = None
) -> list[ParallelLayout] | None:
    """Every legal layout with these fields pinned; None if there are more than `most` candidates.

    Args:
        s: what layouts are judged against.
        pins: fields of a layout that have one value.
        duplicates: also orders and names that place nothing differently.
        most: candidates before giving up.
    """
    found: list[ParallelLayout] = []
    pipelines = _pipelines_of_ranks(s, pins)
    for degrees in _degrees(s, pins):
        found += _unfold(s, pins, degrees, pipelines[degrees["pp"]], duplicates=duplicates)
        if most is not None and len(found) > most:
            return None
    return _legal(s, found)


def sampled_layouts(r: Random, s: Problem, pins: Mapping[str, Any], about: int) -> list[ParallelLayout]:
    """Legal layouts from about this many candidates of random degrees."""
    every, pipelines = list(_degrees(s, pins)), _pipelines_of_ranks(s, pins)
    r.shuffle(every)
    found: list[ParallelLayout] = []
    for degrees in every:
        found += _unfold(s, pins, degrees, pipelines[degrees["pp"]], duplicates=False)
        if len(found) > about:
            break
    return _legal(s, found)


def _legal(s: Problem, layouts: list[ParallelLayout]) -> list[ParallelLayout]:
    """Those of some layouts that the rules allow."""
    if not layouts:
        return []
    keep, _ = legal(s, LayoutTable.from_rows(layouts))
    return [layout for layout, good in zip(layouts, keep, strict=True) if good]


def _degrees(s: Problem, pins: Mapping[str, Any]) -> Iterator[Degrees]:
    """Every combination of degrees, experts and microbatch."""
    N, B, S = s.cluster.num_gpus, s.job.global_batch_size, s.job.sequence_length
    counts = range(1, N + 1)
    context = [cp for cp in counts if S % cp == 0]
    axes = (
        _pinned(pins, "tp", counts),
        _pinned(pins, "cp", context),
        *(_pinned(pins, a, counts) for a in ("pp", "dp")),
    )
    for tp, cp, pp, dp in itertools.product(*axes):
        if tp * cp * pp * dp > N or pp > s.model.num_layers or B % dp:
            continue
        sizes = range(1, B // dp + 1)
        experts = range(1, s.model.num_experts + 1) if s.model.is_moe else (1,)
        for size, ep, split in itertools.product(
            _pinned(pins, "microbatch_size", sizes),
            _pinned(pins, "ep", experts),
            _pinned(pins, "expert_tp", sorted({1, tp})),
        ):
            if B % (dp * size) == 0 and (dp * cp * tp) % (ep * split) == 0:
                yield {
                    "tp": tp, "cp": cp, "pp": pp, "dp": dp, "microbatch_size": size, "ep": ep, "expert_tp": split,
                }  # fmt: skip


def _unfold(
    s: Problem,
    pins: Mapping[str, Any],
    degrees: Degrees,
    pipelines: list[tuple[Any, int]],
    *,
    duplicates: bool,
) -> Iterator[ParallelLayout]:
    """Everything else that degrees leave open."""
    stages = s.stack.supports.zero_stages_with_pipeline if degrees["pp"] > 1 else s.stack.supports.zero_stages
    kinds = s.stack.supports.cp_kinds if degrees["cp"] > 1 or duplicates else s.stack.supports.cp_kinds[:1]
    for order in _orders(degrees, pins, duplicates=duplicates):
        ranks = degrees["dp"] * degrees["cp"]
        for zero in _pinned(pins, "zero_stage", stages):
            shards = [n for n in range(1, ranks + 1) if ranks % n == 0] if zero else [ranks]
            for shard, (schedule, v), policy, parallel, kind in itertools.product(
                _pinned(pins, "shard_degree", shards),
                pipelines,
                _pinned(pins, "recompute", s.stack.supports.recomputes),
                _pinned(pins, "sequence_parallel", sorted({False, degrees["tp"] > 1})),
                _pinned(pins, "cp_kind", kinds),
            ):
                yield ParallelLayout(
                    **degrees, virtual_stages=v, schedule=schedule, zero_stage=zero, shard_degree=shard,
                    recompute=policy, sequence_parallel=parallel, cp_kind=kind, axis_order=order,
                )  # fmt: skip


def _pinned(pins: Mapping[str, Any], name: str, values: Sequence[Any]) -> Sequence[Any]:
    """The values of a field, or just the pinned one."""
    return [pins[name]] if name in pins else values


def _orders(degrees: Degrees, pins: Mapping[str, Any], *, duplicates: bool) -> list[tuple[str, ...]]:
    """Orders of the axes; without duplicates the first of those that place axes with members alike."""
    if "axis_order" in pins:
        return [pins["axis_order"]]
    if duplicates:
        return list(AXIS_ORDERS)
    first: dict[tuple[str, ...], tuple[str, ...]] = {}
    for order in AXIS_ORDERS:
        first.setdefault(tuple(axis for axis in order if degrees[axis] > 1), order)
    return list(first.values())


def _pipelines_of_ranks(s: Problem, pins: Mapping[str, Any]) -> dict[int, list[tuple[Any, int]]]:
    """By pipeline ranks, the schedules with their numbers of chunks; at one rank one name stands for all."""
    L, found = s.model.num_layers, {1: [(pins.get("schedule", "1f1b"), pins.get("virtual_stages", 1))]}
    for pp in range(2, min(L, s.cluster.num_gpus) + 1):
        every = itertools.product(
            _pinned(pins, "schedule", s.stack.supports.schedules),
            _pinned(pins, "virtual_stages", range(1, (L + 2) // pp + 1)),
        )
        pairs = [ParallelLayout(pp=pp, schedule=schedule, virtual_stages=v) for schedule, v in every]
        keep, _ = legal(s, LayoutTable.from_rows(pairs), only=frozenset(("pp", "schedule", "virtual_stages")))
        found[pp] = [(x.schedule, x.virtual_stages) for x, good in zip(pairs, keep, strict=True) if good]
    return found


# ---------------------------------------------------------------- prices and the best of all


def price_each(s: Problem, layouts: Sequence[ParallelLayout], cal: Calibration) -> Iterator[StageCosts]:
    """Costs of layouts, each by the estimate of one layout."""
    for layout in layouts:
        yield stage_costs(s.case, layout)


def price_together(s: Problem, layouts: Sequence[ParallelLayout], cal: Calibration) -> Iterator[StageCosts]:
    """Costs of layouts, composed as one table: an order of magnitude faster, for large spaces.

    The table is the cost model's own; what it says of a layout is checked against `price_each` on samples.
    """
    table = LayoutTable.from_rows(layouts)
    priced = price_layouts(s.case, table)
    runs = [run.count for run in layer_runs(s.model)]
    for row, layout in enumerate(layouts):
        yield stage_costs_of(priced.take(np.array([row])), layout, s.job, runs, s.cluster.gpu.memory_bytes)


def exact_steps(s: Problem, layouts: Sequence[ParallelLayout], cal: Calibration) -> NDArray[np.float64]:
    """Step of every layout under its best split that fits; infinite where none does."""
    found = [
        fastest(s, layout, costs, s.memory_budget_bytes)
        for layout, costs in zip(layouts, price_together(s, layouts, cal) if layouts else (), strict=True)
    ]
    return np.array([math.inf if best is None else best[0] for best in found])


def limit_s(request: PlanRequest) -> float:
    """Longest step with which the deadline is met."""
    job = request.job
    if request.objective != "gpus" or job.deadline_s is None or job.total_tokens is None:
        return math.inf
    return job.deadline_s / math.ceil(job.total_tokens / job.tokens_per_step)


def score_of(request: PlanRequest, num_gpus: int, step_s: float) -> float:
    """What the objective asks for: seconds, rented GPU-seconds, or rented GPUs and then seconds; less is better."""
    if request.objective == "cost":
        return whole_nodes(request, num_gpus) * step_s
    if request.objective == "gpus":
        longest = limit_s(request)
        return whole_nodes(request, num_gpus) + step_s / (2 * longest) if step_s <= longest else math.inf
    return step_s


def whole_nodes(request: PlanRequest, num_gpus: int) -> int:
    """GPUs of the nodes that the first GPUs lie on: a node is what is rented."""
    ends = itertools.accumulate(
        node.gpus_per_node for node in request.cluster.nodes for _ in range(node.count)
    )
    return next(end for end in ends if end >= num_gpus)


def keeps(request: PlanRequest, layout: ParallelLayout, split: StageSplit, cal: Calibration) -> bool:
    """Whether the campaign of a plan keeps the deadline that is asked for nine times in ten."""
    if request.objective != "gpus":
        return True
    s = problem_of(request)
    said = estimate(s.case, layout, split)
    run = campaign(
        job_of_layout(request, layout, said, default_model(request.cluster.nodes[0].gpu)),
        default_model(request.cluster.nodes[0].gpu),
        request.cluster,
        step_band_s=(said.lower_s, said.upper_s),
        least_bytes=1.0,
        deadline_s=request.job.deadline_s,
    )
    return run.deadline_chance is not None and run.deadline_chance >= 0.9


def enumerate_all(
    request: PlanRequest,
    layouts: Sequence[ParallelLayout],
    cal: Calibration,
    *,
    together: bool = False,
    budget_bytes: float | None = None,
) -> Enumeration:
    """The best of these layouts over all of their splits, confirmed by `costmodel.training.estimate`."""
    s = problem_of(request)
    budget = s.memory_budget_bytes if budget_bytes is None else budget_bytes
    best, tried = None, 0
    prices = (price_together if together and layouts else price_each)(s, layouts, cal)
    for layout, costs in zip(layouts, prices, strict=True):
        tried += len(splits_of(s, layout))
        found = fastest(s, layout, costs, budget)
        if found is None:
            continue
        score = score_of(request, layout.num_gpus, found[0])
        better = score < (math.inf if best is None else best.score)
        if better and keeps(request, layout, found[1], cal):
            best = Found(layout=layout, split=found[1], step_time_s=found[0], score=score)
    if best is not None:
        _confirm(s, best, cal, s.memory_budget_bytes if budget_bytes is None else budget_bytes)
    return Enumeration(best=best, layouts=len(layouts), splits=tried)


def _confirm(s: Problem, best: Found, cal: Calibration, budget_bytes: float) -> None:
    """The printed estimate of the best plan says the same seconds, and that it fits."""
    said = estimate(s.case, best.layout, best.split)
    if not math.isclose(said.step_time_s, best.step_time_s, rel_tol=1e-9):
        raise AssertionError(
            f"{best.layout}: enumerated {best.step_time_s} s, estimated {said.step_time_s} s"
        )
    if said.peak_memory_bytes > budget_bytes * (1 + 1e-9):
        raise AssertionError(f"{best.layout}: {said.peak_memory_bytes} bytes of {budget_bytes}")


def emptiest(
    request: PlanRequest, layouts: Sequence[ParallelLayout], cal: Calibration, longest_s: float
) -> float:
    """Least peak memory of any plan that fits and whose step is at most so long; infinite if there is none."""
    s, least = problem_of(request), math.inf
    for layout, costs in zip(layouts, price_each(s, layouts, cal), strict=True):
        found = emptiest_split(s, layout, costs, longest_s)
        least = min(least, math.inf if found is None else found[0])
    return least if least <= s.memory_budget_bytes else math.inf
