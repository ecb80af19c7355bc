"""Plans beside the best one: different, worth considering, and marked as ties where the model cannot tell.

Two plans are *different* when their degrees differ; of each combination of degrees only the best is shown.
They are
*tied* when the slower one's step lies inside the error band of the faster one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from costmodel.estimate import Estimate
from costmodel.layout import DEFAULT_AXIS_ORDER, LayoutTable, ParallelLayout
from planner.best_first import Search
from planner.bounds import price
from planner.candidates import Choice, candidate, layers_of_stage, seed_choice
from planner.plan import Alternative
from planner.search import estimate_of
from topology.units import format_bytes

T = TypeVar("T")

LOOKED_AT = 4
"""Layouts split for each alternative that is shown: bounds order them, splits decide."""


def alternatives(done: Search, best: Choice, full: Estimate, count: int) -> tuple[Alternative, ...]:
    """Up to `count` − 1 other plans, best first.

    Args:
        done: a finished search.
        best: the plan itself.
        full: its estimate.
        count: plans to show in all.
    """
    others = [found for found in near_best(done, LOOKED_AT * count) if _degrees(found) != _degrees(best)]
    return tuple(_alternative(done, best, full, found) for found in others[: max(0, count - 1)])


def near_best(done: Search, count: int) -> list[Choice]:
    """The best split of the most promising layout of each combination of degrees, best score first."""
    ranked = sorted(done.pool.values(), key=lambda item: item[0])[:count]
    if not ranked:
        return []
    priced = price(done.setting, LayoutTable.of([layout for _, layout in ranked]), done.cal)
    seeds = [seed_choice(candidate(done.setting, priced, row)) for row in range(len(ranked))]
    fitting = [seed for seed in seeds if seed is not None]
    return sorted(fitting, key=lambda seed: float(done.goal.score(seed.layout.num_gpus, seed.step_time_s)))


def prefer_headroom(done: Search) -> Choice | None:
    """Of the plans the error band cannot tell from the fastest, the one that leaves most memory free."""
    if done.best is None:
        return None
    band_s = estimate_of(done.setting, done.best, done.cal).upper_s
    tied = [found for found in near_best(done, len(done.pool)) if found.step_time_s <= band_s]
    return min([done.best, *tied], key=lambda found: found.peak_memory_bytes)


def _degrees(found: Choice) -> tuple[int, ...]:
    x = found.layout
    return (x.tp, x.pp, x.cp, x.ep)


def _alternative(done: Search, best: Choice, full: Estimate, found: Choice) -> Alternative:
    """Describe another plan relative to the best one."""
    own = estimate_of(done.setting, found, done.cal)
    return Alternative(
        layout=found.layout,
        layers_of_stage=layers_of_stage(found),
        recompute_of_stage=found.split.recompute_of_stage,
        step_time_s=own.step_time_s,
        lower_s=own.lower_s,
        upper_s=own.upper_s,
        peak_memory_bytes=own.peak_memory_bytes,
        slower_by=own.step_time_s / full.step_time_s - 1,
        tied=min(own.step_time_s, full.step_time_s) >= max(own.lower_s, full.lower_s),
        difference=difference(best, found),
    )


def difference(one: Choice, other: Choice) -> str:
    """What another plan does differently, in words: fields of the layout, then memory.

    Args:
        one: the plan it is compared with.
        other: the other plan.
    """
    before, after = _choices(one), _choices(other)
    changed = [
        f"{name} {after[name]} instead of {before[name]}"
        for name in before
        if None not in (before[name], after[name]) and before[name] != after[name]
    ]
    spared = one.peak_memory_bytes - other.peak_memory_bytes
    memory = f"{format_bytes(abs(spared))} {'less' if spared > 0 else 'more'} memory"
    return "; ".join([", ".join(changed) or "another split of the layers", memory])


def _choices(found: Choice) -> dict[str, int | str | None]:
    """Fields of a plan as they act: None where a field decides nothing, recomputation in layers."""
    x, layers = found.layout, sum(map(sum, found.split.layers_of_stage))
    ranks, again = x.dp * x.cp, sum(found.split.recompute_of_stage)
    replicated = ranks > 1 or (x.ep * x.expert_tp > 1 and x.expert_dp > 1)
    partly = replicated and x.zero_stage > 0 and x.effective_shard_degree < ranks
    active, usual = (
        [axis for axis in order if getattr(x, axis) > 1] for order in (x.axis_order, DEFAULT_AXIS_ORDER)
    )
    degrees = ("tp", "pp", "dp", "cp", "ep", "expert_tp", "virtual_stages", "microbatch_size")
    return {name.replace("_", " "): getattr(x, name) for name in degrees} | {
        "sequence parallelism": ("off", "on")[x.sequence_parallel] if x.tp > 1 else None,
        "schedule": x.schedule if x.pp > 1 else None,
        "context exchange": x.cp_kind if x.cp > 1 else None,
        "zero stage": x.zero_stage if replicated else None,
        "shard degree": x.effective_shard_degree if partly else "all",
        "recompute": f"of {again} of {layers} layers" if x.recompute == "full" else x.recompute,
        "order of axes": "default" if active == usual else "-".join(active),
    }


def pareto(points: Sequence[T], costs: Iterable[Sequence[float]]) -> list[T]:
    """Points that no other point beats in every cost at once, in their given order.

    >>> pareto(["fast", "cheap", "neither"], [(1, 9), (5, 2), (6, 9)])
    ['fast', 'cheap']

    Args:
        points: anything.
        costs: for each point, numbers of which less is better.
    """
    table = np.array([list(cost) for cost in costs], dtype=np.float64)
    kept = []
    for row, point in zip(table, points, strict=True):
        beaten = ((table <= row).all(axis=1) & (table < row).any(axis=1)).any()
        if not beaten:
            kept.append(point)
    return kept


def changed_fields(one: ParallelLayout, other: ParallelLayout) -> dict[str, tuple[Any, Any]]:
    """Fields in which two layouts differ, with both values."""
    values = {f.name: (getattr(one, f.name), getattr(other, f.name)) for f in fields(ParallelLayout)}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}
