"""Plans beside the best one: different, worth considering, and marked as ties where the model cannot tell.

Two plans are *different* when their degrees differ; of each combination of degrees only the best is shown.
They are *tied* when layouts of one job have been misranked by as much as their steps differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from costmodel.estimate import Estimate
from costmodel.layout import DEFAULT_AXIS_ORDER, DEGREES, LayoutTable, ParallelLayout
from costmodel.pipeline.simulate import simulated_step_s
from costmodel.training.bands import tie_ratio
from planner.bounds.funnel import ROUNDING
from planner.bounds.priced import Priced, priced_columns
from planner.bounds.ranks import plain_bounds, variant_bounds
from planner.plan import Alternative
from planner.search.best_first import unfold
from planner.search.candidates import (
    SHAPE,
    Choice,
    candidate,
    estimate_of,
    expressible,
    layers_of_stage,
    safety,
    seed_choice,
    shape_of,
)
from planner.search.state import Search
from planner.space.unfold import shardings
from topology.base.units import format_bytes

COMBINATIONS_OF_SHAPE = 8
"""Combinations looked at for each of their degrees, by their bounds; most are seen twice, coarsely first."""

MOST_LOOKED_AT = 160
"""Combinations of degrees that are looked at, in the order of their bounds, which know no memory."""

SLOWEST = 1.5
"""Plans that take more than this multiple of the best score are not worth showing."""


def alternatives(done: Search, best: Choice, full: Estimate, count: int) -> tuple[Alternative, ...]:
    """Up to `count` − 1 other plans, best first.

    Args:
        done: a finished search.
        best: the plan itself.
        full: its estimate.
        count: plans to show in all.
    """
    if count <= 1:
        return ()
    others = (
        best_split
        for best_split in best_splits(done, count)
        if shape_of(best_split.layout) != shape_of(best.layout)
        and _score(done, best_split) <= SLOWEST * done.score
        and done.keeps(best_split)
    )
    return tuple(_alternative(done, best, full, choice) for choice in itertools.islice(others, count - 1))


def best_splits(done: Search, count: int) -> list[Choice]:
    """Best splits of the combinations of degrees that were looked at, best score first.

    Variants are split in the order of their bounds, until nothing that is left can be among the best `count`.
    """
    _split_likely(done, count)
    known = {key: seed for key, (_, _, seed) in done.pool.items()}
    for bound, priced, row in _likely(done):
        scores = sorted(_score(done, seed) for seed in known.values())
        if len(scores) > count and bound >= scores[count]:
            break
        result = candidate(done.problem, priced, row)
        key, seed = shape_of(result.layout), seed_choice(result)
        if seed is not None and (key not in known or seed.step_time_s < known[key].step_time_s):
            known[key] = seed
    return sorted(known.values(), key=lambda seed: (_score(done, seed), safety(seed)))


def _split_likely(done: Search, count: int) -> None:
    """Split what the search had no need to, until nothing that is left can be among the best `count`.

    Where a deadline may drop any of those, all are split.
    """
    for bound, turn, result in sorted(done.unsplit, key=lambda item: item[:2]):
        scores = sorted(score for score, _, _ in done.pool.values())
        if not done.goal.has_deadline and len(scores) > count and bound > scores[count] * (1 + ROUNDING):
            break
        seed = seed_choice(expressible(result))
        if seed is not None:
            done.remember(seed, turn)


def _score(done: Search, choice: Choice) -> float:
    return float(done.goal.score(choice.layout.num_gpus, choice.step_time_s))


def _promising(done: Search) -> LayoutTable:
    """A few combinations of each of the most promising degrees, by their bounds."""
    if not done.seen:
        return LayoutTable.from_rows([])
    tables, values = zip(*done.seen, strict=True)
    every, bounds = LayoutTable.concat(tables), np.concatenate(values)
    order = np.argsort(bounds, kind="stable")
    order = order[bounds[order] <= SLOWEST * done.score]
    _, first, shape = np.unique(_shapes(every)[order], axis=0, return_index=True, return_inverse=True)
    best = np.argsort(first, kind="stable")[:MOST_LOOKED_AT]
    chosen = [np.flatnonzero(shape.reshape(-1) == item)[:COMBINATIONS_OF_SHAPE] for item in best]
    return every.take(order[np.concatenate(chosen)])


def _likely(done: Search) -> Iterator[tuple[float, Priced, int]]:
    """The variant of the least bound of each combination of degrees, best sharded; best bound first."""
    variants, _ = unfold(done, _promising(done), done.pins, SLOWEST * done.score)
    if len(variants) == 0:
        return
    priced, _, rows = _best_of_shapes(done, variants)
    if len(rows) == 0:
        return
    sharded, _ = shardings(done.problem, done.pins, priced.table.take(rows))
    priced, bounds, rows = _best_of_shapes(done, sharded)
    for row in rows:
        yield float(bounds[row]), priced, int(row)


def _best_of_shapes(
    done: Search, table: LayoutTable
) -> tuple[Priced, npt.NDArray[np.float64], npt.NDArray[np.intp]]:
    """Layouts with costs and bounds, and the rows of the least bound of each combination, best first."""
    priced = priced_columns(done.problem, table)
    cutoff_s = done.goal.cutoff_s(table.num_gpus, SLOWEST * done.score)
    bounds_s = variant_bounds(done.problem, priced, plain_bounds(done.problem, priced), cutoff_s)
    bounds = done.goal.score(table.num_gpus, bounds_s)
    order = np.argsort(bounds, kind="stable")
    order = order[np.isfinite(bounds_s[order])]
    return priced, bounds, order[np.sort(np.unique(_shapes(table)[order], axis=0, return_index=True)[1])]


def _shapes(table: LayoutTable) -> npt.NDArray[np.int64]:
    """Degrees by which plans differ, one row a layout."""
    return np.stack([getattr(table, name) for name in SHAPE], axis=1)


def _alternative(done: Search, best: Choice, full: Estimate, choice: Choice) -> Alternative:
    """Describe another plan relative to the best one."""
    estimate = estimate_of(done.problem, choice)
    return Alternative(
        layout=choice.layout,
        layers_of_stage=layers_of_stage(choice),
        recompute_of_stage=choice.split.recompute_of_stage,
        step_time_s=estimate.step_time_s,
        lower_s=estimate.lower_s,
        upper_s=estimate.upper_s,
        peak_memory_bytes=estimate.peak_memory_bytes,
        out_of_memory_chance=estimate.out_of_memory_chance,
        slower_by=estimate.step_time_s / full.step_time_s - 1,
        tied=tied(estimate, full),
        simulated_s=simulated_step_s(choice.costs, choice.layout, choice.split),
        difference=difference(best, choice),
    )


def tied(estimate: Estimate, other: Estimate) -> bool:
    """Whether the model cannot tell which of two layouts of one job is faster."""
    faster, slower = sorted((estimate.step_time_s, other.step_time_s))
    return slower <= faster * tie_ratio()


def difference(choice: Choice, other: Choice) -> str:
    """What another plan does differently, in words: fields of the layout, then memory.

    Args:
        choice: the plan it is compared with.
        other: the other plan.
    """
    before, after = _choices(choice), _choices(other)
    return changed_words(before, after, choice.peak_memory_bytes - other.peak_memory_bytes)


def changed_words(
    before: dict[str, int | str | None], after: dict[str, int | str | None], spared_bytes: float
) -> str:
    """What changes from one plan's fields to another's, and the memory that it spares."""
    changed = [
        f"{name} {after[name]} instead of {before[name]}"
        for name in before
        if None not in (before[name], after[name]) and before[name] != after[name]
    ]
    memory = f"{format_bytes(abs(spared_bytes))} {'less' if spared_bytes > 0 else 'more'} memory"
    return "; ".join([", ".join(changed) or "another split of the layers", memory])


def _choices(choice: Choice) -> dict[str, int | str | None]:
    """Fields of a choice as they act."""
    return fields_as_they_act(
        choice.layout, sum(map(sum, choice.split.layers_of_stage)), sum(choice.split.recompute_of_stage)
    )


def fields_as_they_act(x: ParallelLayout, layers: int, recomputed: int) -> dict[str, int | str | None]:
    """Fields of a plan as they act: None where a field decides nothing, recomputation in layers."""
    ranks = x.replicas
    replicated = ranks > 1 or (x.expert_shards > 1 and x.expert_dp > 1)
    partly = replicated and x.zero_stage > 0 and x.effective_shard_degree < ranks
    active, usual = (
        [axis for axis in order if getattr(x, axis) > 1] for order in (x.axis_order, DEFAULT_AXIS_ORDER)
    )
    return {name.replace("_", " "): getattr(x, name) for name in DEGREES} | {
        "sequence parallelism": ("off", "on")[x.sequence_parallel] if x.tp > 1 else None,
        "schedule": x.schedule if x.pp > 1 else None,
        "context exchange": x.cp_kind if x.cp > 1 else None,
        "zero stage": x.zero_stage if replicated else None,
        "shard degree": x.effective_shard_degree if partly else "all",
        "recompute": f"{recomputed} of {layers} layers" if x.recompute == "full" else x.recompute,
        "order of axes": "default" if active == usual else "-".join(active),
    }
