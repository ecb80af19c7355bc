"""A running job held against its plan: whether it is that job, what of its time was useful, what is off.

A log whose batch, steps, GPUs, memory or speed cannot be the plan's is of another run, and nothing of the
plan is said of it. Lines that several ranks print of one step count once. A log of rates alone has the
plan's step only if its lines are as far apart: else its steps have other tokens.

Legend: a step is *useful* once, however often it was repeated; the useful share of a stretch of time is its
new steps, each of the median length, over the time between the first and the last line that say when.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from costmodel.campaign.record import Band, Campaign
from costmodel.layout import num_microbatches
from costmodel.ops.layer import model_flop_per_step
from planner.bounds.reachable import reachable_flop_per_s
from planner.formats.progress import LoggedJob, LoggedStep
from planner.formats.scheduler import Scheduled, by_cause
from planner.formats.step_lines import Pace, Work, known_engines, pace_of
from planner.plan import Plan
from topology.base.errors import InputError
from topology.base.units import DAY, TERA, format_bytes, format_seconds
from topology.cluster import Cluster

RARE = 0.05
"""So seldom would as many restarts come at the planned rate that it is said."""
ONE_NODE = 2.0
"""Times the planned step up to which one slow node is suspected: a throttled GPU keeps half its speed."""
WITHIN_S = 1.0
"""Seconds within which ranks print one step, however short it is: times are printed in whole ones."""
CLOCK_S = 20 * WITHIN_S
"""Seconds that two lines are at least apart where their times are divided by steps: the clock errs by 5 %."""
SAME_PACE = 1.25
"""Ratio up to which a step by rates is that of the clock: above the clock's 5 %, below twice the batch."""
SAME_TOTAL = 0.01
"""Share by which two totals of steps may differ: tokens are asked for in round numbers."""
WORTH_SAYING = 0.01
"""Share of the run that must be lost beyond the plan before a cause without a band of its own is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """One thing that is not as planned: a cause and a change."""

    cause: str
    change: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """How a run stands.

    Attributes:
        step: The furthest that was reached.
        steps: Of the whole run.
        step_s: Median of those that were logged; None where another run's lines have rates alone, and do not
            say when.
        planned_step_s: What was planned; None where steps are not on what the plan is for.
        restarts: How often step numbers went back.
        repeated_steps: Steps that were done again.
        wall_s: Seconds from the first line to the last; None where lines do not say when.
        useful_share: Of these; None likewise, and where the log is of another run.
        planned_useful_share: Of the whole run, in the median.
        held_s: Median time that steps waited for a checkpoint; None where no line says.
        planned_held_s: What was planned.
        interruptions: How many of each cause, by the scheduler.
        waited_s: Without nodes, by the scheduler; None where it does not say.
        days_left: To the last token, at the measured step and the useful share of the campaign; None where
            the log is of another run.
        off: What is not as planned.
        differs: What of the log cannot be of the plan's run, in words; empty where all can.
    """

    step: int
    steps: int
    step_s: float | None
    planned_step_s: float | None
    restarts: int
    repeated_steps: int
    wall_s: float | None
    useful_share: float | None
    planned_useful_share: float
    held_s: float | None
    planned_held_s: float
    interruptions: dict[str, int]
    waited_s: float | None
    days_left: Band | None
    off: tuple[Off, ...]
    differs: tuple[str, ...] = ()


NOBODY = Scheduled(interruptions=(), waited_s=None)
"""No scheduler was asked."""
NOT_STATED = LoggedJob()
"""A log that says nothing of its job."""


SLOWED = 0.15
"""Share by which steps are slower for good, beyond what walls vary from step to step."""
FEWEST_LATEST = 5
"""Latest steps, at least, that are all slower."""


def watched(
    plan: Plan,
    logged: Sequence[LoggedStep],
    held: Sequence[float] = (),
    seen: Scheduled = NOBODY,
    stated: LoggedJob = NOT_STATED,
) -> Watched:
    """Hold what was logged against a campaign.

    Args:
        plan: With its campaign.
        logged: Every step, of every rank that printed it.
        held: Seconds that checkpoints held steps up.
        seen: Interruptions, by the scheduler.
        stated: What the log says of its job.

    Raises:
        InputError: the plan has no campaign, or nothing was logged.
    """
    campaign, tokens = plan.campaign, plan.request.job.total_tokens
    if campaign is None or tokens is None:
        raise InputError(
            what="the plan does not say when its run is finished",
            cause="it was asked without tokens",
            fix="plan with --tokens, and watch with that plan",
        )
    if not logged:
        raise InputError(
            what="there is no step to watch",
            cause=f"no line of a step was recognised; known forms are those of plan run, {known_engines()}",
            fix="name the folder of plan run, or the log of the last or the first rank",
        )
    logged, stated = _in_steps(plan, logged, stated)
    steps = math.ceil(tokens / plan.request.job.tokens_per_step)
    pace = _pace(plan, logged)
    once = _once(_of_training(logged), pace.step_s)
    clock_s = _clock_step_s(once)
    if pace.is_by_flop and clock_s:
        pace = Pace(step_s=clock_s)
    step_s = pace.step_s
    last = max(line.step for line in once)
    restarts, repeated = _back(once)
    wall_s = _wall_s(once)
    compared = all(line.compared for line in once)
    differs = tuple(_differs(plan, once, stated, steps, pace)) if compared else ()
    useful = None if wall_s is None else min(1.0, (last - once[0].step) * step_s / wall_s)
    left_s = max(0, steps - last) * step_s / DAY
    share = campaign.useful_share
    held_s = statistics.median(held) if held else None
    stops = max(restarts, len(seen.failures))
    off: tuple[Off, ...] = (
        *_not_finite(once),
        *(_pace_off(plan, step_s) if compared else ()),
        *(() if stated.is_ramping else _slower_since(once)),  # a larger batch takes longer
        *_often(campaign, stops, wall_s),
        *_done_twice(campaign, len(once), repeated),
        *_held_up(campaign, held_s),
        *_nodes(campaign, seen, wall_s),
    )
    if differs:
        change = "watch it with its own plan, or plan what the log says and watch with that"
        off = (*_not_finite(once), Off(cause=f"not this plan's run: {'; '.join(differs)}", change=change))
    return Watched(
        step=last,
        steps=steps,
        step_s=clock_s if differs and pace.from_rate else step_s,
        planned_step_s=plan.estimate.step_time_s if compared and not differs else None,
        restarts=restarts,
        repeated_steps=repeated,
        wall_s=wall_s,
        useful_share=None if differs else useful,
        planned_useful_share=campaign.useful_share.p50,
        held_s=held_s,
        planned_held_s=campaign.checkpoint_stall_s,
        interruptions=by_cause(seen.interruptions),
        waited_s=seen.waited_s,
        days_left=None
        if differs
        else Band(p10=left_s / share.p90, p50=left_s / share.p50, p90=left_s / share.p10),
        off=off,
        differs=differs,
    )


def _in_steps(
    plan: Plan, logged: Sequence[LoggedStep], stated: LoggedJob
) -> tuple[list[LoggedStep], LoggedJob]:
    """Lines that count and time microbatches as steps of so many as the plan's replicas accumulate."""
    each = num_microbatches(plan.layout, plan.request.job)
    lines = [
        line
        if line.microbatch_s is None or line.step_s
        else replace(
            line,
            step=line.step // each,
            steps=line.steps and line.steps // each,
            step_s=line.microbatch_s * each,
        )
        for line in logged
    ]
    counted = any(line.microbatch_s and not line.step_s for line in logged)
    return lines, replace(stated, steps=stated.steps // each) if counted and stated.steps else stated


def _pace(plan: Plan, logged: Sequence[LoggedStep]) -> Pace:
    """The median step, of printed seconds where any are printed, else of rates and the plan's step."""
    job = plan.request.job
    work = Work(
        gpus=plan.layout.num_gpus,
        tokens=float(job.tokens_per_step),
        samples=float(job.global_batch_size),
        flop=model_flop_per_step(plan.request.model, job),
    )
    printed = [line for line in logged if line.step_s]
    values = [
        pace_of(
            work,
            step_s=line.step_s,
            tokens_per_s_per_gpu=line.tokens_per_s_per_gpu,
            tokens_per_s=line.tokens_per_s,
            samples_per_s=line.samples_per_s,
            flop_per_s_per_gpu=line.flop_per_s_per_gpu,
        )
        for line in printed or logged
    ]
    paces = sorted((pace for pace in values if pace is not None), key=lambda pace: pace.step_s)
    return replace(paces[len(paces) // 2], step_s=statistics.median(pace.step_s for pace in paces))


def _clock_step_s(once: Sequence[LoggedStep], apart_s: float = CLOCK_S) -> float | None:
    """Seconds of a step between lines that say when; None where they do not, or too little time passed.

    Each line is held against the next one that is so far away, for a clock shows whole seconds; the mean of
    the middle half leaves out pauses between lines that are not in every such stretch.
    """
    values: list[float] = []
    later = 0
    for at, line in enumerate(once):
        if line.at_s is None:
            return None
        while later < len(once) and (later <= at or (once[later].at_s or 0.0) - line.at_s < apart_s):
            later += 1
        if later == len(once):
            break
        if once[later].step > line.step:
            values.append(((once[later].at_s or 0.0) - line.at_s) / (once[later].step - line.step))
    quarter = len(values) // 4
    middle = sorted(values)[quarter : len(values) - quarter]
    return statistics.fmean(middle) if middle else None


def _another_batch(logged: Sequence[LoggedStep], pace: Pace) -> Iterator[str]:
    """A step by the plan's batch that the clock contradicts.

    Steps cannot come faster than they take, whatever pauses there are; slower, where most lines are late on
    the one before.
    """
    clock_s, next_s = _clock_step_s(logged), _clock_step_s(logged, 0.0)
    if not pace.from_rate or clock_s is None or next_s is None:
        return
    if next_s > pace.step_s * SAME_PACE or clock_s * SAME_PACE < pace.step_s:
        yield (
            f"its steps are {format_seconds(clock_s)} apart, and at {pace.from_rate} the planned batch takes "
            f"{format_seconds(pace.step_s)}"
        )


def _of_training(logged: Sequence[LoggedStep]) -> list[LoggedStep]:
    """Steps without those of shorter bars, which load, or evaluate."""
    longest = max((line.steps for line in logged if line.steps), default=None)
    return [line for line in logged if not line.steps or line.steps == longest]


def _once(logged: Sequence[LoggedStep], step_s: float) -> list[LoggedStep]:
    """Every step once, of however many ranks printed it; a step that was done twice stays twice.

    A line repeats another of its step if it was printed within a step's time of it, or, where lines do not
    say when, by a rank that has not printed the step yet, right after it, or in the same words.
    """
    lines: list[LoggedStep] = []
    latest: dict[int, tuple[LoggedStep, set[str]]] = {}
    for line in logged:
        before = latest.get(line.step)
        if before is not None and _repeats(line, *before, step_s, lines[-1].step):
            before[1].add(line.rank)
            continue
        lines.append(line)
        latest[line.step] = (line, {line.rank})
    return lines


def _repeats(line: LoggedStep, first: LoggedStep, ranks: set[str], step_s: float, latest: int) -> bool:
    """Whether a line says of a step what another line said."""
    if line.at_s is not None and first.at_s is not None:
        return abs(line.at_s - first.at_s) < max(step_s, WITHIN_S)
    if line.rank and line.rank not in ranks:
        return True
    return line.step == latest or replace(line, rank="") == replace(first, rank="")


def _differs(
    plan: Plan, logged: Sequence[LoggedStep], value: LoggedJob, steps: int, pace: Pace
) -> Iterator[str]:
    """What of a log cannot be of the plan's run."""
    step_s = pace.step_s
    job, layout, cluster = plan.request.job, plan.layout, plan.case.cluster
    batch = value.global_batch_size
    if batch and batch != job.global_batch_size and not value.is_ramping:
        yield f"its batch is {batch:,} sequences, planned {job.global_batch_size:,}"
    length = value.sequence_length
    if length and length != job.sequence_length:
        yield f"its sequences are {length:,} tokens, planned {job.sequence_length:,}"
    total = value.steps
    if total and abs(total - steps) > SAME_TOTAL * steps and not value.is_ramping:
        yield f"it has {total:,} steps, planned {steps:,}"
    if value.num_gpus and value.num_gpus != layout.num_gpus:
        yield f"it runs on {value.num_gpus:,} GPUs, planned {layout.num_gpus:,}"
    yield from _another_batch(logged, pace)
    yield from _another_memory(plan, logged, cluster)
    limit = reachable_flop_per_s(cluster.gpu, job)
    rates = [line.flop_per_s_per_gpu for line in logged if line.flop_per_s_per_gpu]
    rate = statistics.median(rates) if rates else 0.0
    most = f"a {cluster.gpu.name} reaches {limit / TERA:.0f} at most"
    if rate > limit:
        yield f"it prints {rate / TERA:.0f} TFLOP/s per GPU, and {most}"
    means = model_flop_per_step(plan.request.model, job) / (step_s * layout.num_gpus)
    if means > limit:
        yield f"a step of {format_seconds(step_s)} would be {means / TERA:.0f} TFLOP/s per GPU, and {most}"
    elif step_s < _shortest_s(plan):
        yield (
            f"a step of {format_seconds(step_s)} is faster than any layout of this job, "
            f"{format_seconds(_shortest_s(plan))}"
        )


def _shortest_s(plan: Plan) -> float:
    """Seconds that no layout of the job goes below, the doubt of the model taken twice.

    The 80 % band reaches 1.28 deviations, so twice that leaves one run in two hundred.
    """
    bound = min(plan.optimality.bound_s or plan.estimate.step_time_s, plan.estimate.step_time_s)
    return bound * (plan.estimate.lower_s / plan.estimate.step_time_s) ** 2


def _another_memory(plan: Plan, logged: Sequence[LoggedStep], cluster: Cluster) -> Iterator[str]:
    """A printed peak that the plan's job cannot have: more than its band taken twice, or than a GPU has."""
    peak = max((line.peak_memory_bytes or 0.0 for line in logged), default=0.0)
    estimate, capacity = plan.estimate, cluster.gpu.memory_bytes
    states = min(
        stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
        for stage in estimate.memory_by_stage
    )
    text = f"its peak is {format_bytes(peak)}"
    if peak > capacity:
        yield f"{text}, and a {cluster.gpu.name} has {format_bytes(capacity)}"
    elif peak > estimate.memory_upper_bytes**2 / estimate.peak_memory_bytes:
        yield f"{text}, planned {format_bytes(estimate.peak_memory_bytes)}"
    elif 0 < peak < states:
        yield f"{text}, and the states of a planned stage alone are {format_bytes(states)}"


def _back(logged: Sequence[LoggedStep]) -> tuple[int, int]:
    """How often step numbers went back, and how many steps that cost in all."""
    furthest, restarts, repeated = logged[0].step, 0, 0
    for before, line in itertools.pairwise(logged):
        if line.step <= before.step:
            restarts += 1
            repeated += max(0, furthest - line.step + 1)
        furthest = max(furthest, line.step)
    return restarts, repeated


def _wall_s(logged: Sequence[LoggedStep]) -> float | None:
    """Seconds between the first and the last line, where both say when and something lies between."""
    first, last = logged[0].at_s, logged[-1].at_s
    return None if first is None or last is None or last <= first else last - first


def _not_finite(once: Sequence[LoggedStep]) -> Iterator[Off]:
    """A loss or a gradient that is no number, where the latest step still has it."""
    broken = list(itertools.takewhile(lambda line: not line.is_finite, reversed(once)))
    if broken:
        first = broken[-1].step
        yield Off(
            cause=f"loss is NaN or infinite, or the gradient's norm NaN, from step {first:,} on",
            change=f"stop it; go on from a checkpoint before step {first:,} with other data or a lower rate",
        )


def _slower_since(once: Sequence[LoggedStep]) -> Iterator[Off]:
    """The latest steps, every one of them slower than the usual step before by more than `SLOWED`."""
    timed = [(line.step, line.step_s) for line in once if line.step_s is not None]
    usual_s = statistics.median(seconds for _, seconds in timed[: max(1, len(timed) // 2)]) if timed else 0.0
    slow = list(itertools.takewhile(lambda each: each[1] > (1 + SLOWED) * usual_s, reversed(timed)))
    if FEWEST_LATEST <= len(slow) <= len(timed) // 2:
        since, now_s = slow[-1][0], statistics.median(seconds for _, seconds in slow)
        took = f"a step takes {format_seconds(now_s)} since step {since:,}, {format_seconds(usual_s)} before"
        changed = "one slow node (plan bench --check PLAN.json on each), its clocks, the data loader"
        yield Off(cause=took, change=f"look for what changed then: {changed}")


def _pace_off(plan: Plan, step_s: float) -> Iterator[Off]:
    """A step outside the band of its estimate."""
    planned = plan.estimate
    text = f"a step takes {format_seconds(step_s)}, planned {format_seconds(planned.step_time_s)}"
    if step_s > planned.upper_s:
        node = "look for one slow node: plan bench --check PLAN.json on each"
        other = (
            "see first that the job is the planned one (layout, batch, length, precision), then that its "
            "links have their rate: plan bench --check PLAN.json on each node finds a slow one too"
        )
        change = node if step_s < ONE_NODE * planned.step_time_s else other
        yield Off(cause=f"{text} and at most {format_seconds(planned.upper_s)}", change=change)
    elif step_s < planned.lower_s:
        yield Off(
            cause=f"{text} and at least {format_seconds(planned.lower_s)}",
            change="see that the job is the planned one; if it is, plan again with its measured step "
            "(plan audit LOG --anchor NAME, then plan --anchor NAME)",
        )


def _done_twice(campaign: Campaign, logged: int, repeated: int) -> Iterator[Off]:
    """More of the steps done twice than checkpoints as planned leave to do."""
    share, planned = repeated / max(1, logged), campaign.lost_share.lost_work
    if repeated > 1 and share - planned > WORTH_SAYING:
        yield Off(
            cause=f"{repeated:,} steps were done again, {100 * share:.1f} % of those that were logged, "
            f"planned {100 * planned:.1f} % of the time",
            change="save more often, or see why the last checkpoints were not taken up again",
        )


def _often(campaign: Campaign, stops: int, wall_s: float | None) -> Iterator[Off]:
    """More interruptions than chance makes of the planned rate."""
    mean = 0.0 if wall_s is None else wall_s / campaign.mean_time_between_failures_s
    if wall_s is not None and at_least(stops, mean) < RARE:
        yield Off(
            cause=f"{stops} restarts in {format_seconds(wall_s)}, planned {mean:.2g}",
            change="plan again with your own counts in --failures: the interval and spares follow",
        )


def _held_up(campaign: Campaign, held_s: float | None) -> Iterator[Off]:
    """Checkpoints that cost more of the run than planned."""
    planned, every = campaign.checkpoint_stall_s, campaign.checkpoint_interval_s
    if held_s is not None and held_s - planned > WORTH_SAYING * every:
        yield Off(
            cause=f"a checkpoint holds steps up for {format_seconds(held_s)}, planned "
            f"{format_seconds(planned)}: {100 * (held_s - planned) / (every + held_s):.1f} % of the run more",
            change="save asynchronously, or plan again with the measured [storage] in --failures: "
            "the interval follows",
        )


def _nodes(campaign: Campaign, seen: Scheduled, wall_s: float | None) -> Iterator[Off]:
    """A node that fails again, and waiting for nodes that was not planned."""
    named = Counter(failure.node for failure in seen.failures if failure.node)
    for node, times in named.most_common(1):
        if times > 1:
            yield Off(
                cause=f"{times} of {len(seen.failures)} interruptions name node {node}",
                change="leave it out of the allocation until it is repaired",
            )
    if wall_s is None or seen.waited_s is None:
        return
    waited, planned = seen.waited_s / wall_s, campaign.lost_share.waiting_for_nodes
    if waited - planned > WORTH_SAYING:
        yield Off(
            cause=f"{100 * waited:.1f} % of the time went by without nodes, planned {100 * planned:.1f} %",
            change=f"hold {campaign.spare_nodes + 1} or more spare nodes in the job; planned "
            f"{campaign.spare_nodes}",
        )


def at_least(count: int, mean: float) -> float:
    """Chance of at least so many events of a Poisson process of this mean.

    >>> at_least(0, 3.0), round(at_least(1, 1.0), 3)
    (1.0, 0.632)
    """
    below = [math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(count)] if mean else []
    return max(0.0, 1.0 - sum(below)) if mean or not count else 0.0
