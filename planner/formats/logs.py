"""Logs of training jobs: step time, TFLOP/s, tokens/s, peak memory, and the job as far as it is printed.

Of a run's steps the first is a warm-up; what counts is the median of the others. Seconds and milliseconds are
told apart by the log's own words.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.formats.settings import Setting
from topology.base.units import BILLION, GIB

MOST_LINES = 400_000
LONGEST_LINE = 20_000
MOST_STEPS = 100_000
LONGEST_INT = 19
LONGEST_STEP_S = 1e6
"""Eleven days."""
_STEP = re.compile(
    r"(?:elapsed time per iteration \(|iter time \(|elapsed_time_per_iteration_)(ms|s)\)?:\s*([\d.]+)([KM]?)"
)
_NAMED_STEP = re.compile(
    r"(?:train_step_timing(?: in s)?\"?\s*[:=]|\"train_step_time\"\s*:|Step Time\s*:)\s*([\d.]+)"
)
_PROGRESS = re.compile(r"\[[\d:]+<[\d:?]+,\s*([\d.]+)(s/it|it/s)")
_TFLOPS = re.compile(
    r"(?:TFLOPs:|TFLOP/s/GPU\)?:|tflops:|TFLOPS_per_GPU:|model_tflops_per_gpu:|approx flops per GPU:"
    r"|Effective Tera Flops per GPU:|MODEL_TFLOP/s/GPU:?|GPU utilization:)\s*([\d,.]+)",
    re.IGNORECASE,
)
_TOKENS = re.compile(
    r"(?:\btps:|tokens per GPU \(tokens/s/GPU\):|\(tgs\):|tokens_per_sec_per_gpu:)\s*([\d,.]+)([KM]?)"
)
_MEMORY = re.compile(
    r"(?:max allocated:|Peak allocated:?)\s*([\d.]+)|mem-max-allocated-gigabytes:\s*([\d.]+)"
    r"|(?:MaxMemAllocated=|Max_MA\s+|memory:\s*|max_mem_allocated\(gib\)':\s*)([\d.]+)",
    re.IGNORECASE,
)
"""In MiB, in GB, in GiB (DeepSpeed's GB are 2³⁰ bytes)."""
_SAMPLES = re.compile(
    r"(?:RunningAvgSamplesPerSec=|'train_samples_per_second':|Speed:|samples per second:|samples/sec:)"
    r"\s*([\d.]+)"
)
_THOUSANDS = {"": 1.0, "K": 1e3, "M": 1e6}
_HF = re.compile(r"'train_steps_per_second':\s*([\d.]+)")
_ARGUMENT = re.compile(r"^\s*([a-zA-Z_]\w*)\s+\.{2,}\s*(\S.*)$|^\s\s([a-z_]\w{24,})\s\s(\S+)$")
_STATED = {
    "cluster.num_gpus": re.compile(r"using world size:\s*(\d+)"),
    "job.global_batch_size": re.compile(
        r"(?:global[ _]batch[ _]size:?|Total train batch size \([^)]*\) =)\s*([\d,]+)(?![\d.]*[\dKM])"
    ),
    "layout.microbatch_size": re.compile(r"(?:local batch size|batch size per device =)\s*(\d+)"),
    "job.sequence_length": re.compile(r"sequence length\s*(\d+)"),
    "said.accumulation": re.compile(r"gradient accumulation steps\s*=?\s*(\d+)", re.IGNORECASE),
}
"""What engines print of their jobs in sentences."""
_MESH = re.compile(r"device mesh with \[([^\]]+)\], \[([^\]]+)\]")
_MESH_FIELDS = {
    "dp_replicate": "said.dp_replicate", "dp_shard": "said.dp_shard", "tp": "layout.tp", "pp": "layout.pp",
    "cp": "layout.cp",
}  # fmt: skip
_CONSUMED = re.compile(r"global_step[=:]\s*(\d+).{0,80}?consumed_samples[=:]\s*(\d+)")
_PREFIX = re.compile(r"(?:(?:\d{1,5}:|\[[^\]\n]{0,80}\](?:<std\w+>)?:?)\s?)+")
"""Rank, time and place that launchers and loggers put before a line."""
_PARALLEL = re.compile(
    r"(data|tensor-model|pipeline-model|model|context|expert-model)-parallel[ -]size:\s*(\d+)"
)
_COMMAND = re.compile(
    r"^(?:\+\s|cmd\s*=\s*|\$\s)|^\s*(?:[A-Z_]+=\S+\s+)*(?:torchrun|deepspeed|python3?|srun|\./\S+\.sh)\s"
)
_ECHOED = re.compile(r"^\+ ([A-Z_]*ARGS)=\((.*)\)$")
_LOGGED = re.compile(
    rf"{_STEP.pattern}|{_NAMED_STEP.pattern}|^:::MLLOG|^DLLL\s*\{{|RunningAvgSamplesPerSec=|"
    r"\btps:\s*[\d,]+\s+tflops:|'train_runtime':|\[[\d:]+<[\d:?]+,\s*[\d.]+(?:s/it|it/s)|"
    r"Speed: [\d.]+ samples/sec|mem-max-allocated-gigabytes",
    re.MULTILINE,
)


_TOLD: Mapping[re.Pattern[str], tuple[str, ...]] = {
    _STEP: ("elapsed time per iteration (", "iter time (", "elapsed_time_per_iteration_"),
    _NAMED_STEP: ("train_step_tim", "step time"),
    _PROGRESS: ("s/it", "it/s"),
    _TFLOPS: ("flops:", "flop/s/gpu", "flops_per_gpu:", "flops per gpu:", "gpu utilization:"),
    _TOKENS: ("tps:", "tokens per gpu (", "(tgs):", "tokens_per_sec_per_gpu:"),
    _MEMORY: ("allocated", "max_ma", "memory:"),
    _SAMPLES: ("samplespersec=", "samples_per_second", "speed:", "samples per second:", "samples/sec:"),
    _HF: ("train_steps_per_second",),
    _MESH: ("device mesh with",),
    _CONSUMED: ("consumed_samples",),
    _PARALLEL: ("parallel-size:", "parallel size:"),
    _COMMAND: ("+ ", "cmd", "$ ", "torchrun", "deepspeed", "python", "srun", ".sh"),
    _ARGUMENT: ("..", "  "),
    _STATED["cluster.num_gpus"]: ("using world size",),
    _STATED["job.global_batch_size"]: ("global batch size", "global_batch size", "global batch_size",
                                       "global_batch_size", "total train batch size"),
    _STATED["layout.microbatch_size"]: ("local batch size", "batch size per device"),
    _STATED["job.sequence_length"]: ("sequence length",),
    _STATED["said.accumulation"]: ("gradient accumulation steps",),
}  # fmt: skip
"""Small letters without one of which a text has no match of a pattern: most logs have a few of all."""
_RATES = frozenset((_TFLOPS, _SAMPLES, _TOKENS, _HF, _PROGRESS, _MEMORY))
_SENTENCES = frozenset((*_STATED.values(), _MESH, _CONSUMED))
_PRINTED = frozenset((_ARGUMENT, _COMMAND, _PARALLEL))


@dataclass(slots=True)
class Measured:
    """What a log measured; None where it does not say.

    Attributes:
        step_time_s: Median of the steady steps.
        steps: How many these are.
        tflops_per_gpu: Median of the printed rates.
        tokens_per_s_per_gpu: Median of the printed rates.
        samples_per_s: Last running average, or median, of all GPUs together.
        peak_memory_bytes: Largest printed.
        job: Facts that the log states: field, value, line.
        doubts: What of it is not to be taken as it stands.
    """

    step_time_s: float | None = None
    steps: int = 0
    tflops_per_gpu: float | None = None
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    peak_memory_bytes: float | None = None
    job: list[tuple[str, Any, int]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def is_log(text: str) -> bool:
    """Whether a text has lines that only a running job prints."""
    return bool(_LOGGED.search(text))


@dataclass(slots=True)
class _Read:
    """Numbers as they are found."""

    told: frozenset[re.Pattern[str]]
    """Patterns that the text may have."""
    steps: list[float] = field(default_factory=list)
    tflops: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    memory: float = 0.0
    blocks: list[tuple[str, float]] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    job: dict[str, tuple[Any, int]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    arrays: dict[str, str] = field(default_factory=dict)
    average: float | None = None
    progress: list[float] = field(default_factory=list)
    consumed: tuple[int, int] | None = None
    """Step and samples so far."""
    each_step: list[int] = field(default_factory=list)
    """Samples of a step, from those."""
    doubts: list[str] = field(default_factory=list)


def measured_of(text: str) -> tuple[Measured, list[Setting], str]:
    """What a log measured, the settings that it prints, and the commands that it shows."""
    small = text.lower()
    told = (pattern for pattern, words in _TOLD.items() if any(word in small for word in words))
    read = _Read(told=frozenset(told))
    for number, line in _lines(text):
        _take(line, number, read)
    if read.each_step and read.each_step[-1] > 0:
        read.job.setdefault("job.global_batch_size", (read.each_step[-1], 0))
    found = Measured(
        job=[(name, value, line) for name, (value, line) in read.job.items()], doubts=read.doubts
    )
    steady = read.steps[1:] if len(read.steps) > 1 else read.steps
    if steady:
        found.step_time_s, found.steps = statistics.median(steady), len(steady)
        if len(read.steps) == 1:
            found.doubts.append("the log has one step, which is a warm-up: not a steady state")
    elif read.average is not None or read.progress:
        found.step_time_s = read.average or _median(read.progress)
    found.tflops_per_gpu = _median(read.tflops)
    found.tokens_per_s_per_gpu = _median(read.tokens)
    found.samples_per_s = _median(read.samples)
    found.peak_memory_bytes = read.memory or None
    if read.arrays:  # what `bash -x` shows of the arguments: the first of every name, as one command
        read.commands.insert(0, f"run {' '.join(read.arrays.values())}")
    return found, read.settings, "\n".join(read.commands)


def _median(values: list[float]) -> float | None:
    """Median without the first, which is a warm-up."""
    steady = values[1:] if len(values) > 1 else values
    return statistics.median(steady) if steady else None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; a command that goes on is one line."""
    going, begun = "", 0
    for number, whole in enumerate(text.split("\n", MOST_LINES)[:MOST_LINES], 1):
        line = whole[:LONGEST_LINE]
        if line.endswith("\\") and len(going) < LONGEST_LINE:
            going, begun = going + line[:-1] + " ", begun or number
            continue
        yield begun or number, going + line
        going, begun = "", 0


def _search(pattern: re.Pattern[str], line: str, read: _Read) -> re.Match[str] | None:
    """The first match in a line."""
    return pattern.search(line) if pattern in read.told else None


def _take(line: str, number: int, read: _Read) -> None:
    """One line."""
    if line.startswith(("DLLL", ":::MLLOG")):
        _take_json(line, number, read)
        return
    step = _search(_STEP, line, read)
    if step:
        scale = _THOUSANDS[step.group(3)] / (1000 if step.group(1) == "ms" else 1)
        _add_step(_number(step.group(2)) * scale, read)
    named = _search(_NAMED_STEP, line, read)
    if named:
        _add_step(_number(named.group(1)), read)
    if read.told & _RATES:
        _take_rates(line, read)
    if read.told & _SENTENCES:
        _take_stated(line, number, read)
    if not step and read.told & _PRINTED:
        _take_printed(line[_end_of_prefix(line) :], number, read)


def _end_of_prefix(line: str) -> int:
    """Where what launchers and loggers put before a line ends."""
    match = _PREFIX.match(line)
    return match.end() if match else 0


def _take_stated(line: str, number: int, read: _Read) -> None:
    """What a line says of the job in a sentence; of a batch that ramps up the last counts."""
    for name, pattern in _STATED.items():
        match = _search(pattern, line, read)
        digits = match.group(1).replace(",", "")[:12] if match else ""
        if digits:
            read.job[name] = (int(digits), number)
    mesh = _search(_MESH, line, read)
    for axis, degree in zip(mesh.group(1).split(","), mesh.group(2).split(","), strict=False) if mesh else ():
        stated, size = _MESH_FIELDS.get(axis.strip(" '\"")), degree.strip()
        if stated is not None and size.isdecimal() and len(size) < 9:
            read.job.setdefault(stated, (int(size), number))
    consumed = _search(_CONSUMED, line, read)
    if consumed and "job.global_batch_size" not in read.job:
        steps, samples = (int(text[:15]) for text in consumed.groups())
        before, read.consumed = read.consumed, (steps, samples)
        if before is not None and steps > before[0] and (samples - before[1]) % (steps - before[0]) == 0:
            read.each_step.append((samples - before[1]) // (steps - before[0]))


def _add_step(seconds: float, read: _Read) -> None:
    """A step, if it is one: of a length that exists."""
    if 0 < seconds < LONGEST_STEP_S and len(read.steps) < MOST_STEPS:
        read.steps.append(seconds)


def _take_rates(line: str, read: _Read) -> None:
    """Rates and memory of a line."""
    for pattern, into in ((_TFLOPS, read.tflops), (_SAMPLES, read.samples)):
        match = _search(pattern, line, read)
        if match and len(into) < MOST_STEPS:
            into.append(_number(match.group(1)))
    tokens = _search(_TOKENS, line, read)
    if tokens and len(read.tokens) < MOST_STEPS:
        read.tokens.append(_number(tokens.group(1)) * _THOUSANDS[tokens.group(2)])
    hf, bar = _search(_HF, line, read), _search(_PROGRESS, line, read)
    if hf and _number(hf.group(1)) > 0:
        read.average = 1 / _number(hf.group(1))
    if bar and _number(bar.group(1)) > 0 and len(read.progress) < MOST_STEPS:
        read.progress.append(_number(bar.group(1)) if bar.group(2) == "s/it" else 1 / _number(bar.group(1)))
    memory = _search(_MEMORY, line, read)
    if memory:
        mib, gigabytes, gib = memory.groups()
        found = (
            _number(mib) * GIB / 1024
            if mib
            else _number(gigabytes) * BILLION
            if gigabytes
            else _number(gib) * GIB
        )
        read.memory = max(read.memory, found)


def _take_printed(line: str, number: int, read: _Read) -> None:
    """Arguments and commands that a log shows."""
    argument = _ARGUMENT.match(line) if len(line) < 500 and (".." in line or line[:2] == "  ") else None
    if argument:
        name, value = argument.group(1) or argument.group(3), argument.group(2) or argument.group(4)
        read.settings.append(Setting(name=name, value=value.strip(), line=number))
    for kind, degree in _PARALLEL.findall(line[:2000]) if _PARALLEL in read.told else ():
        name = {
            "data": "dp",
            "tensor-model": "tp",
            "model": "tp",
            "pipeline-model": "pp",
            "context": "cp",
            "expert-model": "ep",
        }[kind]
        read.job.setdefault(f"layout.{name}", (int(degree[:9]), number))
    echoed = _ECHOED.match(line) if line[:2] == "+ " else None
    if echoed:
        read.arrays.setdefault(echoed.group(1), echoed.group(2))
    elif _COMMAND.match(line) and len(read.commands) < 200:
        read.commands.append(re.sub(r"^(?:\+\s|cmd\s*=\s*|\$\s)", "", line))


def _int(text: str) -> int | float:
    """A whole number; one of more digits than any count has is as good as infinite."""
    return int(text) if len(text) < LONGEST_INT else float(text)


def _take_json(line: str, number: int, read: _Read) -> None:
    """A record of DLLogger or MLLOG."""
    try:
        record = json.loads(line[line.index("{") :], parse_int=_int)
    except (ValueError, RecursionError):
        return
    if not isinstance(record, dict):
        return
    data = record.get("data")
    if isinstance(data, dict):
        _take_record(data, number, read)
    key, value = record.get("key"), record.get("value")
    if key == "tracked_stats" and isinstance(value, dict):
        _take_tracked(value, read)
    elif key in _MLLOG_FIELDS and isinstance(value, int) and not isinstance(value, bool):
        read.job.setdefault(_MLLOG_FIELDS[key], (value, number))


_MLLOG_FIELDS = {
    "global_batch_size": "job.global_batch_size", "max_sequence_length": "job.sequence_length",
    "sequence_length": "job.sequence_length", "gradient_accumulation_steps": "said.accumulation",
}  # fmt: skip


def _take_tracked(value: dict[str, Any], read: _Read) -> None:
    """Numbers that MLPerf's runs track."""
    step = value.get("train_step_time", value.get("train_step_timing in s"))
    if isinstance(step, int | float):
        _add_step(float(step), read)
    if isinstance(value.get("throughput"), int | float):
        doubt = f"the printed throughput, {value['throughput']:.1f} tokens/s, includes evaluation"
        if doubt not in read.doubts and len(read.doubts) < 20:
            read.doubts.append(doubt)


def _take_record(data: dict[str, Any], number: int, read: _Read) -> None:
    """A record of NeMo's DLLogger: its configuration, or a step."""
    step = data.get("train_step_timing in s")
    if isinstance(step, int | float):
        _add_step(float(step), read)
    for name, value in list(data.items())[:2000]:
        if (
            isinstance(name, str)
            and name.startswith("cfg/")
            and isinstance(value, str | int | float | bool | None)
        ):
            read.settings.append(Setting(name=name.replace("/", "."), value=value, line=number))


def _number(text: str) -> float:
    """A printed number; what is none counts as nothing."""
    try:
        found = float(text.replace(",", "").rstrip("."))
    except ValueError:
        return 0.0
    return found if found < 1e15 else 0.0
