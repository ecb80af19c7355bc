"""Rules of machinery: what the software stack, the schedule and the hardware allow.

Legend: ``P`` pipeline ranks, ``M`` microbatches per step, ``V`` virtual stages per rank.
"""

from __future__ import annotations

import functools

import numpy as np

from costmodel.kernels.precisions import TRAINING
from costmodel.layout import (
    CP_KINDS,
    PLAIN_SCHEDULE,
    RECOMPUTES,
    SCHEDULES,
    LayoutTable,
    ParallelLayout,
    Schedule,
    num_microbatches,
)
from costmodel.pipeline.derived import microbatches_per_rank
from costmodel.pipeline.schedules import RECORDS, column
from costmodel.pipeline.stages import shortage
from costmodel.stack import stacks
from planner.law import Breach, Law, PlanLaw
from planner.plan import Problem
from planner.rules.rule import largest_divisor, not_offered
from topology.base.arrays import Mask
from topology.builders import makers_of
from topology.hardware.datasheets import generation_of

_FIXED_CHUNKS = column(lambda schedule: schedule.chunks or 0)
_IN_GROUPS = column(lambda schedule: schedule.in_groups)
_SPLITS_BACKWARD = column(lambda schedule: schedule.splits_backward)
_EMPTY_ENDS = column(lambda schedule: schedule.empty_ends)


def _codes(names: tuple[str, ...], every: tuple[str, ...]) -> list[int]:
    return [every.index(name) for name in names]


def _schedule_broken(s: Problem, t: LayoutTable) -> Mask:
    offered = np.isin(t.schedule, _codes(s.stack.supports.schedules, SCHEDULES))
    plain = t.schedule == SCHEDULES.index(PLAIN_SCHEDULE)  # what a layout without a pipeline says
    return np.asarray(
        np.where(t.pp > 1, ~offered, _SPLITS_BACKWARD[t.schedule] | ~(offered | plain)), dtype=bool
    )


def _schedule(s: Problem, x: ParallelLayout) -> Breach:
    if x.pp > 1 or x.schedule not in s.stack.supports.schedules:
        return not_offered(s, "schedule", x.schedule, s.stack.supports.schedules)
    return Breach(
        message=f"schedule = {x.schedule} puts weight gradients off to fill a pipeline's bubble, "
        "and pp = 1 has none",
        have=x.pp,
        need=2,
        unit="stages",
        hint=f"use pp=2 or more, or schedule={PLAIN_SCHEDULE}",
    )


def _chunks_broken(_: Problem, t: LayoutTable) -> Mask:
    fixed = _FIXED_CHUNKS[t.schedule]
    wrong = np.where(fixed == 0, t.virtual_stages < 2, t.virtual_stages != fixed)
    return np.asarray(np.where(t.pp == 1, t.virtual_stages != 1, wrong), dtype=bool)


def _chunks(_: Problem, x: ParallelLayout) -> Breach:
    chunks = RECORDS[x.schedule].chunks
    need = 1 if x.pp == 1 else chunks or 2
    least = "at least " * (x.pp > 1 and chunks is None)
    why = "without a pipeline (pp = 1)" if x.pp == 1 else f"with schedule {x.schedule}"
    return Breach(
        message=f"virtual_stages = {x.virtual_stages}, must be {least}{need} {why}",
        have=x.virtual_stages,
        need=need,
        unit="stages",
        hint=f"set virtual_stages={need}, or change the schedule",
    )


def _fill_broken(s: Problem, t: LayoutTable) -> Mask:
    per_stage = np.array([_microbatches_per_stage(s, name) for name in SCHEDULES])[t.schedule]
    return (t.pp > 1) & (num_microbatches(t, s.job) < per_stage * t.pp)


def _microbatches_per_stage(s: Problem, schedule: Schedule) -> int:
    record = RECORDS[schedule]
    strict = s.stack.supports.microbatches_at_least_stages or not record.runs_unfilled
    return microbatches_per_rank(schedule) if strict else 0


def _fill(s: Problem, x: ParallelLayout) -> Breach:
    M, need = num_microbatches(x, s.job), _microbatches_per_stage(s, x.schedule) * x.pp
    return Breach(
        message=f"global_batch_size / (dp·microbatch_size) = {s.job.global_batch_size} / "
        f"({x.dp}·{x.microbatch_size})"
        f" = {M} microbatches for {x.pp} stages; {x.schedule} on {s.stack.name} needs {need}",
        have=M,
        need=need,
        unit="microbatches",
        hint="use a smaller pp, dp or microbatch_size, or a larger batch",
    )


def _groups_broken(s: Problem, t: LayoutTable) -> Mask | bool:
    if not s.stack.supports.interleaved_multiple_of_stages:
        return False
    ragged = num_microbatches(t, s.job) % t.pp != 0
    return np.asarray((t.pp > 1) & _IN_GROUPS[t.schedule] & ragged, dtype=bool)


def _groups(s: Problem, x: ParallelLayout) -> Breach:
    M = num_microbatches(x, s.job)
    return Breach(
        message=f"microbatches % pp = {M} % {x.pp} = {M % x.pp}, must be 0: {s.stack.name} interleaves "
        "microbatches "
        f"in groups of pp; global_batch_size / (dp·microbatch_size) = {s.job.global_batch_size} / "
        f"({x.dp}·{x.microbatch_size})",
        have=M % x.pp,
        need=0,
        unit="microbatches",
        hint=f"use pp={largest_divisor(M, x.pp)} or schedule={PLAIN_SCHEDULE}",
    )


def _equal_chunks_broken(s: Problem, t: LayoutTable) -> Mask:
    layers, chunks = s.model.num_layers, t.pp * t.virtual_stages
    each = -(-layers // chunks)
    lacking = each * chunks - layers
    least = 1 - (s.stack.supports.empty_end_chunks & _EMPTY_ENDS[t.schedule])
    return np.asarray((t.virtual_stages > 1) & (lacking > 2 * (each - least)), dtype=bool)


def _equal_chunks(s: Problem, x: ParallelLayout) -> Breach:
    layers, chunks = s.model.num_layers, x.pp * x.virtual_stages
    each, lacking = shortage(layers, chunks)
    empty = s.stack.supports.empty_end_chunks and RECORDS[x.schedule].empty_ends
    most = each if empty else each - 1
    return Breach(
        message=f"pp·virtual_stages·⌈layers/chunk⌉ − layers = {x.pp}·{x.virtual_stages}·{each} − {layers} "
        f"= {lacking} "
        f"layers short, but only the first and the last chunk may be shorter, by {most} each: uneven "
        "chunks stall "
        "interleaved ranks",
        have=lacking,
        need=2 * most,
        unit="layers",
        hint=f"use virtual_stages={largest_even_chunks(layers, x.pp, x.virtual_stages, empty_ends=empty)}",
    )


def largest_even_chunks(num_layers: int, pp: int, virtual_stages: int, *, empty_ends: bool) -> int:
    """Most virtual stages up to a limit whose chunks can be equal but for the ends.

    >>> largest_even_chunks(126, 16, 8, empty_ends=False), largest_even_chunks(126, 16, 8, empty_ends=True)
    (4, 8)
    """
    fewer = range(virtual_stages, 1, -1)
    return next((v for v in fewer if chunks_are_even(num_layers, pp * v, empty_ends=empty_ends)), 1)


def chunks_are_even(num_layers: int, chunks: int, *, empty_ends: bool) -> bool:
    """Whether layers divide into equal chunks but for a shorter first and last one.

    >>> chunks_are_even(126, 128, empty_ends=False), chunks_are_even(126, 128, empty_ends=True)
    (False, True)
    """
    each, lacking = shortage(num_layers, chunks)
    return lacking <= 2 * (each if empty_ends else each - 1)


def _recompute_broken(s: Problem, t: LayoutTable) -> Mask:
    return np.asarray(~np.isin(t.recompute, _codes(s.stack.supports.recomputes, RECOMPUTES)), dtype=bool)


def _recompute(s: Problem, x: ParallelLayout) -> Breach:
    return not_offered(s, "recompute", x.recompute, s.stack.supports.recomputes)


def _cp_kind_broken(s: Problem, t: LayoutTable) -> Mask:
    return (t.cp > 1) & ~np.isin(t.cp_kind, _codes(s.stack.supports.cp_kinds, CP_KINDS))


def _cp_kind(s: Problem, x: ParallelLayout) -> Breach:
    return not_offered(s, "cp_kind", x.cp_kind, s.stack.supports.cp_kinds)


def _sequence_parallel_broken(_: Problem, t: LayoutTable) -> Mask:
    return np.asarray(t.sequence_parallel & (t.tp == 1), dtype=bool)


def _sequence_parallel(_: Problem, x: ParallelLayout) -> Breach:
    return Breach(
        message=f"sequence_parallel splits the sequence over tp = {x.tp} ranks, needs tp ≥ 2",
        have=x.tp,
        need=2,
        unit="ranks",
        hint="set sequence_parallel=false, or tp=2 or more",
    )


def _expert_tokens_broken(s: Problem, t: LayoutTable) -> Mask | bool:
    if not (s.model.is_moe and s.stack.supports.experts_need_sequence_parallel):
        return False
    return np.asarray((t.tp > 1) & ~t.sequence_parallel, dtype=bool)


def _expert_tokens(s: Problem, x: ParallelLayout) -> Breach:
    return Breach(
        message=f"tp = {x.tp} without sequence_parallel: experts of {s.stack.name} take tokens split over tp",
        have=0,
        need=1,
        unit="",
        hint="set sequence_parallel=true, or tp=1",
    )


def _precision_broken(s: Problem, _: LayoutTable) -> bool:
    gpu, record = s.cluster.gpu, TRAINING[s.job.precision]
    scaled = record.trait is None or getattr(generation_of(gpu), record.trait)
    return record.peak not in gpu.peak_flop_per_s or not scaled


def _precision(s: Problem, _: ParallelLayout) -> Breach:
    gpu = s.cluster.gpu
    half = "bf16" if "bf16" in gpu.peak_flop_per_s else "fp16"
    return Breach(
        message=f"precision = {s.job.precision}, but {gpu.name} ({gpu.architecture}) multiplies only "
        f"{', '.join(gpu.peak_flop_per_s)}",
        have=0,
        need=1,
        unit="",
        hint=f"use precision {half}, or a GPU with {s.job.precision} tensor cores",
    )


def _further_tokens_broken(s: Problem, _: LayoutTable) -> bool:
    return s.job.mtp_layers > 0 and (s.model.module is not None or not s.stack.supports.further_tokens)


def _further_tokens(s: Problem, _: ParallelLayout) -> Breach:
    able = next(name for name, profile in stacks().items() if profile.supports.further_tokens)
    lacks, traced = f"{s.stack.name} trains none", f"{s.model.name} is a traced module, which has none"
    return Breach(
        message=f"job.mtp_layers = {s.job.mtp_layers} modules that predict further tokens, and "
        f"{traced if s.model.module else lacks}",
        have=s.job.mtp_layers,
        need=0,
        unit="modules",
        hint="set job.mtp_layers=0"
        if s.model.module
        else f"set job.mtp_layers=0, or use --stack {able} and no --for of another engine",
    )


def _makers_broken(s: Problem, _: LayoutTable) -> bool:
    return len(makers_of(s.cluster.spec)) > 1


def _makers(s: Problem, _: ParallelLayout) -> Breach:
    makers = makers_of(s.cluster.spec)
    return Breach(
        message=f"GPUs of {' and '.join(makers)} in one job: NCCL and RCCL know their own maker's alone, "
        "and no collective library joins both",
        have=len(makers),
        need=1,
        unit="makers",
        hint="plan for the nodes of one maker",
    )


_rule = functools.partial(Law, lenient_at_one=False)

STACK_RULES: tuple[PlanLaw, ...] = (
    _rule(
        name="precision-hardware",
        reads=(),
        broken=_precision_broken,
        says=_precision,
        ground="impossible",
    ),
    _rule(name="one-maker", reads=(), broken=_makers_broken, says=_makers, ground="engine"),
    _rule(
        name="further-tokens",
        reads=(),
        broken=_further_tokens_broken,
        says=_further_tokens,
        ground="engine",
    ),
    _rule(
        name="schedule-offered",
        reads=("schedule", "pp"),
        broken=_schedule_broken,
        says=_schedule,
        ground="engine",
    ),
    _rule(
        name="virtual-stages",
        reads=("virtual_stages", "schedule", "pp"),
        broken=_chunks_broken,
        says=_chunks,
        ground="impossible",
    ),
    _rule(
        name="pipeline-fill",
        reads=("pp", "dp", "microbatch_size", "schedule"),
        broken=_fill_broken,
        says=_fill,
        ground="engine",
    ),
    _rule(
        name="interleaving-groups",
        reads=("pp", "dp", "microbatch_size", "schedule"),
        broken=_groups_broken,
        says=_groups,
        ground="engine",
    ),
    _rule(
        name="equal-chunks",
        reads=("pp", "virtual_stages", "schedule"),
        broken=_equal_chunks_broken,
        says=_equal_chunks,
        ground="unpriced",
    ),
    _rule(
        name="experts-sequence-parallel",
        reads=("sequence_parallel", "tp"),
        broken=_expert_tokens_broken,
        says=_expert_tokens,
        ground="engine",
    ),
    _rule(
        name="recompute-offered",
        reads=("recompute",),
        broken=_recompute_broken,
        says=_recompute,
        ground="engine",
    ),
    _rule(
        name="cp-kind-offered",
        reads=("cp_kind", "cp"),
        broken=_cp_kind_broken,
        says=_cp_kind,
        ground="engine",
    ),
    _rule(
        name="sequence-parallel",
        reads=("sequence_parallel", "tp"),
        broken=_sequence_parallel_broken,
        says=_sequence_parallel,
        ground="impossible",
    ),
)
"""What a stack has or lacks, judged after the arithmetic."""
