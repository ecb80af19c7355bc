"""How one job is split: `ParallelLayout` is one split, `LayoutTable` is many of them as columns.

Both have the same field names, so a cost function written with numpy broadcasting takes either. Categorical
columns of the table are small integers into the tuples `SCHEDULES`, `RECOMPUTES`, `CP_KINDS`, `AXIS_ORDERS`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, overload

import numpy as np
import numpy.typing as npt

from costmodel.job import TrainingJob
from costmodel.parallel.axes import AXES, RANK_AXES
from topology.base.columns import Columns
from topology.base.errors import InputError, shown

Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev", "zb-2p", "v-half"]
PLAIN_SCHEDULE: Schedule = "1f1b"  # what one chunk per rank means where nothing else is said
INTERLEAVED_SCHEDULE: Schedule = "interleaved"  # what several mean

Recompute = Literal["none", "selective", "selective-op", "full"]
CpKind = Literal["ring", "ulysses", "allgather"]

SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "selective-op", "full")
CP_KINDS: tuple[CpKind, ...] = ("ring", "ulysses", "allgather")
AXIS_ORDERS: tuple[tuple[str, ...], ...] = tuple(itertools.permutations(RANK_AXES))
DEFAULT_AXIS_ORDER = AXIS_ORDERS[0]
_ORDERS = frozenset(AXIS_ORDERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """One way to split a training job over `num_gpus` = dp·cp·tp·pp GPUs.

    `ep` and `expert_tp` re-use the dp·cp·tp block of a stage: experts are split over `ep`, each expert's
    matrices over `expert_tp`, and replicated dp·cp·tp/(ep·expert_tp) times. `shard_degree` is the number
    of ranks that share one copy of the sharded state (ZeRO, HSDP); None means all dp·cp of them.
    `axis_order` goes from the slowest-varying axis to the fastest (neighbours on the fabric).
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    expert_tp: int = 1
    virtual_stages: int = 1
    microbatch_size: int = 1
    schedule: Schedule = PLAIN_SCHEDULE
    zero_stage: int = 0
    shard_degree: int | None = None
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    cp_kind: CpKind = "ring"
    axis_order: tuple[str, ...] = DEFAULT_AXIS_ORDER

    def __post_init__(self) -> None:
        """Refuse an order of other axes."""
        if self.axis_order not in _ORDERS:
            raise InputError(
                what="a layout is not possible",
                cause=f"axis_order = {shown(self.axis_order)} is no order of pp, dp, cp, tp",
                fix=f"give for example {'-'.join(DEFAULT_AXIS_ORDER)}",
            )

    @property
    def num_gpus(self) -> int:
        """GPUs the layout uses."""
        return self.stage_ranks * self.pp

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters unless these are sharded."""
        return self.dp * self.cp

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.replicas * self.tp

    @property
    def expert_shards(self) -> int:
        """Ranks that share the experts of a layer."""
        return self.ep * self.expert_tp

    @property
    def expert_dp(self) -> int:
        """Replicas of each expert shard, at least one."""
        return max(1, self.stage_ranks // self.expert_shards)

    @property
    def effective_shard_degree(self) -> int:
        """Ranks sharing one copy of the sharded state."""
        return self.replicas if self.shard_degree is None else self.shard_degree

    @property
    def expert_shard_degree(self) -> int:
        """Replicas of an expert that share one copy of its sharded state: as many copies as of the rest."""
        return max(1, self.expert_dp * min(self.effective_shard_degree, self.replicas) // self.replicas)


def layout_words(layout: ParallelLayout, recompute: str = "") -> str:
    """A layout in one short line: its degrees, and what is not the default of the rest.

    >>> layout_words(ParallelLayout(tp=4, pp=2, dp=4, virtual_stages=3, zero_stage=1, recompute="full"))
    'tp 4 · pp 2 × 3 · dp 4 · ZeRO-1 · recompute layers'

    Args:
        layout: The layout.
        recompute: What to say of recomputation, if more is known than the policy.
    """
    words = []
    for name, axis in AXES.items():
        degree = getattr(layout, name)
        chunks = f" × {layout.virtual_stages}" if name == "pp" and layout.virtual_stages > 1 else ""
        if degree > 1:
            words.append(f"{axis.words} {degree}{chunks}")
    if layout.microbatch_size > 1:
        words.append(f"microbatch {layout.microbatch_size}")
    if layout.zero_stage and layout.effective_shard_degree > 1:
        words.append(f"ZeRO-{layout.zero_stage}")
    if layout.recompute != "none":
        words.append(recompute or f"recompute {'layers' if layout.recompute == 'full' else layout.recompute}")
    if layout.schedule not in (PLAIN_SCHEDULE, INTERLEAVED_SCHEDULE):
        words.append(layout.schedule)
    return " · ".join(words) or "one GPU"


def layout_record(layout: ParallelLayout) -> dict[str, Any]:
    """The fields of a layout as cells of a table."""
    record = {field.name: getattr(layout, field.name) for field in fields(layout)}
    record["shard_degree"] = layout.effective_shard_degree
    record["axis_order"] = "-".join(layout.axis_order)
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTable(Columns):
    """Many layouts, one array per field; `shard_degree` is always a number here."""

    tp: npt.NDArray[np.int64]
    pp: npt.NDArray[np.int64]
    dp: npt.NDArray[np.int64]
    cp: npt.NDArray[np.int64]
    ep: npt.NDArray[np.int64]
    expert_tp: npt.NDArray[np.int64]
    virtual_stages: npt.NDArray[np.int64]
    microbatch_size: npt.NDArray[np.int64]
    schedule: npt.NDArray[np.int64]
    zero_stage: npt.NDArray[np.int64]
    shard_degree: npt.NDArray[np.int64]
    recompute: npt.NDArray[np.int64]
    sequence_parallel: npt.NDArray[np.bool_]
    cp_kind: npt.NDArray[np.int64]
    axis_order: npt.NDArray[np.int64]

    @property
    def num_gpus(self) -> npt.NDArray[np.int64]:
        """GPUs each layout uses."""
        return self.dp * self.cp * self.tp * self.pp

    @property
    def replicas(self) -> npt.NDArray[np.int64]:
        """Ranks that hold the same parameters unless these are sharded."""
        return self.dp * self.cp

    @property
    def stage_ranks(self) -> npt.NDArray[np.int64]:
        """Ranks of one pipeline stage."""
        return self.replicas * self.tp

    @property
    def expert_shards(self) -> npt.NDArray[np.int64]:
        """Ranks that share the experts of a layer."""
        return self.ep * self.expert_tp

    @property
    def expert_dp(self) -> npt.NDArray[np.int64]:
        """Replicas of each expert shard, at least one."""
        values: npt.NDArray[np.int64] = np.maximum(1, self.stage_ranks // self.expert_shards)
        return values

    @property
    def effective_shard_degree(self) -> npt.NDArray[np.int64]:
        """Ranks sharing one copy of the sharded state."""
        return self.shard_degree

    @property
    def expert_shard_degree(self) -> npt.NDArray[np.int64]:
        """Replicas of an expert that share one copy of its sharded state: as many copies as of the rest."""
        dense = np.minimum(self.shard_degree, self.replicas)
        values: npt.NDArray[np.int64] = np.maximum(1, self.expert_dp * dense // np.maximum(1, self.replicas))
        return values

    @staticmethod
    def from_rows(layouts: Sequence[ParallelLayout]) -> LayoutTable:
        """Columns of a sequence of layouts."""
        columns: dict[str, npt.NDArray[Any]] = {}
        for field in fields(ParallelLayout):
            values = [_encode(layout, field.name) for layout in layouts]
            columns[field.name] = np.array(
                values, dtype=bool if field.name == "sequence_parallel" else np.int64
            )
        return LayoutTable(**columns)

    def layout(self, index: int) -> ParallelLayout:
        """Give back one row as a `ParallelLayout` (a shard degree of dp·cp becomes None)."""
        row = {name: column[index] for name, column in self.by_name().items()}
        plain = {name: int(value) for name, value in row.items()}
        return ParallelLayout(
            **{name: plain[name] for name in (*DEGREES, "zero_stage")},
            schedule=SCHEDULES[plain["schedule"]],
            recompute=RECOMPUTES[plain["recompute"]],
            cp_kind=CP_KINDS[plain["cp_kind"]],
            axis_order=AXIS_ORDERS[plain["axis_order"]],
            sequence_parallel=bool(row["sequence_parallel"]),
            shard_degree=None
            if plain["shard_degree"] == plain["dp"] * plain["cp"]
            else plain["shard_degree"],
        )


def num_axes(layout: ParallelLayout) -> int:
    """Axes that a layout splits the job over: degrees above one, virtual stages included.

    >>> num_axes(ParallelLayout(tp=4, pp=2, dp=4)), num_axes(ParallelLayout())
    (3, 0)
    """
    return sum(getattr(layout, name) > 1 for name in (*AXIS_FIELDS, "virtual_stages"))


AXIS_FIELDS = tuple(field.name for field in fields(ParallelLayout) if field.name in AXES)
"""Fields of a layout that are the degree of an axis, in their order."""

DEGREES = (*AXIS_FIELDS, "virtual_stages", "microbatch_size")
"""Fields of a layout that count and are at least one."""

_CODES: dict[str, tuple[Any, ...]] = {
    "schedule": SCHEDULES,
    "recompute": RECOMPUTES,
    "cp_kind": CP_KINDS,
    "axis_order": AXIS_ORDERS,
}


def _encode(layout: ParallelLayout, name: str) -> int:
    """Give the integer that stands for one field in a table."""
    if name == "shard_degree":
        return layout.effective_shard_degree
    value = getattr(layout, name)
    return _CODES[name].index(value) if name in _CODES else int(value)


@functools.cache
def divisors(value: int, limit: int | None = None) -> tuple[int, ...]:
    """Divisors of a number, up to a limit, ascending: the degrees that split it evenly.

    >>> divisors(12, 5)
    (1, 2, 3, 4)
    """
    small = [d for d in range(1, math.isqrt(value) + 1) if value % d == 0]
    every = dict.fromkeys([*small, *(value // d for d in reversed(small))])
    return tuple(d for d in every if limit is None or d <= limit)


@overload
def num_microbatches(layout: ParallelLayout, job: TrainingJob) -> int: ...
@overload
def num_microbatches(layout: LayoutTable, job: TrainingJob) -> npt.NDArray[np.int64]: ...
def num_microbatches(layout: ParallelLayout | LayoutTable, job: TrainingJob) -> int | npt.NDArray[np.int64]:
    """Microbatches one pipeline runs per step, at least one: global batch / (dp · microbatch size).

    >>> job = TrainingJob(sequence_length=8, global_batch_size=64)
    >>> num_microbatches(ParallelLayout(dp=4, microbatch_size=2), job)
    8
    """
    if isinstance(layout, ParallelLayout):
        return max(1, job.global_batch_size // (layout.dp * layout.microbatch_size))
    counts: npt.NDArray[np.int64] = job.global_batch_size // (layout.dp * layout.microbatch_size)
    return np.maximum(1, counts)
