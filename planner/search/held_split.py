"""How the stages of one given layout are filled when nothing is optimised: as given, or as the engine does.

Layers of stages are pinned, or those of the engine where nobody says how; an engine that cannot make even
ones stops, and so does this. Recomputation is none, every layer, so many of each rank, or, only where that is
asked for, the fewest with which the layout fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from costmodel.layout import ParallelLayout
from costmodel.pipeline.stage_costs import StageCosts, StageSplit, fits_capacity
from costmodel.pipeline.stages import ranks_of_chunks
from planner.engines.contracts import CONTRACTS, even_layers_of, recomputes_of
from planner.engines.even_layers import as_even_as_possible
from planner.law import Violation
from planner.plan import FREE, LAYERS_OF_STAGE, OPTIMISED, RECOMPUTE_OF_STAGE, Problem
from planner.pricing import split_of
from planner.stages.dynamic_program import consecutive_split
from planner.stages.one_count import expressible_counts, split_of_count
from topology.base.errors import InputError, shown


def is_optimised(pins: Mapping[str, Any]) -> bool:
    """Whether the planner is to split the layers of a given layout itself."""
    return bool(pins.get(LAYERS_OF_STAGE) == OPTIMISED)


def held_layers(s: Problem, x: ParallelLayout, pins: Mapping[str, Any]) -> tuple[int, ...] | Violation:
    """Layers of every virtual stage: as pinned, else as the engine makes them, else why it stops."""
    given, modules = pins.get(LAYERS_OF_STAGE), s.job.mtp_layers
    if given is None:
        return even_layers_of(s.engine)(s.model.num_layers, x, modules) or _stops(s, x)
    layers = tuple(int(count) for count in given)
    _require_stages(s, x, layers)
    return layers


def held_split(
    s: Problem, x: ParallelLayout, pins: Mapping[str, Any], layers: tuple[int, ...], costs: StageCosts
) -> StageSplit:
    """The split of given stages, with recomputation as given.

    Args:
        s: what the layout is judged against.
        x: the layout.
        pins: `planner.plan.SPLIT_PINS` are read.
        layers: of every virtual stage.
        costs: what layers and ranks cost; read where the fewest recomputed layers that fit are asked for.
    """
    plain = split_of(s.model, x, layers, (0,) * x.pp)
    return replace(plain, recompute_of_stage=_recomputed(s, x, pins, plain, costs))


def _recomputed(
    s: Problem, x: ParallelLayout, pins: Mapping[str, Any], plain: StageSplit, costs: StageCosts
) -> tuple[int, ...]:
    """Recomputed layers of every pipeline rank."""
    given, held = pins.get(RECOMPUTE_OF_STAGE), plain.layers_of_rank
    if given is not None:
        counts = tuple(int(count) for count in given)
        _require_recomputed(x, counts, held)
        return counts
    if x.recompute != "full":
        return plain.recompute_of_stage
    if s.recomputed_layers == "all":
        return held
    if s.recomputed_layers is not None:
        most = s.recomputed_layers
        return tuple(min(count, most) for count in held)
    return _fewest(s, x, plain, costs)


def _fewest(s: Problem, x: ParallelLayout, plain: StageSplit, costs: StageCosts) -> tuple[int, ...]:
    """The fewest recomputed layers that the engine can be told and that fit: all where none do.

    Within the memory that a plan may fill, else within all there is.
    """
    owners, value = ranks_of_chunks(x), recomputes_of(s.engine)
    layers = plain.chunk_layers(owners)
    for room in (s.memory_budget_bytes, costs.capacity_bytes):
        within = replace(costs, capacity_bytes=room)
        if value == "per-rank":
            split = consecutive_split(within, owners, layers)
        else:
            each = (split_of_count(within, owners, layers, n) for n in expressible_counts(max(layers), value))
            split = next((split for split in each if fits_capacity(within, split)), None)
        if split is not None:
            return split.recompute_of_stage
    return plain.layers_of_rank


def _stops(s: Problem, x: ParallelLayout) -> Violation:
    """That an engine makes no stages of so many layers, and the stages that could be pinned."""
    title = CONTRACTS[s.engine].title if s.engine != FREE else s.stack.name
    layers, stages = s.model.num_layers, x.pp * x.virtual_stages
    as_even = as_even_as_possible(layers, x, s.job.mtp_layers)
    return Violation(
        rule="even-layers",
        message=f"num_layers % (pp·virtual_stages) = {layers} % ({x.pp}·{x.virtual_stages}) = "
        f"{layers % stages}: {title} makes no such stages, nor with a place for the embedding or the loss",
        have=layers % stages,
        need=0,
        unit="layers",
        hint=f"set layout.{LAYERS_OF_STAGE}={layers_text(as_even)}, or {OPTIMISED} for the best split",
    )


def layers_text(layers: Sequence[int]) -> str:
    """Layers of stages as they are pinned.

    >>> layers_text((8, 8, 8, 6)), layers_text((3, 4))
    ('8*3-6', '3-4')
    """
    runs: list[list[int]] = []
    for count in layers:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return "-".join(f"{count}*{times}" if times > 1 else f"{count}" for count, times in runs)


def _require_stages(s: Problem, x: ParallelLayout, layers: tuple[int, ...]) -> None:
    """Refuse layers of stages that are not those of the layout and the model."""
    stages, owners = x.pp * x.virtual_stages, ranks_of_chunks(x)
    wrong = ""
    if len(layers) != stages:
        wrong = f"it has {len(layers)} stages, pp·virtual_stages = {x.pp}·{x.virtual_stages} = {stages}"
    elif sum(layers) != s.model.num_layers:
        wrong = f"they are {sum(layers)} layers, {s.model.name} has {s.model.num_layers}"
    elif set(range(x.pp)) - {rank for rank, count in zip(owners, layers, strict=True) if count > 0}:
        wrong = "a pipeline rank has no layer"
    if wrong:
        as_even = as_even_as_possible(s.model.num_layers, x, s.job.mtp_layers)
        raise InputError(
            what=f"layout.{LAYERS_OF_STAGE} cannot be {shown(layers_text(layers))}",
            cause=wrong,
            fix=f"pin for example layout.{LAYERS_OF_STAGE}={layers_text(as_even)}",
        )


def _require_recomputed(x: ParallelLayout, counts: tuple[int, ...], held: tuple[int, ...]) -> None:
    """Refuse recomputed layers that are not there."""
    wrong = ""
    if len(counts) != x.pp:
        wrong = f"it counts layers of {len(counts)} pipeline ranks, pp = {x.pp}"
    elif any(not 0 <= count <= most for count, most in zip(counts, held, strict=True)):
        wrong = f"the ranks hold {layers_text(held)} layers"
    elif any(counts) and x.recompute != "full":
        wrong = f"whole layers are recomputed under recompute=full, not {x.recompute}"
    if wrong:
        raise InputError(
            what=f"layout.{RECOMPUTE_OF_STAGE} cannot be {shown(layers_text(counts))}",
            cause=wrong,
            fix=f"pin for example layout.{RECOMPUTE_OF_STAGE}={layers_text(held)}, or layout.recompute=full",
        )
