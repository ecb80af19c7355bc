"""Steps of a running job with when they were logged: of `plan run`, of every known engine, of MLPerf's runs.

Several ranks print one step. What a later line says of the step that is being logged is not another step;
`LoggedStep.rank` keeps the lines of ranks apart where launchers name them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from planner.formats.logs import LONGEST_LINE
from planner.formats.step_lines import COLOUR, FORMS, LONGEST_STEP_S, StepLine, step_line

MOST_LOGGED = 400_000
MOST_STEP = 10**12
MOST_MLPERF = 1_000_000
"""Steps of a benchmark run, which takes some thousands: a larger number counts something else."""
LATEST_S = 1e11
"""Three thousand years after 1970."""
_WHEN = re.compile(r"(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[ T](?P<clock>\d\d:\d\d:\d\d)")
_WHEN_US = re.compile(r"\b(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{4}) (?P<clock>\d\d:\d\d:\d\d)")
_RANK = re.compile(
    r"^\s*(?:(\d{1,5}):\s|\[?\s*(?:default|rank)[ _]?(\d{1,5})\]?:|\[1,(\d{1,5})\]<std)", re.IGNORECASE
)
_MLLOG = ":::MLLOG"
_STATED = {
    "global_batch_size": re.compile(
        r"(?i)(?:global[ _]batch[ _]size|total train batch size \([^)]*\))\s*[:=]?\s*"
        r"(\d[\d,]{0,14})(?![\d.,]*[\dKM])"
    ),
    "num_gpus": re.compile(r"(?i)using world size:\s*(\d{1,9})"),
    "sequence_length": re.compile(r"(?i)\bsequence length\s*[:=]?\s*(\d{1,12})"),
}
"""What engines print of their jobs beside the steps."""
_TOTALS = tuple(form for form in FORMS if form.means == "steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """One line of progress.

    Attributes:
        step: Its number.
        steps: Of the whole run, where the line says it.
        step_s: Seconds of a step; None where the line has rates alone.
        tokens_per_s_per_gpu: Tokens a second of one GPU.
        tokens_per_s: Tokens a second of all GPUs.
        samples_per_s: Sequences a second of all GPUs.
        flop_per_s_per_gpu: Operations a second of one GPU, as the engine counts them.
        peak_memory_bytes: The most that the GPU of the line's rank held.
        microbatch_s: Seconds of a microbatch, where the engine times those; `step` and `steps` count them.
        at_s: When it was logged, seconds since 1970; None where the line does not say.
        rank: Which rank the launcher says printed it; empty where it does not say.
        compared: Whether it was on what its plan is for; False where `plan run` says that it was not.
        is_finite: Whether its loss is a number, and the norm of its gradient not NaN.
    """

    step: int
    steps: int | None = None
    step_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    flop_per_s_per_gpu: float | None = None
    peak_memory_bytes: float | None = None
    microbatch_s: float | None = None
    at_s: float | None = None
    rank: str = ""
    compared: bool = True
    is_finite: bool = True


@dataclass(slots=True)
class LoggedJob:
    """What a log says of its job beside its steps; None where it does not say.

    Attributes:
        global_batch_size: Sequences of a step.
        sequence_length: Tokens of a sequence.
        steps: Of the whole run.
        num_gpus: That work.
        is_ramping: Whether the batch has grown, and so may grow further.
        seen: Steps of MLPerf's records so far.
    """

    global_batch_size: int | None = None
    sequence_length: int | None = None
    steps: int | None = None
    num_gpus: int | None = None
    is_ramping: bool = False
    seen: int = 0


_NOT_FINITE = re.compile(
    r"(?:loss[\"']?\s*[:=|]?\s*[\"']?[-+]?(?:nan|inf(?:inity)?)|"
    r"grad(?:ient)?[ _]?norm[\"']?\s*[:=|]?\s*[\"']?[-+]?nan)\b",
    re.IGNORECASE,
)
"""A loss that is no number, or a norm that is NaN; an infinite norm is what a loss scaler waits for."""


def logged_steps(lines: Iterable[str]) -> Iterator[LoggedStep]:
    """Every step in the order of the lines; others, and half-written ones, are left out.

    A step whose number and whose rates stand on lines of their own is put together.
    """
    number, job = dict[str, int](), LoggedJob()
    for _, line in zip(range(MOST_LOGGED), lines, strict=False):
        plain = COLOUR.sub("", line[:LONGEST_LINE])
        if plain.startswith('{"step"'):
            of_run = _of_run(plain)
            if of_run is not None:
                yield of_run
            continue
        if _MLLOG in plain:
            _take_mllog(plain, job)
            yield from _of_mllog(plain, job)
            continue
        result, rank = step_line(plain), _rank(plain)
        if result.step is not None and result.step < MOST_STEP:
            number[rank] = int(result.step)
        elif result.is_progress and rank in number:
            result.step = number.pop(rank)
        if result.step is not None and result.is_progress:
            number.pop(rank, None)
            yield _timed(result, rank, _when(plain), is_finite=_NOT_FINITE.search(plain) is None)


def logged_job(lines: Iterable[str]) -> LoggedJob:
    """What lines say of their job: of a batch that ramps up the last, of other numbers the first."""
    job = LoggedJob()
    for _, line in zip(range(MOST_LOGGED), lines, strict=False):
        plain = line[:LONGEST_LINE]
        small = plain.lower()
        if _MLLOG in plain:
            _take_mllog(plain, job)
            continue
        if "batch" in small and (batch := _STATED["global_batch_size"].search(plain)):
            size = int(batch[1].replace(",", "")) or job.global_batch_size
            job.is_ramping |= (size or 0) > (job.global_batch_size or size or 0)
            job.global_batch_size = size
        if "world size" in small and job.num_gpus is None and (world := _STATED["num_gpus"].search(plain)):
            job.num_gpus = int(world[1])
        if "sequence length" in small and (length := _STATED["sequence_length"].search(plain)):
            job.sequence_length = job.sequence_length or int(length[1])
        if job.steps is None and (steps := step_line(plain, _TOTALS).steps):
            job.steps = int(steps)
    return job


def _timed(timed: StepLine, rank: str, at_s: float | None, *, is_finite: bool) -> LoggedStep:
    """A step with what its line says."""
    return LoggedStep(
        step=int(timed.step or 0),
        steps=None if timed.steps is None else int(timed.steps),
        step_s=timed.step_s or timed.mean_step_s or timed.bar_step_s,
        tokens_per_s_per_gpu=timed.tokens_per_s_per_gpu or None,
        tokens_per_s=timed.tokens_per_s or None,
        samples_per_s=timed.samples_per_s or None,
        flop_per_s_per_gpu=timed.flop_per_s_per_gpu or None,
        peak_memory_bytes=timed.peak_memory_bytes or None,
        microbatch_s=timed.microbatch_s if timed.microbatches is None else None,
        at_s=at_s,
        rank=rank,
        is_finite=is_finite,
    )


def _of_run(line: str) -> LoggedStep | None:
    """A line of `metrics.jsonl`."""
    try:
        data: Any = json.loads(line)
        step, seconds = int(data["step"]), float(data["step_time_s"])
        at_s = float(data["at_s"]) if "at_s" in data else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if not (0 < seconds < LONGEST_STEP_S and 0 <= step < MOST_STEP):
        return None
    known = at_s is not None and 0 < at_s < LATEST_S
    compared = data.get("compared") is not False
    return LoggedStep(
        step=step,
        step_s=seconds,
        at_s=at_s if known else None,
        compared=compared,
        is_finite=_NOT_FINITE.search(line) is None,
    )


def _record(line: str) -> dict[str, Any]:
    """The record of an MLLOG line, empty where it is none."""
    try:
        record: Any = json.loads(line[line.index("{") :])
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _take_mllog(line: str, job: LoggedJob) -> None:
    """What a record of MLPerf's logger says of the job."""
    record = _record(line)
    name, value = _MLLOG_FIELDS.get(str(record.get("key"))), record.get("value")
    if name is not None and isinstance(value, int) and not isinstance(value, bool) and 0 < value < MOST_STEP:
        setattr(job, name, value)


_MLLOG_FIELDS = {
    "global_batch_size": "global_batch_size", "max_sequence_length": "sequence_length",
    "sequence_length": "sequence_length", "max_steps": "steps",
}  # fmt: skip


def _of_mllog(line: str, job: LoggedJob) -> Iterator[LoggedStep]:
    """A step that MLPerf's logger tracks, by its number, or by the samples or tokens so far.

    >>> line = '{"key": "tracked_stats", "value": {"train_step_time": 14.2}, "metadata": {"step": 7}}'
    >>> [(one.step, one.step_s) for one in _of_mllog(f":::MLLOG {line}", LoggedJob())]
    [(7, 14.2)]
    """
    record = _record(line)
    value, about = record.get("value"), record.get("metadata")
    if record.get("key") != "tracked_stats" or not isinstance(value, dict):
        return
    about = about if isinstance(about, dict) else {}
    seconds = value.get("train_step_time", value.get("train_step_timing in s"))
    counted = next((name for name in _COUNTS if isinstance(about.get(name), int)), None)
    if not isinstance(seconds, int | float):
        return
    job.seen += 1
    count, samples = about.get(counted, job.seen), job.global_batch_size or 0
    tokens = samples * (job.sequence_length or 0)
    each = next((size for size in (tokens, samples) if size > 1 and count % size == 0), 1)
    step = count // (each if counted in _OF_DATA or each == tokens else 1)
    if step > MOST_MLPERF:  # samples or tokens, and no record says how many a step has
        step = job.seen
    if 0 < seconds < LONGEST_STEP_S and 0 <= step < MOST_STEP:
        at_ms = record.get("time_ms")
        at_s = at_ms / 1e3 if isinstance(at_ms, int | float) and 0 < at_ms < LATEST_S * 1e3 else None
        yield LoggedStep(step=step, step_s=float(seconds), at_s=at_s)


_COUNTS = ("step", "step_num", "global_step", "iteration", "samples_count", "epoch_num")
"""How MLPerf's runs count, the first that a record has."""
_OF_DATA = ("samples_count", "epoch_num")
"""Which of these count samples; runs that name a step may count tokens under it, in whole steps of them."""


def _when(line: str) -> float | None:
    """The first time of day that a line has; zones are not printed, and differences need none."""
    match = _WHEN.search(line) or _WHEN_US.search(line)
    if match is None:
        return None
    values = match.groupdict()
    try:
        day = f"{values['year']}-{values['month']}-{values['day']}T{values['clock']}"
        return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _rank(line: str) -> str:
    """The rank that a launcher names before a line."""
    match = _RANK.match(line)
    return next((digits for digits in match.groups() if digits), "") if match else ""
