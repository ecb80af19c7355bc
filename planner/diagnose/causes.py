"""Causes of lost time in recorded steps, each with the evidence that it needs and what cures it.

A cause is named where it costs `LEAST_SHARE` of the step in every step: what comes once is noise. On a host
without a GPU cores are shared and walls vary, so that more is needed there.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodel.kernels.precisions import PRECISIONS, TRAINING, TrainingPrecision
from planner.diagnose.budget import Totals, launched_within, sets_of
from planner.diagnose.classes import classes_of, computes, kernel_classes, operands_of, phase
from planner.diagnose.collectives import ELEMENT_BYTES, Call
from planner.diagnose.evidence import SLOWER_LEAST, finding_of, least_s
from planner.diagnose.expert_causes import EXPERT_RULES, imbalance
from planner.diagnose.intervals import Intervals, clipped, common, inverted, seconds, union, without
from planner.diagnose.lateness import Lateness
from planner.diagnose.record import RecordedJob, stretches
from planner.diagnose.repairs import (
    Seen,
    caught_up,
    scaled,
    scaled_by_rank,
    transfers_scaled,
    without_part,
)
from planner.traces.events import Events
from topology.base.errors import InputError
from topology.base.units import MIB, format_bytes, format_seconds
from topology.catalog import gpu

PART_CAUSES: Mapping[str, tuple[str, str]] = {
    "loader": ("loader", "the next batch is waited for"),
    "checkpoint": ("checkpoint in the step", "a checkpoint is written while nothing else runs"),
    "garbage collection": ("garbage collection", "Python collects while nothing else runs"),
    "allocator": ("allocator", "memory is taken from and given back to the driver while the GPU is idle"),
    "synchronisation": (
        "synchronisation in the step",
        "the host waits for the GPU, whose queue is then empty",
    ),
    "copies": ("copies in the step", "copies run while no kernel does"),
    "launch gaps": ("host-bound", "the GPU waits for the host to launch"),
}
"""Parts of a budget that are a cause by themselves, and what is seen."""
OF_A_STEP: Final = frozenset(cause for part, (cause, _) in PART_CAUSES.items() if part != "copies")
"""Causes that are gaps: where no step is marked they may be how the recording begins."""
OVERLAPPED_LEAST = 0.1
"""Share of the gradients' communication beside which something computes; less is no overlap."""
ALONE_FACTOR = 2.0
"""A late rank is later than this times the next one, in every step; a slow link takes so much longer."""
SLOW_LINK = 1.5
"""Seconds of a message over those of the slowest like it: links that are halved take twice as long."""
BUCKET_BYTES = 25 * MIB
"""DDP's default `bucket_cap_mb`."""


def causes_of(job: RecordedJob) -> tuple[Seen, ...]:
    """All causes that are seen, with their repairs; of two that explain the same time, the narrower."""
    seen = [each for rule in RULES for each in rule(job)]
    if not any(trace.windows for trace in job.traces):  # start and end of a recording are no step
        seen = [each for each in seen if each[0].cause not in OF_A_STEP]
    return tuple(seen)


def _of_parts(job: RecordedJob) -> Iterator[Seen]:
    """Parts of the budget in which nothing useful runs."""
    late = {each.rank for each in _late(job)}
    for part, (cause, seen) in PART_CAUSES.items():
        by_rank = job.part_by_rank(part)
        typical = float(np.median([*by_rank.values()]))
        worst = max(by_rank, key=lambda rank: by_rank[rank])
        alone = len(by_rank) > 1 and by_rank[worst] - typical >= max(least_s(job), typical)
        if alone and worst in late:
            continue  # it is told as the lateness of that rank
        cost = by_rank[worst] if alone else typical
        ranks = [worst] if alone else [*by_rank]
        least = min(budget.parts.get(part, 0.0) for rank in ranks for budget in job.budgets[rank])
        if cost < least_s(job) or least < least_s(job) / ALONE_FACTOR:
            continue
        where = f"on rank {worst}" if alone else "on every rank" if len(by_rank) > 1 else ""
        evidence = f"{format_seconds(cost)} of a step {where}: {seen}".replace("  ", " ").replace(" :", ":")
        finding = finding_of(job, cause, cost, evidence, worst if alone else None)
        yield finding, without_part(job, part, ranks)


STEPS_OF_A_HABIT: Final = 2
"""A rank that is late once may have been unlucky; one that is late in every step has a reason."""


def _late(job: RecordedJob) -> list[Lateness]:
    """The rank that is late in every step, and much later than any other.

    In a lone step it works `ALONE_FACTOR` times as long as the others: half of the step is no bad luck.
    """
    if not job.lateness:
        return []
    first = job.lateness[0]
    if job.steps < STEPS_OF_A_HABIT and first.typical_s * ALONE_FACTOR < job.step_s:
        return []
    others = (
        np.max([each.seconds for each in job.lateness[1:]], axis=0)
        if job.lateness[1:]
        else np.zeros(job.steps)
    )
    persistent = min(first.seconds) >= least_s(job) and all(
        mine >= ALONE_FACTOR * other for mine, other in zip(first.seconds, others, strict=True)
    )
    return [first] if persistent and _of_itself(job, first) else []


def _of_itself(job: RecordedJob, late: Lateness) -> bool:
    """Whether a rank is late by what it does, and not for want of a core that others had.

    Of a host only: what is taken from a rank are short stretches anywhere, so that its usual operation takes
    what it takes elsewhere. A rank that waits or sleeps does so at length, a slow core is slow in each.
    """
    if any(trace.gpu for trace in job.traces):
        return True
    line, half = job.timelines[late.rank], late.typical_s / 2
    pauses = [
        inverted(union(line.compute, line.communication), each.start_s, each.end_s)
        for each in stretches(line)
    ]
    if all((of[:, 1] - of[:, 0]).max(initial=0.0) >= half for of in pauses):
        return True
    usual = {trace.rank: _usual_durations(trace.events) for trace in job.traces}
    others = [usual[rank] for rank in usual if rank != late.rank]
    alike = [name for name in usual[late.rank] if all(name in of for of in others)]
    mine = sum(usual[late.rank][name][0] * usual[late.rank][name][1] for name in alike)
    theirs = sum(
        usual[late.rank][name][0] * float(np.median([of[name][1] for of in others])) for name in alike
    )
    computing = sum(seconds(clipped(line.compute, each.start_s, each.end_s)) for each in stretches(line))
    return mine > 0.0 and (1.0 - theirs / mine) * computing / job.steps >= half


def _usual_durations(events: Events) -> dict[str, tuple[int, float]]:
    """By operation: how often it runs, and its median duration."""
    operations = np.flatnonzero(events.of("operation"))
    order = operations[np.argsort(events.name[operations], kind="stable")]
    places, firsts = np.unique(events.name[order], return_index=True)
    return {
        events.names[place]: (len(of), float(np.median(of)))
        for place, of in zip(places, np.split(events.duration_s[order], firsts[1:]), strict=True)
    }


def _slow_rank(job: RecordedJob) -> Iterator[Seen]:
    """One rank arrives late at collectives, by its own work."""
    if imbalance(job) is not None:
        return  # it has more tokens
    for late in _late(job):
        line = job.timelines[late.rank]
        start, end = late.stretch
        spent = Counter(line.budget(start, end).parts)
        others = {
            part: float(np.median([job.mean_part(part, rank) for rank in job.budgets if rank != late.rank]))
            for part in spent
        }
        excess = {part: job.mean_part(part, late.rank) - others[part] for part in spent}
        part = max(excess, key=lambda each: excess[each])
        cause = PART_CAUSES[part][0] if part in PART_CAUSES and part != "launch gaps" else "slow rank"
        cost = float(np.mean(late.seconds))
        inside = [
            row
            for row in line.trace.events.rows(line.trace.events.of("annotation"))
            if row.duration_s >= cost / 2 and start <= row.start_s and row.end_s <= end
        ]
        nearest = min(inside, key=lambda row: abs(row.duration_s - cost), default=None)
        where = repr(nearest.name) if nearest is not None and part == "unexplained" else part
        evidence = (
            f"rank {late.rank} comes {format_seconds(cost)} later to its collectives than the others, "
            f"which wait; it spends the time in {where}"
        )
        finding = finding_of(job, cause, cost, evidence, late.rank)
        yield finding, caught_up(job, late.rank, part, cost)


def _slow_gpu(job: RecordedJob) -> Iterator[Seen]:
    """The same kernels take longer on one rank, where no collective shows it."""
    if len(job.traces) < 3 or _late(job) or imbalance(job) is not None:
        return
    totals: dict[int, dict[str, tuple[int, float]]] = {}
    for trace in job.traces:
        events = trace.events
        kernels = computes(events)
        count = np.bincount(events.name[kernels], minlength=len(events.names))
        spent = np.bincount(events.name[kernels], events.duration_s[kernels], len(events.names))
        totals[trace.rank] = {
            name: (int(count[place]), float(spent[place]))
            for place, name in enumerate(events.names)
            if count[place]
        }
    same = {
        name
        for name in set.intersection(*(set(each) for each in totals.values()))
        if len({each[name][0] for each in totals.values()}) == 1
    }
    busy = {rank: sum(each[name][1] for name in same) / job.steps for rank, each in totals.items()}
    worst = max(busy, key=lambda rank: busy[rank])
    typical = float(np.median([value for rank, value in busy.items() if rank != worst]))
    next_worst = max(value for rank, value in busy.items() if rank != worst)
    excess = busy[worst] - typical
    if typical and busy[worst] >= SLOWER_LEAST * next_worst and excess >= least_s(job):
        ratio = f"{busy[worst] / typical:.2f} times as long"
        evidence = f"the same kernels take {ratio} on rank {worst} as on the others"
        finding = finding_of(job, "slow rank", excess, evidence, worst)
        yield finding, scaled(job, computes, typical / busy[worst], [worst])


def _stages(job: RecordedJob) -> Iterator[Seen]:
    """Stages of a pipeline compute for different times."""
    degree, stride = job.layout.degrees.get("pp", 1), job.layout.strides.get("pp", 0)
    if (
        degree < 2
        or not stride
        or any(each.cause == "slow rank" for each, _ in (*_slow_rank(job), *_slow_gpu(job)))
    ):
        return
    of_stage: dict[int, list[float]] = defaultdict(list)
    for rank, line in job.timelines.items():
        windows = stretches(line)
        of_stage[rank // stride % degree].append(
            sum(seconds(clipped(line.compute, each.start_s, each.end_s)) for each in windows) / len(windows)
        )
    if len(of_stage) < degree:
        return
    busy = {stage: float(np.mean(values)) for stage, values in of_stage.items()}
    worst, mean = max(busy, key=lambda stage: busy[stage]), float(np.mean([*busy.values()]))
    excess = busy[worst] - mean
    if excess >= least_s(job):
        cause = "last stage with head" if worst == degree - 1 else "uneven stages"
        slowest = f"stage {worst} of {degree} computes {format_seconds(busy[worst])}"
        evidence = f"{slowest}, the mean of all {format_seconds(mean)}"
        factors = {rank: mean / busy[rank // stride % degree] for rank in job.timelines}
        yield finding_of(job, cause, excess, evidence), scaled_by_rank(job, computes, factors)


def _reduces(job: RecordedJob, rank: int) -> list[Call]:
    """Collectives of gradients: of the axis dp."""
    axis_of = job.layout.axis_of
    return [
        call
        for call in job.calls[rank]
        if not call.sends and axis_of.get(tuple(sorted(call.group))) == "dp" and call.kind != "broadcast"
    ]


def _overlap(job: RecordedJob) -> Iterator[Seen]:
    """A GPU communicates gradients while nothing computes.

    A host needs its cores for both: there it is a fault where a plan wants it otherwise (`findings_beside`).
    """
    if all(trace.gpu for trace in job.traces):
        yield from unhidden_gradients(job)


def unhidden_gradients(job: RecordedJob) -> Iterator[Seen]:
    """Gradients are communicated while nothing computes."""
    exposed, hidden = [], []
    for rank, line in job.timelines.items():
        calls = _reduces(job, rank)
        if not line.trace.gpu:
            calls = [call for call in calls if call.kind in SUMS]
        sent = union(np.array([(call.start_s, call.end_s) for call in calls]).reshape(-1, 2))
        beside = line.compute if line.trace.gpu else _beside_backward(line.trace.events, calls)
        for each in stretches(line):
            within = clipped(sent, each.start_s, each.end_s)
            covered = seconds(common(within, beside))
            hidden.append(covered)
            exposed.append(seconds(within) - covered)
    waits = job.mean_part("waiting for the last rank") if job.meetings else 0.0
    cost = float(np.mean(exposed)) - waits if exposed else 0.0
    total = float(np.mean(exposed)) + float(np.mean(hidden)) if exposed else 0.0
    if cost >= least_s(job) and float(np.mean(hidden)) < OVERLAPPED_LEAST * total and not [*_buckets(job)]:
        share = 1 - float(np.mean(hidden)) / total
        evidence = f"{share:.0%} of the gradients' communication runs while nothing computes"
        if not job.meetings:
            evidence += "; other ranks' traces would tell transfer from waiting"
        computing = float(np.mean([step.compute_s for step in _step_totals(job)]))
        left = max(0.0, 1.0 - computing / total)  # no more than computes can be hidden
        reduces = {rank: _reduces(job, rank) for rank in job.timelines}
        yield finding_of(job, "overlap off", cost, evidence), transfers_scaled(job, reduces, left)


SUMS: Final = ("allreduce", "reducescatter")
"""Collectives that sum gradients."""


def _beside_backward(events: Events, calls: Sequence[Call]) -> Intervals:
    """Of a host: collectives during which a backward goes on, whatever cores it has meanwhile."""
    backward = events.start_s[phase(events, "backward")]
    rows = np.array([(call.start_s, call.end_s) for call in calls]).reshape(-1, 2)
    begun = np.searchsorted(backward, rows)
    return union(rows[begun[:, 1] > begun[:, 0]])


def _asked(events: Events, kind: str) -> NDArray[np.float64]:
    """When the host asks for collectives of a kind."""
    called = np.array([name.startswith("c10d::") and kind in name for name in events.names], bool)
    return events.start_s[events.of("operation") & events.named(called)]


def _barriers(job: RecordedJob) -> Iterator[Seen]:
    """Ranks wait for each other where no data moves, more often than once a step."""
    if _late(job) or any(True for _ in _stages(job)):
        return  # they would wait at the next collective
    spent, counts = [], []
    for rank, line in job.timelines.items():
        calls = [call for call in job.calls[rank] if call.kind == "barrier"]
        rows = np.array([(call.start_s, call.end_s) for call in calls]).reshape(-1, 2)
        asked = _asked(line.trace.events, "barrier")
        if len(asked) == len(rows):  # a host waits from when it asks its thread of collectives
            rows[:, 0] = np.minimum(asked, rows[:, 0])
        rows = _with_gaps(rows)
        counts.append(len(calls) / job.steps)
        spent.append(seconds(without(union(rows), line.compute)) / job.steps)
    cost = float(np.mean(spent))
    if min(counts) > 1.0 and cost >= least_s(job):
        evidence = (
            f"{np.mean(counts):,.0f} barriers a step, which move no data; ranks spend "
            f"{format_seconds(cost)} in them while nothing computes"
        )
        yield finding_of(job, "synchronisation in the step", cost, evidence), None


def _with_gaps(rows: Intervals) -> Intervals:
    """Waits from which each begins to the next, where a host asks for that one in less time than it waits."""
    rows = rows[np.argsort(rows[:, 0])]
    gaps = rows[1:, 0] - rows[:-1, 1]
    asking = (gaps > 0) & (gaps < rows[:-1, 1] - rows[:-1, 0])
    rows[:-1, 1][asking] += gaps[asking]
    return rows


def _step_totals(job: RecordedJob) -> Iterator[Totals]:
    """Totals of each step of each rank."""
    for line in job.timelines.values():
        for each in stretches(line):
            yield line.totals(each.start_s, each.end_s)


def _buckets(job: RecordedJob) -> Iterator[Seen]:
    """Many messages so short that each takes what the shortest takes."""
    for rank, line in job.timelines.items():  # the first rank that reduces stands for all
        calls = [call for call in _reduces(job, rank) if call.bytes > 0]
        if len(calls) < 2 * job.steps or not (job.meetings or line.trace.gpu):
            continue
        sizes = np.array([call.bytes for call in calls])
        moved = _transfers(job, calls)
        total = sizes.sum() / job.steps
        needed = max(1.0, np.ceil(total / BUCKET_BYTES))
        made = len(calls) / job.steps
        floor = float(np.quantile(moved, 0.05))
        each_s = floor if line.trace.gpu else float(moved.mean())  # a host waits for its cores in each
        cost = (made - needed) * each_s
        small = float(np.median(sizes)) < BUCKET_BYTES / 4
        exposed = job.mean_part("exposed communication dp", rank)
        if (
            small
            and made > 4 * needed
            and min(cost, exposed) >= least_s(job)
            and floor >= 0.5 * float(np.median(moved))
        ):
            evidence = (
                f"{made:,.0f} messages of {format_bytes(float(np.median(sizes)))} a step, each at least "
                f"{format_seconds(floor)}; {needed:,.0f} of {format_bytes(BUCKET_BYTES)} would do"
            )
            factor = 1.0 - cost / (float(moved.sum()) / job.steps)
            all_calls = {each: _reduces(job, each) for each in job.timelines}
            finding = finding_of(job, "small buckets", min(cost, exposed), evidence)
            yield finding, transfers_scaled(job, all_calls, factor)
        return


def _transfers(job: RecordedJob, calls: Sequence[Call]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds that each call moves data: without its wait for the last rank, where that is known."""
    known = {id(call): meeting.transfer_s for meeting in job.meetings for call in meeting.calls}
    return np.array([known.get(id(call), call.seconds) for call in calls])


def _slow_link(job: RecordedJob) -> Iterator[Seen]:
    """The same message takes longer in one group than in its likes."""
    moved: dict[tuple[str, int, float], dict[tuple[int, ...], list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for meeting in job.meetings:
        call = meeting.calls[0]
        if call.bytes > 0:
            axis = job.layout.axis_of.get(tuple(sorted(call.group)), "")
            moved[axis + call.kind, len(call.group), call.bytes][call.group].append(meeting.transfer_s)
    for call, pair, lasts in _sends(job):
        moved["sends", 2, call.bytes][pair].append(lasts)
    excess, ratio = Counter[tuple[int, ...]](), dict[tuple[int, ...], list[float]]()
    for by_group in moved.values():
        typical = {group: float(np.median(times)) for group, times in by_group.items()}
        for group, value in typical.items():
            others = [each for other, each in typical.items() if other != group]
            if others and min(others) > 0.0 and value >= SLOW_LINK * max(others):
                excess[group] += (value - float(np.median(others))) * len(by_group[group]) / job.steps  # type: ignore[assignment]
                ratio.setdefault(group, []).append(value / float(np.median(others)))
    for group, cost in excess.most_common(1):
        if cost >= least_s(job):
            evidence = (
                f"messages of the same size take {np.median(ratio[group]):.1f} times as long among ranks "
                f"{', '.join(map(str, group[:8]))} as in other groups"
            )
            finding = finding_of(
                job, "slow link", float(cost), evidence, ranks=", ".join(map(str, group[:8]))
            )
            calls = {
                rank: [call for call in job.calls[rank] if call.group == group]
                for rank in group
                if rank in job.calls
            }
            yield finding, transfers_scaled(job, calls, 1.0 / float(np.median(ratio[group])))


def _sends(job: RecordedJob) -> Iterator[tuple[Call, tuple[int, ...], float]]:
    """Sends whose pair of ranks is recorded, with the shortest that each size takes there."""
    shortest: dict[tuple[tuple[int, ...], float], tuple[Call, float]] = {}
    for of in job.calls.values():
        for call in of:
            if call.sends and len(call.group) == 2 and call.bytes > 0:
                key = (call.group, call.bytes)
                if key not in shortest or call.seconds < shortest[key][1]:
                    shortest[key] = call, call.seconds
    counts = Counter((call.group, call.bytes) for of in job.calls.values() for call in of if call.sends)
    for pair, (call, lasts) in shortest.items():
        for _ in range(counts[pair] // 2 or 1):
            yield call, pair[0], lasts


def wide_products(events: Events) -> NDArray[np.bool_]:
    """Matrix products whose operands have four bytes, by the names of their kernels."""
    return _products(events) & events.named(np.array([operands_of(n) == "fp32" for n in events.names], bool))


def _products(events: Events) -> NDArray[np.bool_]:
    names = [kernel_classes().index(name) for name in ("GEMM", "convolution", "attention")]
    return events.of("kernel") & np.isin(classes_of(events), names)


def _precision(job: RecordedJob) -> Iterator[Seen]:
    """Most of the time of matrix products is spent on operands of four bytes."""
    shares, spent = [], []
    for trace in job.traces:
        events = trace.events
        total = float(events.duration_s[_products(events)].sum())
        if total:
            wide = float(events.duration_s[wide_products(events)].sum())
            shares.append(wide / total)
            spent.append(wide / job.steps)
    if shares and float(np.median(shares)) >= 0.5 and float(np.median(spent)) >= least_s(job):
        evidence = f"{np.median(shares):.0%} of the time of matrix products is in kernels of float32 operands"
        finding = finding_of(job, "precision", float(np.median(spent)), evidence)
        finding = finding if _has_bf16(job) else replace(finding, fix=HALF_FIX)
        ratio = _peak_ratio(job)
        yield finding, None if ratio is None else scaled(job, wide_products, ratio)


def wide_operations(events: Events) -> tuple[NDArray[np.bool_], float]:
    """Innermost products of the host with operands of four bytes, and their share of the products' time."""
    products = events.of("operation") & events.named(
        np.array([PRODUCT.fullmatch(name) is not None for name in events.names], bool)
    )
    wide, narrow = np.zeros(len(events), bool), np.zeros(len(events), bool)
    for place in np.flatnonzero(products & (events.detail >= 0)):
        types = events.details[events.detail[place]].get("types")
        sizes = {ELEMENT_BYTES.get(str(kind).lower(), 0) for kind in types or () if kind != "Scalar"} - {0}
        wide[place], narrow[place] = sizes == {4}, bool(sizes) and max(sizes) < 4
    casts = sets_of(events, narrow)  # a cast operand is multiplied within the operation that casts it
    wide_s = seconds(without(sets_of(events, wide), casts))
    total = wide_s + seconds(casts)
    return wide, wide_s / total if total else 0.0


PRODUCT: Final = re.compile(r"aten::(?:mm|addmm|bmm|baddbmm|_scaled_dot_product\w*)")
"""Operations of ATen that multiply matrices and call no other that does."""


def wide_beside(job: RecordedJob, precision: TrainingPrecision, source: str) -> Iterator[Seen]:
    """Products of float32 operands where fewer bits are asked for, by the types that operations record."""
    if PRECISIONS[TRAINING[precision].linear].weight_bytes >= FLOAT32_BYTES or [*_precision(job)]:
        return
    shares, spent = [], []
    for trace in job.traces:
        events = trace.events
        wide, share = wide_operations(events)
        kernels = launched_within(events, computes(events), wide)
        shares.append(share)
        spent.append(seconds(sets_of(events, kernels if trace.gpu else wide)) / job.steps)
    cost = float(np.median(spent))
    if float(np.median(shares)) >= 0.5 and cost >= least_s(job):
        evidence = (
            f"{np.median(shares):.0%} of the time of matrix products is in operations of float32 operands, "
            f"and {source} asks for {precision}"
        )
        yield finding_of(job, "precision", cost, evidence), None


FLOAT32_BYTES: Final = 4


def _peak_ratio(job: RecordedJob) -> float | None:
    """Time of a product in 16 bits over that in float32 by the peaks of the GPU, where its name is known."""
    for device in {trace.device for trace in job.traces if trace.device}:
        try:
            peaks = gpu(device).peak_flop_per_s
        except InputError:
            continue
        narrow = max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0))
        if narrow and peaks.get("fp32"):
            return peaks["fp32"] / narrow
    return None


HALF_FIX: Final = (
    'run matrix products in float16, this GPU has no bfloat16: Megatron-LM --fp16; torch.autocast("cuda", '
    "torch.float16) with torch.amp.GradScaler"
)


def _has_bf16(job: RecordedJob) -> bool:
    """Whether the GPU multiplies in bfloat16, so far as its name is known."""
    for device in {trace.device for trace in job.traces if trace.device}:
        try:
            if "bf16" not in gpu(device).peak_flop_per_s:
                return False
        except InputError:
            continue
    return True


def _layer_softmax(events: Events) -> NDArray[np.bool_]:
    """Softmax that is no loss: kernels, or the host's operations where no GPU is recorded."""
    of_layers = ["log" not in name.lower() and "loss" not in name.lower() for name in events.names]
    softmax: NDArray[np.bool_] = classes_of(events) == kernel_classes().index("softmax")
    return _innermost(events) & softmax & events.named(np.array(of_layers, bool))


def _fused(events: Events) -> NDArray[np.bool_]:
    """Attention in which softmax is never written."""
    chosen: NDArray[np.bool_] = classes_of(events) == kernel_classes().index("attention")
    whole = np.array(["_math" not in name and name not in CHOOSERS for name in events.names], bool)
    return _innermost(events) & chosen & events.named(whole)


CHOOSERS: Final = ("aten::scaled_dot_product_attention",)
"""Operations that call another of attention, fused or not."""


def _innermost(events: Events) -> NDArray[np.bool_]:
    """Kernels; of a host what computes: operations whose names begin with an underscore call no others."""
    kernels = events.of("kernel")
    if kernels.any():
        return kernels
    inner = np.array([name.startswith("aten::_") for name in events.names], bool)
    return events.of("operation") & events.named(inner)


def _attention(job: RecordedJob) -> Iterator[Seen]:
    """Softmax of layers, and no fused attention."""
    costs = []
    for trace in job.traces:
        events = trace.events
        apart = _layer_softmax(events)
        if _fused(events).any() or apart.sum() < 4 * job.steps:
            return
        costs.append(float(events.duration_s[apart].sum()) / job.steps)
    cost = float(np.median(costs)) if costs else 0.0
    if cost >= least_s(job):
        what = "kernels" if any(trace.gpu for trace in job.traces) else "operations"
        evidence = f"softmax {what} take {format_seconds(cost)} of a step, and no fused attention runs"
        yield finding_of(job, "unfused attention", cost, evidence), scaled(job, _layer_softmax, 0.0)


RULES: tuple[Callable[[RecordedJob], Iterator[Seen]], ...] = (
    _of_parts,
    _slow_rank,
    _slow_gpu,
    _stages,
    _overlap,
    _barriers,
    _buckets,
    _slow_link,
    _precision,
    _attention,
    *EXPERT_RULES,
)
"""Each looks for one kind of cause."""
