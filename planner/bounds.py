"""Admissible bounds for many layouts at once: what no split of a layout, and no variant of a core, can beat.

A *core* is bounded by the compute of its cut and by its collectives on the best placement any order of axes
could give them, under the smallest bubble the stack offers. A *variant* is bounded rank by rank: for a
given time of the slowest rank, each rank can take only so many layers (recomputing as few as memory forces
it to), and together they must take all. Nothing here is a guess: raising any bound above the truth would
break "proven".

Legend: ``P`` pipeline ranks, ``M`` microbatches, ``L`` layers, ``t`` seconds of a microbatch on a rank,
    ``β`` bubble.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from costmodel.calibration import Calibration
from costmodel.chunks import V_SHAPED
from costmodel.composition import CostColumns, compose, step_stretch
from costmodel.constants import default_constants
from costmodel.features import features_of
from costmodel.layout import AXIS_ORDERS, CP_KINDS, RECOMPUTES, SCHEDULES, LayoutTable, num_microbatches
from costmodel.memory import MemoryPieces, held_microbatches, holds_ends, memory_pieces
from costmodel.model import layer_runs
from costmodel.scoring import step_lower_bound
from costmodel.shards import distinct_rows
from planner.violation import Setting

Vector = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
T = TypeVar("T")

ROUNDING = 1e-9
"""Relative slack of every comparison between a bound and an incumbent: far above float error.
"""

HALVINGS = 14
"""Steps in which the slowest rank is narrowed down; each bound is within 2⁻¹⁴ of the range it starts from."""

NEAR = 2.0
"""The slowest rank is first looked for up to this multiple of the mean rank."""

_FULL = RECOMPUTES.index("full")
_TP_INNERMOST = AXIS_ORDERS.index(("pp", "dp", "cp", "tp"))
_CP_INNERMOST = AXIS_ORDERS.index(("pp", "dp", "tp", "cp"))
_PAIRING = SCHEDULES.index("dualpipev")
_FREE_BUBBLE = ("zb-h1", "zbv", "dualpipev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Layouts with their time and memory, before any split."""

    table: LayoutTable
    costs: CostColumns
    pieces: MemoryPieces


def price(setting: Setting, table: LayoutTable, cal: Calibration) -> Priced:
    """Time and memory columns of some layouts."""
    s = setting
    costs = compose(features_of(s.model, s.cluster, s.job, s.stack, table, cal), default_constants())
    return Priced(table=table, costs=costs, pieces=memory_pieces(s.model, s.job, s.stack, table))


def rows_of(value: T, index: npt.NDArray[Any], rows: int) -> T:
    """The same columns for some rows: arrays whose last axis counts rows are indexed, all else is kept."""
    if isinstance(value, np.ndarray):
        return value[..., index] if value.ndim and value.shape[-1] == rows else value  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple(rows_of(item, index, rows) for item in value)  # type: ignore[return-value]
    if isinstance(value, LayoutTable):
        return value.take(index)  # type: ignore[return-value]
    if is_dataclass(value):
        changed = {f.name: rows_of(getattr(value, f.name), index, rows) for f in fields(value)}
        return replace(value, **changed)  # type: ignore[type-var]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchTimes:
    """Least seconds of a microbatch, of the whole model and of its cheapest layer, on one node."""

    total_s: Vector
    layer_s: Vector

    def take(self, index: npt.NDArray[Any]) -> MicrobatchTimes:
        """Entries of some rows."""
        return MicrobatchTimes(total_s=self.total_s[index], layer_s=self.layer_s[index])


def step_bound(
    setting: Setting, times: MicrobatchTimes, degrees: Mapping[str, Any], microbatches: Any, beta: Any
) -> Vector:
    """Seconds that no step of these microbatches can beat, by the mean rank and by whole layers.

    (M − β)·max(total/P, ⌈L/P⌉·layer) + β·total, stretched by the number of nodes. Arguments broadcast.

    Args:
        setting: what is asked.
        times: least seconds of a microbatch.
        degrees: tp, cp, pp, dp.
        microbatches: M.
        beta: share of the fill-and-drain time that shows.
    """
    gpus = degrees["tp"] * degrees["cp"] * degrees["pp"] * degrees["dp"]
    nodes = np.maximum(1.0, gpus / setting.cluster.hierarchy.gpus_per_node)
    stretch = step_stretch(nodes, setting.stack.level, default_constants())
    whole = np.ceil(setting.model.num_layers / degrees["pp"]) * times.layer_s
    slowest = np.maximum(times.total_s / degrees["pp"], whole)
    return np.asarray(stretch * ((microbatches - beta) * slowest + beta * times.total_s) * (1 - ROUNDING))


def cut_times(setting: Setting, cuts: LayoutTable, cal: Calibration) -> MicrobatchTimes:
    """Least seconds of a microbatch per cut if collectives were free: what compute alone takes."""
    alone = replace(cuts, dp=np.maximum(1, setting.job.global_batch_size // cuts.microbatch_size))
    return _times(setting, *_seconds(setting, alone, cal, None))


def core_times(setting: Setting, cores: LayoutTable, cal: Calibration) -> MicrobatchTimes:
    """Least seconds of a microbatch per core with its collectives on the best placement.

    Priced once per distinct cut, without data parallelism, under the two orders that put tensor or context
    ranks next to each other; every other order only spreads one of them further.
    """
    single = num_microbatches(cores, setting.job) == 1
    replicas = np.where(single, cores.dp, _fewest_replicas(cores))
    keys = [cores.tp, cores.cp, cores.ep, cores.expert_tp, cores.microbatch_size, replicas]
    first, cut = distinct_rows([*keys, cores.sequence_parallel.astype(np.int64)])
    cuts = replace(cores.take(first), dp=replicas[first])
    return _times(setting, *_best_seconds(setting, cuts, cal)).take(cut)


def placed_times(setting: Setting, placed: LayoutTable, cal: Calibration) -> MicrobatchTimes:
    """Least seconds of a microbatch under each placement: sharding of state and schedules can only add."""
    s, none = setting, np.zeros(len(placed), dtype=np.int64)
    table = replace(
        placed,
        zero_stage=none,
        shard_degree=placed.dp * placed.cp,
        recompute=none,
        schedule=np.full(len(placed), _kindest_schedule(s)),
    )
    costs = compose(features_of(s.model, s.cluster, s.job, s.stack, table, cal), default_constants())
    return _times(setting, costs.layer_s / costs.stretch, (costs.first_s + costs.last_s) / costs.stretch)


def _times(setting: Setting, layers: Vector, ends: Vector) -> MicrobatchTimes:
    counts = np.array([run.count for run in layer_runs(setting.model)], dtype=np.float64)
    return MicrobatchTimes(total_s=counts @ layers + ends, layer_s=layers.min(axis=0))


def columns_of(table: LayoutTable) -> dict[str, npt.NDArray[np.int64]]:
    """Degrees of a table by name."""
    return {"tp": table.tp, "cp": table.cp, "pp": table.pp, "dp": table.dp}


def least_bubble(table: LayoutTable) -> Vector:
    """Least share of the fill-and-drain time that each layout's own schedule can leave."""
    names = np.array(SCHEDULES)[table.schedule]
    share = np.where(np.isin(names, _FREE_BUBBLE), 0.0, 1 / table.virtual_stages)
    return np.asarray(np.where(table.pp > 1, share, 0.0))


def _best_seconds(setting: Setting, cuts: LayoutTable, cal: Calibration) -> tuple[Vector, Vector]:
    """Seconds of a microbatch per layer of each run, and of both ends, at best over exchanges and orders.

    Without context parallelism there is one exchange; inside a node, or with one of the two axes, one order.
    """
    layers, ends = np.full((len(layer_runs(setting.model)), len(cuts)), np.inf), np.full(len(cuts), np.inf)
    far = (cuts.tp > 1) & (cuts.tp * cuts.cp > setting.cluster.hierarchy.gpus_per_host)
    kinds = [CP_KINDS.index(kind) for kind in setting.stack.cp_kinds]
    groups = [
        (np.flatnonzero(cuts.cp == 1), [(0, _TP_INNERMOST)]),
        (np.flatnonzero((cuts.cp > 1) & ~far), [(kind, _TP_INNERMOST) for kind in kinds]),
        (np.flatnonzero((cuts.cp > 1) & far), list(itertools.product(kinds, (_TP_INNERMOST, _CP_INNERMOST)))),
    ]
    for rows, placements in groups:
        for placement in placements if len(rows) else ():
            of_layers, of_ends = _seconds(setting, cuts.take(rows), cal, placement)
            layers[:, rows] = np.minimum(layers[:, rows], of_layers)
            ends[rows] = np.minimum(ends[rows], of_ends)
    return layers, ends


def _seconds(
    setting: Setting, cuts: LayoutTable, cal: Calibration, placement: tuple[int, int] | None
) -> tuple[Vector, Vector]:
    """Seconds of a microbatch per layer of each run, and of both ends; collectives free unless placed."""
    s, ones = setting, np.ones(len(cuts), dtype=np.int64)
    kind, order = placement or (0, _TP_INNERMOST)
    schedule = _kindest_schedule(s)
    table = replace(
        cuts, pp=(1 + (schedule == _PAIRING)) * ones, virtual_stages=ones, schedule=schedule * ones,
        zero_stage=0 * ones, shard_degree=cuts.dp * cuts.cp, recompute=0 * ones,
        cp_kind=kind * ones, axis_order=order * ones,
    )  # fmt: skip
    times = features_of(s.model, s.cluster, s.job, s.stack, table, cal, transfers=placement is not None)
    costs = compose(times, default_constants())
    return costs.layer_s / costs.stretch, (costs.first_s + costs.last_s) / costs.stretch


def _kindest_schedule(setting: Setting) -> int:
    """Code of the schedule under which a layer takes least: one that pairs passes hides expert traffic."""
    pairs = setting.model.is_moe and SCHEDULES[_PAIRING] in setting.stack.schedules
    return _PAIRING if pairs else SCHEDULES.index(setting.stack.schedules[0])


def _fewest_replicas(table: LayoutTable) -> npt.NDArray[np.int64]:
    """Least dp whose block can hold the experts as they are cut."""
    block = table.ep * table.expert_tp
    return np.asarray(block // np.gcd(block, table.cp * table.tp), dtype=np.int64)


def smallest_bubble(setting: Setting, pp: Any) -> Vector:
    """Least share of the fill-and-drain time any schedule of the stack leaves."""
    if any(name in setting.stack.schedules for name in _FREE_BUBBLE):
        return np.zeros_like(pp, dtype=np.float64)
    chunks = setting.model.num_layers // pp if "interleaved" in setting.stack.schedules else 1
    return np.asarray(np.where(pp > 1, 1 / np.maximum(chunks, 1), 0.0))


def smallest_memory(setting: Setting, cores: LayoutTable) -> Vector:
    """Bytes per GPU that no variant of a core can go below on its fullest rank: the mean over ranks at best.

    Every ZeRO stage is tried: sharding parameters needs buffers to gather them, so the highest is not the
    smallest.
    """
    return np.asarray(
        np.min([_mean_memory(setting, cores, zero) for zero in setting.stack.zero_stages], axis=0)
    )


def _mean_memory(setting: Setting, cores: LayoutTable, zero_stage: int) -> Vector:
    """Mean bytes over ranks of 1F1B, all recomputed, one microbatch in flight, at this ZeRO stage."""
    s, ones = setting, np.ones(len(cores), dtype=np.int64)
    policy = _FULL if "full" in s.stack.recomputes else RECOMPUTES.index(s.stack.recomputes[0])
    table = replace(
        cores,
        schedule=SCHEDULES.index("1f1b") * ones,
        zero_stage=zero_stage * ones,
        shard_degree=cores.dp * cores.cp,
        recompute=policy * ones,
    )
    pieces = memory_pieces(s.model, s.job, s.stack, table)
    layers = sum(
        run.count * (layer.state.total_bytes + np.minimum(layer.saved_bytes, layer.saved_bytes_recomputed))
        for run, layer in zip(layer_runs(s.model), pieces.layers, strict=True)
    )
    ends = pieces.embedding.state.total_bytes + pieces.head.state.total_bytes + pieces.head.activation_bytes
    everywhere = pieces.fragmentation * (pieces.working_bytes + pieces.buffer_bytes) + pieces.runtime_bytes
    return np.asarray(pieces.fragmentation * (layers + ends) / cores.pp + everywhere) * (1 - ROUNDING)


def plain_bounds(setting: Setting, priced: Priced) -> Vector:
    """Seconds that no split of each layout can beat, memory left aside."""
    counts = np.array([run.count for run in layer_runs(setting.model)], dtype=np.float64)
    return step_lower_bound(priced.costs, counts, priced.table)


def variant_bounds(setting: Setting, priced: Priced, plain_s: Vector, cutoff_s: Vector) -> Vector:
    """Seconds that no split of each layout can beat; infinite where no split fits or none beats the cutoff.

    Args:
        setting: what is asked.
        priced: layouts with their costs.
        plain_s: per layout, its bound with memory left aside.
        cutoff_s: per layout, the step time it has to beat to matter.
    """
    counts = np.array([run.count for run in layer_runs(setting.model)], dtype=np.float64)
    hopeful = np.flatnonzero(plain_s <= cutoff_s * (1 + ROUNDING))
    result = np.full(len(plain_s), np.inf)
    rows = len(priced.table)
    for part in _equal_pipelines(priced.table.pp, hopeful):
        some = rows_of(priced, part, rows)
        result[part] = np.maximum(plain_s[part], _rank_bounds(setting, some, counts, cutoff_s[part]))
    return result


def _equal_pipelines(pp: npt.NDArray[np.int64], index: Index) -> Iterator[Index]:
    """Rows of the index with the same number of pipeline ranks, together."""
    for ranks in np.unique(pp[index]):
        yield index[pp[index] == ranks]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranks:
    """What limits the layers of the largest run on each rank; arrays of shape (layouts, P) or (layouts, 1).

    `per_layer_bytes`·n − `freed_bytes`·r ≤ `room_bytes`, and n·`layer_s` + r·`again_s` + `fixed_s` ≤ t.
    """

    layer_s: Vector
    again_s: Vector
    fixed_s: Vector
    per_layer_bytes: Vector
    freed_bytes: Vector
    room_bytes: Vector
    again_room_bytes: Vector


def _rank_bounds(setting: Setting, priced: Priced, counts: Vector, cutoff_s: Vector) -> Vector:
    """Bound by the slowest rank, narrowed by halving between the mean and what the cutoff allows."""
    costs, P = priced.costs, float(priced.table.pp[0])
    M, beta = costs.num_microbatches, costs.bubble_weight
    total = counts @ costs.layer_s + P * costs.every_s + costs.first_s + costs.last_s
    forms = np.einsum("k,jkn->jn", counts, costs.tail_layer_s) + costs.tail_first_s + costs.tail_last_s
    rest = beta * total + (forms / P).max(axis=0) + costs.constant_s
    weight = np.maximum(M - beta, 1e-12)
    ranks = _rank_limits(setting, priced)
    low, high = total / P, np.maximum((cutoff_s * (1 + ROUNDING) - rest) / weight, total / P)
    least, most, need = _layers_needed(priced.table, counts)
    bounds = np.full(len(low), np.inf)
    possible = np.flatnonzero(_enough(ranks, high, least, most, need))
    if len(possible) == 0:
        return bounds
    some, of = rows_of_ranks(ranks, possible), possible
    low, high, least, most = low[of], high[of], least[of], most[of]
    near = low * NEAR
    high = np.where(
        (high > near) & _enough(some, near, least, most, need), near, np.minimum(high, low / ROUNDING)
    )
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        works = _enough(some, middle, least, most, need)
        low, high = np.where(works, low, middle), np.where(works, middle, high)
    bounds[of] = (weight[of] * low + rest[of]) * (1 - ROUNDING)
    return bounds


def rows_of_ranks(ranks: _Ranks, index: Index) -> _Ranks:
    """Limits of some layouts."""
    return replace(ranks, **{f.name: getattr(ranks, f.name)[index] for f in fields(ranks)})


def _layers_needed(table: LayoutTable, counts: Vector) -> tuple[Vector, Vector, float]:
    """Least and most layers of the largest run each rank may take, and all of them; other runs are let go.

    A rank with one chunk takes at least a layer. With several, chunks are equal but for the first and the
    last of the model, which lack at most all but one layer, or all of them where nothing else divides.
    """
    layers, P = counts.sum(), int(table.pp[0])
    V = table.virtual_stages[:, None].astype(np.float64)
    each = np.where(V > 1, np.ceil(layers / (P * V)), layers)
    v_shaped = np.isin(table.schedule, [SCHEDULES.index(name) for name in V_SHAPED])[:, None]
    rank = np.arange(P)[None, :]
    ends = (rank == 0) * np.where(v_shaped, 2, 1) + ((rank == P - 1) & ~v_shaped)
    most = np.minimum(V * each, layers) + 0.0 * rank
    lacking = np.where(each * P * V - layers > 2 * (each - 1), each, each - 1)
    least = np.where(V > 1, V * each - ends * lacking, 1.0) if len(counts) == 1 else 0.0 * most
    return least, most, float(counts.max())


def _enough(
    ranks: _Ranks, seconds: Vector, least: Vector, most: Vector, need: float
) -> npt.NDArray[np.bool_]:
    """Whether ranks of at most this many seconds can take all layers, each within its least and most."""
    t = np.maximum(seconds[:, None] * (1 + ROUNDING) - ranks.fixed_s, -1.0)
    kept = np.minimum(t / ranks.layer_s, ranks.room_bytes / ranks.per_layer_bytes)
    with np.errstate(divide="ignore", invalid="ignore"):
        owed = ranks.again_s / ranks.freed_bytes
        paced = (t + ranks.again_room_bytes * owed) / (ranks.layer_s + ranks.per_layer_bytes * owed)
        held = ranks.again_room_bytes / (ranks.per_layer_bytes - ranks.freed_bytes)
    some = np.where(ranks.freed_bytes > 0, np.minimum(np.minimum(paced, held), t / ranks.layer_s), -1.0)
    taken = np.floor(np.maximum(kept, some) * (1 + ROUNDING) + ROUNDING)
    return np.asarray((taken >= least).all(axis=1) & (np.minimum(taken, most).sum(axis=1) >= need))


def _rank_limits(setting: Setting, priced: Priced) -> _Ranks:
    """Limits of the largest run of layers on every rank."""
    table, costs, pieces = priced.table, priced.costs, priced.pieces
    runs = layer_runs(setting.model)
    k = max(range(len(runs)), key=lambda run: runs[run].count)
    stage = np.arange(int(table.pp[0]))[None, :]
    schedule, V = table.schedule[:, None], table.virtual_stages[:, None]
    M = num_microbatches(table, setting.job)[:, None]
    relief = np.broadcast_to(pieces.first_backward_relief, len(table))[:, None]
    held = held_microbatches(relief, schedule, table.pp[:, None], V, M, stage)
    first, last = holds_ends(np.broadcast_to(schedule, (len(table), stage.size)), table.pp[:, None], stage)
    layer, grown, rows = pieces.layers[k], pieces.fragmentation, len(table)

    def column(value: Any) -> Vector:
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (rows,))[:, None]

    saved, kept = column(layer.saved_bytes), column(layer.saved_bytes_recomputed)
    freed = np.where(column(table.recompute == _FULL) > 0, np.maximum(saved - kept, 0.0), 0.0)
    embedding = column(pieces.embedding.state.total_bytes + pieces.embedding.activation_bytes)
    head = column(pieces.head.state.total_bytes + pieces.head.activation_bytes)
    everywhere = column(pieces.working_bytes + pieces.buffer_bytes)
    fixed = grown * (first * embedding + last * head + everywhere) + column(pieces.runtime_bytes)
    room = setting.memory_budget_bytes * (1 + ROUNDING) - fixed
    return _Ranks(
        layer_s=column(costs.layer_s[k]),
        again_s=np.maximum(column(costs.recompute_s[k]), 0.0),
        fixed_s=column(costs.every_s) + first * column(costs.first_s) + last * column(costs.last_s),
        per_layer_bytes=grown * (column(layer.state.total_bytes) + held * saved),
        freed_bytes=grown * held * freed,
        room_bytes=room,
        again_room_bytes=room
        - grown * (column(pieces.recompute_working_bytes) - last * column(pieces.head.recompute_room_bytes)),
    )
