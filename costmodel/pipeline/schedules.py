"""One record for each pipeline schedule: what simulation, bounds, rules, executor and exporters read.

A new schedule is its order and its record, its name in `costmodel.layout.Schedule`, and the stacks that have
it (`costmodel/data/stacks.toml`). What its order says is counted there, in `costmodel.pipeline.derived`.

Legend: ``P`` ranks, ``V`` chunks of a rank, ``M`` microbatches, ``r`` or ``s`` a rank, 0 first; ``F``, ``B``,
``W`` forward, input gradient and weight gradient.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.layout import INTERLEAVED_SCHEDULE, PLAIN_SCHEDULE, SCHEDULES, ParallelLayout, Schedule
from costmodel.pipeline.bubble import (
    ClosedForm,
    dualpipev_bubble,
    v_half_bubble,
    zb_2p_bubble,
    zb_h1_bubble,
    zbv_bubble,
)
from costmodel.pipeline.orders import (
    Pass,
    double_zero_bubble_order,
    gpipe_order,
    one_forward_one_backward_order,
    zero_bubble_order,
)
from costmodel.pipeline.v_schedules import dualpipev_order, v_half_order, zbv_order
from topology.base.arrays import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRecord:
    """What is to know about one pipeline schedule.

    Attributes:
        order: Passes of a rank in the order in which it runs them, of (P, V, M, r).
        chunks: Chunks of the model on a rank; None for any number from two up.
        v_shaped: The second chunks run back from the last rank, so the first holds both ends of the model.
        splits_backward: Some weight gradients come later than their input gradients, and fill the drain.
        pairs_microbatches: A forward runs beside the backward of another microbatch.
        held: Closed form of the chunks in flight at the peak: coefficients of V·M, P, V·P, s and 1, with its
            sources in `in_flight`; None where they are counted in the order.
        held_whole: What is held is a whole number of microbatches, rounded down.
        runs_over: A rank goes into the next step when it is done, without waiting for the others: gradient
            norms are checked afterwards, and a step that should not have been taken is taken back.
        may_stall: The steady state can be slower than the slowest rank.
        bubble: Share β of the fill and drain that shows; None where it is 1/V.
        runs_unfilled: It also runs before its steady state is reached, unless an engine refuses.
        in_groups: Microbatches visit the chunks in groups of P, which engines may want whole.
        empty_ends: Engines may let the first chunk hold the embedding only, and the last the head.
        early_chunks: Early chunks end their last backward early, which leaves room to reduce gradients.
        outdone_by: A schedule that takes as long and holds less.
        engine_names: Its name by export target; a target that is not named does not have it.
        run_names: Names in files of measured runs, lower-case letters and digits.
    """

    order: Callable[[int, int, int, int], list[Pass]]
    chunks: int | None = 1
    held: tuple[int, int, int, int, int] | None = None
    v_shaped: bool = False
    splits_backward: bool = False
    pairs_microbatches: bool = False
    held_whole: bool = False
    runs_over: bool = False
    may_stall: bool = False
    bubble: ClosedForm | None = None
    runs_unfilled: bool = False
    in_groups: bool = False
    empty_ends: bool = False
    early_chunks: bool = False
    outdone_by: Schedule | None = None
    engine_names: Mapping[str, str] = field(default_factory=dict)
    run_names: tuple[str, ...] = ()


RECORDS: Mapping[Schedule, ScheduleRecord] = {
    "gpipe": ScheduleRecord(
        order=gpipe_order,
        held=(1, 0, 0, 0, 0),
        runs_unfilled=True,
        outdone_by="1f1b",
        engine_names={"torchtitan": "GPipe"},
        run_names=("gpipe", "afab", "allforwardallbackward"),
    ),
    "1f1b": ScheduleRecord(
        order=one_forward_one_backward_order,
        held=(0, 1, 0, -1, 0),
        runs_unfilled=True,
        engine_names={
            "torchtitan": "1F1B",
            "megatron": "forward_backward_pipelining_without_interleaving",
        },
        run_names=("1f1b",),
    ),
    "interleaved": ScheduleRecord(
        order=one_forward_one_backward_order,
        chunks=None,
        held=(0, 1, 1, -2, -1),
        in_groups=True,
        empty_ends=True,
        early_chunks=True,
        engine_names={
            "torchtitan": "Interleaved1F1B",
            "megatron": "forward_backward_pipelining_with_interleaving",
        },
        run_names=("1f1bi", "interleaved", "interleaved1f1b"),
    ),
    "zb-h1": ScheduleRecord(
        order=zero_bubble_order,
        held=(0, 1, 0, 0, 0),
        splits_backward=True,
        bubble=zb_h1_bubble,
        engine_names={"torchtitan": "InterleavedZeroBubble"},
        run_names=("zbh1", "zb1p"),
    ),
    "zbv": ScheduleRecord(
        order=lambda ranks, _, microbatches, rank: zbv_order(ranks, microbatches, rank),
        chunks=2,
        v_shaped=True,
        empty_ends=True,
        held=(0, 2, 0, 0, 0),
        splits_backward=True,
        bubble=zbv_bubble,
        engine_names={"torchtitan": "ZBVZeroBubble"},
        run_names=("zbv",),
    ),
    "dualpipev": ScheduleRecord(
        order=lambda ranks, _, microbatches, rank: dualpipev_order(ranks, microbatches, rank),
        chunks=2,
        v_shaped=True,
        empty_ends=True,
        held=(0, 2, 0, 0, 1),
        splits_backward=True,
        pairs_microbatches=True,
        bubble=dualpipev_bubble,
        engine_names={"torchtitan": "DualPipeV"},
        run_names=("dualpipe", "dualpipev"),
    ),
    "zb-2p": ScheduleRecord(
        order=double_zero_bubble_order,
        held=(0, 2, 0, 0, -1),
        splits_backward=True,
        runs_over=True,
        bubble=zb_2p_bubble,
        run_names=("zbh2", "zb2p"),
    ),
    "v-half": ScheduleRecord(
        order=lambda ranks, _, microbatches, rank: v_half_order(ranks, microbatches, rank),
        chunks=2,
        v_shaped=True,
        empty_ends=True,
        held=(0, 1, 0, 0, 2),
        held_whole=True,
        splits_backward=True,
        may_stall=True,
        bubble=v_half_bubble,
        run_names=("vhalf", "zbvhalf"),
    ),
}


@functools.cache
def _names() -> Mapping[str, Schedule]:
    """Every way to write a schedule, in lower-case letters and digits: its own name, engines' and runs'."""
    return {
        re.sub(r"[^a-z0-9]", "", word.lower()): name
        for name, record in RECORDS.items()
        for word in (name, *record.engine_names.values(), *record.run_names)
    }


def schedule_named(text: str) -> Schedule | None:
    """Schedule that a text names, in the words of runs or of an engine; None where it names none.

    >>> schedule_named("Interleaved 1F1B"), schedule_named("ZBVZeroBubble"), schedule_named("ours")
    ('interleaved', 'zbv', None)
    """
    return _names().get(re.sub(r"[^a-z0-9]", "", text.lower()))


def column(fact: Callable[[ScheduleRecord], Any]) -> NDArray[Any]:
    """One fact of every schedule, indexed by its code in a `LayoutTable`.

    >>> column(lambda schedule: schedule.v_shaped).sum()
    np.int64(3)
    """
    return np.array([fact(RECORDS[name]) for name in SCHEDULES])


_FIXED_CHUNKS = column(lambda schedule: schedule.chunks or 0)


def chunks_per_rank(schedule: Quantity, virtual_stages: Quantity) -> Quantity:
    """Chunks of a rank under a schedule (code): its own number, or the layout's where it takes any.

    >>> chunks_per_rank(np.arange(8), 3).tolist()
    [1, 1, 3, 1, 2, 2, 1, 2]
    """
    fixed = _FIXED_CHUNKS[np.asarray(schedule)]
    return np.where(fixed, fixed, virtual_stages)


def usual_schedule(virtual_stages: int) -> Schedule:
    """Schedule that so many chunks of a rank mean when no other is named.

    >>> usual_schedule(1), usual_schedule(4)
    ('1f1b', 'interleaved')
    """
    return INTERLEAVED_SCHEDULE if virtual_stages > 1 else PLAIN_SCHEDULE


def is_plain(layout: ParallelLayout) -> bool:
    """Whether stages may run on unlike GPUs: one chunk of 1F1B each, the ranks of a stage side by side.

    >>> is_plain(ParallelLayout(pp=2, dp=2)), is_plain(ParallelLayout(pp=2, dp=2, schedule="gpipe"))
    (True, False)
    """
    active = [axis for axis in layout.axis_order if getattr(layout, axis) > 1]
    return layout.schedule == PLAIN_SCHEDULE and layout.virtual_stages == 1 and active[:1] == ["pp"]
