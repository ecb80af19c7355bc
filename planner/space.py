"""The space that is searched: every layout, in two tables.

A *core* fixes what one microbatch costs a rank (degrees, microbatch, sequence parallelism); its *variants*
fix the schedule, the sharding of state, recomputation and the order of the axes. Cores are enumerated
whole, bounded by compute alone, and only those that could still win are expanded into variants.

What the space leaves out, and why nothing is lost:

* idle GPUs are allowed: any product of degrees up to the size of the cluster is in the space;
* a context-parallel rank keeps at least one attention tile of `LEAST_TOKENS` tokens;
* experts are cut by expert_tp = 1 or tp, the two groups that stacks build;
* GPipe is left out where 1F1B is offered: same bubble, never less memory;
* tensor parallelism cuts whole key/value heads;
* virtual stages: up to `EVERY_VIRTUAL_STAGE` all, beyond it those that divide the layers of a rank evenly;
* state is sharded over all dp·cp ranks, or (ZeRO 2 and 3) within one unit of the fabric;
* orders of axes that differ only in axes of one member are one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from costmodel.layout import AXIS_ORDERS, CP_KINDS, RECOMPUTES, SCHEDULES, LayoutTable
from planner.rules import legal
from planner.stack_rules import CHUNKS_OF_SCHEDULE
from planner.violation import Setting

Integers = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]

LEAST_TOKENS = 128
EVERY_VIRTUAL_STAGE = 8
CORE_FIELDS = frozenset(("tp", "cp", "pp", "dp", "microbatch_size", "ep", "expert_tp", "sequence_parallel"))
COARSE_MICROBATCH = 4
_CODES: Mapping[str, tuple[Any, ...]] = {
    "schedule": SCHEDULES, "recompute": RECOMPUTES, "cp_kind": CP_KINDS, "axis_order": AXIS_ORDERS,
}  # fmt: skip


def cores(
    setting: Setting, pins: Mapping[str, Any], *, least_gpus: float = 1.0, coarse: bool = False
) -> tuple[LayoutTable, dict[str, int]]:
    """Every legal core with its variants at defaults, and the cores each rule was the first to reject.

    Args:
        setting: what layouts are judged against.
        pins: fixed fields.
        least_gpus: leave out degrees that use fewer GPUs (counted under ``too-few-gpus``).
        coarse: only the usual choices, to find a first plan quickly.
    """
    limit, job, model = setting.cluster.num_gpus, setting.job, setting.model
    tensor = _divisors(model.num_attention_heads if model.is_mla else model.num_key_value_heads, limit)
    table: Columns = {"tp": np.array(_pinned(pins, "tp", tensor))}
    table = _within(_cross(table, "cp", _pinned(pins, "cp", _context_degrees(setting, limit))), limit)
    stages = _pipeline_degrees(setting, limit, coarse=coarse)
    table = _within(_cross(table, "pp", _pinned(pins, "pp", stages)), limit)
    replicas = _divisors(job.global_batch_size, limit)
    table = _within(_cross(table, "dp", _pinned(pins, "dp", replicas)), limit)
    enough = _num_gpus(table) >= least_gpus
    table, too_few = _where(table, enough), int((~enough).sum())
    sizes = [size for size in _divisors(job.global_batch_size) if not coarse or size <= COARSE_MICROBATCH]
    table = _cross(table, "microbatch_size", _pinned(pins, "microbatch_size", sizes))
    table = _where(table, job.global_batch_size % (table["dp"] * table["microbatch_size"]) == 0)
    table = _cross_experts(setting, pins, table, coarse=coarse)
    table = _cross_sequence_parallel(pins, table, coarse=coarse)
    found = _complete(setting, pins, table)
    keep, rejected = legal(setting, found, only=CORE_FIELDS)
    return found.take(keep), rejected | ({"too-few-gpus": too_few} if too_few else {})


def variants(
    setting: Setting, pins: Mapping[str, Any], table: LayoutTable
) -> tuple[LayoutTable, dict[str, int]]:
    """Every legal variant of some cores, and how many each rule rejected."""
    columns = {field.name: getattr(table, field.name) for field in fields(LayoutTable)}
    columns = _cross_by(columns, columns["pp"], lambda pp: _schedules(setting, pins, pp))
    columns = _cross_by(columns, _replicas(setting, columns), lambda key: _sharding(setting, pins, key))
    columns = _cross_by(columns, columns["cp"], lambda cp: _context_exchanges(setting, pins, cp))
    columns = _cross(columns, "recompute", _recompute_policies(setting, pins))
    columns = _cross_by(columns, _active_axes(columns), lambda active: _orders(pins, active))
    found = LayoutTable(**columns)
    keep, rejected = legal(setting, found)
    return found.take(keep), rejected


def _divisors(value: int, limit: int | None = None) -> list[int]:
    """Divisors of a number, up to a limit, ascending."""
    most = value if limit is None else min(value, limit)
    return [d for d in range(1, most + 1) if value % d == 0]


def _context_degrees(setting: Setting, limit: int) -> list[int]:
    tokens = setting.job.sequence_length
    return [d for d in _divisors(tokens, limit) if d == 1 or tokens // d >= LEAST_TOKENS]


def _pipeline_degrees(setting: Setting, limit: int, *, coarse: bool) -> list[int]:
    layers = setting.model.num_layers
    every = range(1, min(layers, limit) + 1)
    return [pp for pp in every if not coarse or layers % pp == 0 or pp & (pp - 1) == 0]


def _context_exchanges(setting: Setting, pins: Mapping[str, Any], cp: int) -> Columns:
    """Ways to exchange keys and values between context ranks; one stands for all where none is needed."""
    kinds = _pinned(pins, "cp_kind", _coded("cp_kind", setting.stack.cp_kinds))
    return {"cp_kind": np.array(kinds if cp > 1 else kinds[:1], dtype=np.int64)}


def _recompute_policies(setting: Setting, pins: Mapping[str, Any]) -> list[int]:
    """Policies worth trying: ``full`` with no layer recomputed is ``none``, so both need not be tried."""
    offered = setting.stack.recomputes
    useful = [policy for policy in offered if policy != "none" or "full" not in offered]
    return _pinned(pins, "recompute", _coded("recompute", useful))


def _coded(name: str, values: Iterable[Any]) -> list[int]:
    return [_CODES[name].index(value) for value in values]


def _pinned(pins: Mapping[str, Any], name: str, otherwise: Iterable[Any]) -> list[Any]:
    """The pinned value of a field as the only choice, or all of them; categorical values as codes."""
    if name not in pins:
        return list(otherwise)
    return _coded(name, [pins[name]]) if name in _CODES else [pins[name]]


def _cross(table: Columns, name: str, values: Iterable[Any]) -> Columns:
    """Every row with every value of one more column."""
    choices = np.array(list(values))
    rows = len(next(iter(table.values())))
    crossed = {key: np.repeat(column, len(choices)) for key, column in table.items() if key != name}
    crossed[name] = np.tile(choices, rows)
    return crossed


def _where(table: Columns, keep: npt.NDArray[np.bool_]) -> Columns:
    return {name: column[keep] for name, column in table.items()}


def _num_gpus(table: Columns) -> Integers:
    """Product of the degrees so far."""
    return np.asarray(np.prod([table[axis] for axis in _AXES if axis in table], axis=0))


def _within(table: Columns, limit: int) -> Columns:
    """Rows whose degrees so far need at most `limit` GPUs."""
    return _where(table, _num_gpus(table) <= limit)


def _cross_sequence_parallel(pins: Mapping[str, Any], table: Columns, *, coarse: bool) -> Columns:
    """With and without sequence parallelism where there is a tensor-parallel group to do it."""
    if "sequence_parallel" in pins:
        return _cross(table, "sequence_parallel", [pins["sequence_parallel"]])
    if coarse:
        return table | {"sequence_parallel": table["tp"] > 1}
    both = _cross(table, "sequence_parallel", (False, True))
    return _where(both, (both["tp"] > 1) | ~both["sequence_parallel"])


def _cross_experts(setting: Setting, pins: Mapping[str, Any], table: Columns, *, coarse: bool) -> Columns:
    """Every way to spread experts over the ranks of a stage; none in a dense model."""
    experts = setting.model.num_experts
    degrees = (
        _divisors(experts, setting.cluster.num_gpus) if experts and setting.stack.expert_parallel else [1]
    )
    table = _cross(table, "ep", _pinned(pins, "ep", degrees))
    block = table["tp"] * table["cp"] * table["dp"]
    table = _where(table, block % table["ep"] == 0)
    if "expert_tp" in pins:
        return _cross(table, "expert_tp", [pins["expert_tp"]])
    both = _cross(table, "expert_tp", (1, 0) if experts and not coarse else (1,))
    split = both["expert_tp"] == 0
    both["expert_tp"] = np.where(split, both["tp"], 1)
    fits = (both["tp"] * both["cp"] * both["dp"]) % (both["ep"] * both["expert_tp"]) == 0
    return _where(both, fits & (~split | (both["tp"] > 1)))


def _complete(setting: Setting, pins: Mapping[str, Any], table: Columns) -> LayoutTable:
    """Fill the fields of variants with a legal default."""
    rows = len(table["tp"])
    ranks = table["dp"] * table["cp"]
    defaults: Columns = {
        "virtual_stages": np.ones(rows, dtype=np.int64),
        "schedule": np.full(rows, _coded("schedule", setting.stack.schedules[:1])[0]),
        "zero_stage": np.full(rows, min(setting.stack.zero_stages)),
        "shard_degree": ranks,
        "cp_kind": np.full(rows, _pinned(pins, "cp_kind", _coded("cp_kind", setting.stack.cp_kinds))[0]),
        "recompute": np.full(rows, _coded("recompute", setting.stack.recomputes[:1])[0]),
        "axis_order": np.full(rows, _coded("axis_order", [pins.get("axis_order", AXIS_ORDERS[0])])[0]),
    }
    columns = {**defaults, **table}
    flags = columns.pop("sequence_parallel").astype(bool)
    return LayoutTable(sequence_parallel=flags, **{n: c.astype(np.int64) for n, c in columns.items()})


def _cross_by(table: Columns, key: Integers, options: Callable[[int], Columns]) -> Columns:
    """Every row with every option that belongs to its key; options replace columns."""
    order = np.argsort(key, kind="stable")
    values, starts = np.unique(key[order], return_index=True)
    parts: list[Columns] = []
    for value, rows in zip(values, np.split(order, starts[1:]), strict=True):
        chosen = options(int(value))
        count = len(next(iter(chosen.values())))
        part = {name: np.repeat(column[rows], count) for name, column in table.items()}
        parts.append(part | {name: np.tile(column, len(rows)) for name, column in chosen.items()})
    if not parts:
        return table
    return {name: np.concatenate([part[name] for part in parts]) for name in table}


def _schedules(setting: Setting, pins: Mapping[str, Any], pp: int) -> Columns:
    """Schedules with their virtual stages that a pipeline of `pp` ranks can run."""
    if pp == 1:
        idle = "1f1b" if "1f1b" in setting.stack.schedules else setting.stack.schedules[0]
        pairs = [(pins.get("schedule", idle), pins.get("virtual_stages", 1))]
    else:
        offered = [pins["schedule"]] if "schedule" in pins else setting.stack.schedules
        useful = [s for s in offered if s != "gpipe" or "1f1b" not in offered]
        pairs = [(s, v) for s in useful for v in _virtual_stages(setting, pins, s, pp)]
    return {
        "schedule": np.array(_coded("schedule", [schedule for schedule, _ in pairs]), dtype=np.int64),
        "virtual_stages": np.array([stages for _, stages in pairs], dtype=np.int64),
    }


def _virtual_stages(setting: Setting, pins: Mapping[str, Any], schedule: str, pp: int) -> list[int]:
    if "virtual_stages" in pins:
        return [pins["virtual_stages"]]
    if schedule in CHUNKS_OF_SCHEDULE:
        return [CHUNKS_OF_SCHEDULE[schedule]]
    layers = setting.model.num_layers
    return [v for v in range(2, layers // pp + 1) if v <= EVERY_VIRTUAL_STAGE or layers % (pp * v) == 0]


def _replicas(setting: Setting, table: Columns) -> Integers:
    """Twice dp·cp, plus one where only experts have replicas (over tensor ranks)."""
    copies = table["dp"] * table["cp"]
    experts = (table["tp"] > 1) & (copies == 1) & setting.model.is_moe
    return np.asarray(2 * copies + experts, dtype=np.int64)


def _sharding(setting: Setting, pins: Mapping[str, Any], replicas: int) -> Columns:
    """ZeRO stages with the shard degrees that these replicas (see `_replicas`) can have."""
    stack, ranks = setting.stack, replicas // 2
    stages = _pinned(pins, "zero_stage", stack.zero_stages if replicas > 2 else (min(stack.zero_stages),))
    units = {level.unit_gpus for level in setting.cluster.hierarchy.levels}
    pairs = []
    for stage in stages:
        inside = {int(np.gcd(ranks, unit)) for unit in units} if stage >= 2 else set()
        degrees = (
            [pins["shard_degree"]] if pins.get("shard_degree") else sorted({ranks, *inside} - {1}) or [ranks]
        )
        pairs += [(stage, degree) for degree in degrees]
    return {
        "zero_stage": np.array([stage for stage, _ in pairs], dtype=np.int64),
        "shard_degree": np.array([degree for _, degree in pairs], dtype=np.int64),
    }


_AXES = ("pp", "dp", "cp", "tp")


def _active_axes(table: Columns) -> Integers:
    """Which axes have more than one member, as bits in the order of `_AXES`."""
    bits = [(table[axis] > 1).astype(np.int64) << position for position, axis in enumerate(_AXES)]
    return np.asarray(sum(bits), dtype=np.int64)


def _orders(pins: Mapping[str, Any], active: int) -> Columns:
    """Orders that place the active axes differently: the first code of each."""
    if "axis_order" in pins:
        return {"axis_order": np.array(_coded("axis_order", [pins["axis_order"]]), dtype=np.int64)}
    members = [axis for position, axis in enumerate(_AXES) if active >> position & 1]
    first: dict[tuple[str, ...], int] = {}
    for code, order in enumerate(AXIS_ORDERS):
        first.setdefault(tuple(axis for axis in order if axis in members), code)
    return {"axis_order": np.array(sorted(first.values()), dtype=np.int64)}
