"""Plans beside the best one: different, worth considering, and marked as ties where the model cannot tell.

Two plans are *different* when their degrees differ; of each combination of degrees only the best is shown.
They are *tied* when the slower one's step lies inside the error band of the faster one.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import numpy.typing as npt

from costmodel.estimate import Estimate
from costmodel.layout import DEFAULT_AXIS_ORDER, LayoutTable
from planner.best_first import Search
from planner.candidates import Choice, candidate, layers_of_stage, safety, seed_choice
from planner.plan import Alternative
from planner.priced import price
from planner.rank_bounds import plain_bounds, variant_bounds
from planner.retime import simulated_step_s
from planner.search import estimate_of
from planner.space import pipelines, placements, variants
from topology.units import format_bytes

CORES_OF_SHAPE = 4
"""Cores looked at for each combination of degrees; bounds order them."""

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
    others = [
        found
        for found in near_best(done)
        if _degrees(found) != _degrees(best) and _score(done, found) <= SLOWEST * done.score
    ]
    return tuple(_alternative(done, best, full, found) for found in others[: max(0, count - 1)])


def near_best(done: Search) -> list[Choice]:
    """The best split of each combination of degrees, best score first, of the `MOST_LOOKED_AT` likeliest."""
    known = {key: seed for key, (_, seed) in done.pool.items()}
    for seed in _fresh(done):
        key = _degrees(seed)
        if key not in known or seed.step_time_s < known[key].step_time_s:
            known[key] = seed
    return sorted(known.values(), key=lambda seed: (_score(done, seed), safety(seed)))


def _score(done: Search, found: Choice) -> float:
    return float(done.goal.score(found.layout.num_gpus, found.step_time_s))


def _fresh(done: Search) -> list[Choice]:
    """Splits of the best variant of each of the most promising combinations of degrees."""
    placed, _ = placements(done.setting, done.pins, _promising_cores(done))
    pipelined, _, _ = pipelines(done.setting, done.pins, placed)
    found, _ = variants(done.setting, done.pins, pipelined)
    if len(found) == 0:
        return []
    priced = price(done.setting, found, done.cal)
    cutoff_s = done.goal.cutoff_s(found.num_gpus, SLOWEST * done.score)
    bounds_s = variant_bounds(done.setting, priced, plain_bounds(done.setting, priced), cutoff_s)
    order = np.argsort(done.goal.score(found.num_gpus, bounds_s), kind="stable")
    order = order[np.isfinite(bounds_s[order])]
    rows = order[np.sort(np.unique(_shapes(found)[order], axis=0, return_index=True)[1])]
    seeds = [seed_choice(candidate(done.setting, priced, int(row))) for row in rows]
    return [seed for seed in seeds if seed is not None]


def _promising_cores(done: Search) -> LayoutTable:
    """A few cores of each of the most promising combinations of degrees, by their bounds."""
    tables = [table for table, _ in done.seen]
    if not tables:
        return LayoutTable.of([])
    every = LayoutTable(
        **{f.name: np.concatenate([getattr(table, f.name) for table in tables]) for f in fields(LayoutTable)}
    )
    bounds = np.concatenate([bounds for _, bounds in done.seen])
    order = np.argsort(bounds, kind="stable")
    order = order[bounds[order] <= SLOWEST * done.score]
    _, first, shape = np.unique(_shapes(every)[order], axis=0, return_index=True, return_inverse=True)
    best = np.argsort(first, kind="stable")[:MOST_LOOKED_AT]
    chosen = [np.flatnonzero(shape.reshape(-1) == one)[:CORES_OF_SHAPE] for one in best]
    return every.take(order[np.concatenate(chosen)])


def _shapes(table: LayoutTable) -> npt.NDArray[np.int64]:
    """Degrees by which plans differ, one row a layout."""
    return np.stack([table.tp, table.pp, table.cp, table.ep], axis=1)


def prefer_headroom(done: Search) -> Choice | None:
    """Of the plans the error band cannot tell from the fastest, the one that leaves most memory free."""
    if done.best is None:
        return None
    band_s = estimate_of(done.setting, done.best, done.cal).upper_s
    tied = [found for found in near_best(done) if found.step_time_s <= band_s]
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
        simulated_s=simulated_step_s(found.costs, found.layout, found.split),
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
        "recompute": f"{again} of {layers} layers" if x.recompute == "full" else x.recompute,
        "order of axes": "default" if active == usual else "-".join(active),
    }
