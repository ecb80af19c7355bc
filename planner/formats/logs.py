"""Logs of training jobs: step time, TFLOP/s, tokens/s, peak memory, and the job as far as it is printed.

Of a run's steps the first is a warm-up; what counts is the median of the others. Seconds and milliseconds are
patterns apart by the log's own words.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from planner.formats.settings import Setting
from planner.formats.step_lines import (
    LONGEST_STEP_S,
    PACE,
    Form,
    Pace,
    StepLine,
    Work,
    engine_named,
    forms_in,
    pace_of,
    step_line,
)
from planner.traces.nccl_logs import SOCKETS, TIMEOUT, timeout_words
from topology.base.units import GIB, MIB, TERA

MOST_LINES = 400_000
LONGEST_LINE = 20_000
MOST_STEPS = 100_000
LONGEST_INT = 19
MOST_HEAD = 20_000
"""Characters of a text by which it is known."""
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
_MODEL = re.compile(
    r"\bModel (?P<family>\w[\w.-]{0,40}) (?P<size>\w[\w.-]{0,20}) size: [\d,]+ total parameters"
    r"|/models--[\w.-]{1,60}?--(?P<hub>[\w.-]{1,90})/snapshots/"
)
"""The model that torchtitan builds, and a folder of the hub's cache that Transformers loads from."""
_APPLIED = re.compile(
    r"Applied (?P<mode>full|selective|memory_budget) activation checkpointing to the model"
    r"|(?P<compiled>Compiling each TransformerBlock with torch\.compile)"
)
"""What torchtitan does to the model that it builds."""
_PARAMETERS = re.compile(r"(?:using|\bparams_dtype \.+) torch\.(\w{1,20})(?: for parameters|\s*$)")
"""The format that Megatron-LM says it trains in: fp32 where it is asked for none of sixteen bits."""
_MESH = re.compile(r"device mesh with \[([^\]]+)\], \[([^\]]+)\]")
_MESH_FIELDS = {
    "dp_replicate": "said.dp_replicate", "dp_shard": "said.dp_shard", "tp": "layout.tp", "pp": "layout.pp",
    "cp": "layout.cp",
}  # fmt: skip
_RUN_NAME = re.compile(r"(?:_(?:gpus|tp|pp|cp|vp|ep|etp|mbs|gbs)(?:\d{1,7}|None)){5,}(?![^\W_])")
"""The name of a run that tells its layout, as scripts/performance of Megatron-Bridge and of NeMo give it."""
_RUN_FIELDS = {
    "gpus": "cluster.num_gpus", "tp": "layout.tp", "pp": "layout.pp", "cp": "layout.cp", "ep": "layout.ep",
    "vp": "layout.virtual_stages", "etp": "layout.expert_tp", "mbs": "layout.microbatch_size",
    "gbs": "job.global_batch_size",
}  # fmt: skip
_RUN_RECIPE = re.compile(
    r"(?<![^\W_])(?P<task>pretrain|sft|lora)_(?P<model>[a-z]\w{2,40}?)_(?:bf16|fp8|mxfp8|nvfp4)\w*$"
)
"""The recipe of such a run, before its degrees: pretrain_llama3_8b_bf16."""
_CONSUMED_TOKENS = re.compile(r"consumed samples:\s*(\d{1,15}) \| consumed tokens:\s*(\d{1,18})")
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
_TIME = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
"""When a logger printed a line."""
LEAST_INTERVALS = 3
"""Between numbered steps, of which the median is the time of a step."""
_OUT_OF_MEMORY = re.compile(
    r"(?:CUDA|HIP|XPU|NPU) out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED: Out of memory"
)
_CAPACITY = re.compile(r"total capacity of ([\d.]{1,8}) (GiB|MiB)")
"""The memory of a GPU, as PyTorch says it where an allocation fails."""
_RECORD = re.compile(r"(?:^|[\s\]:>])(?::::MLLOG\s*|DLLL\s*)(?=\{)")
_PRINTS = re.compile(_RECORD.pattern, re.MULTILINE)
"""Records of loggers that have no sentences."""
_LOG_SUFFIXES = ("log", "out", "err", "stdout", "stderr")
_LIKE_LOG = re.compile(
    r"(?:\d{1,5}:\s|\[?(?:default|rank)[ _]?\d+\]?:|\[?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d"
    r"|\[?\d\d/\d\d/\d{4} \d\d:\d\d|\[?(?:INFO|WARNING|ERROR|DEBUG)\b|[IWE]\d{4} \d\d:\d\d"
    r"|\{'loss':|Traceback \(most recent)",
    re.IGNORECASE,
)
"""How a line begins that a program printed while it ran."""
LIKE_LOG_SHARE = 1 / 3
"""Of the first lines of a text that begin so, for it to be a log."""


_MARKS: Mapping[re.Pattern[str], tuple[str, ...]] = {
    _MESH: ("device mesh with",),
    _APPLIED: ("activation checkpointing to the model", "compiling each transformerblock"),
    _PARAMETERS: ("for parameters", "params_dtype"),
    _MODEL: ("total parameters", "/snapshots/"),
    _RUN_NAME: ("_tp",),
    _CONSUMED_TOKENS: ("consumed tokens",),
    _CONSUMED: ("consumed_samples",),
    _PARALLEL: ("parallel-size:", "parallel size:"),
    _COMMAND: ("+ ", "cmd", "$ ", "torchrun", "deepspeed", "python", "srun", ".sh"),
    _ARGUMENT: ("..", "  "),
    _OUT_OF_MEMORY: ("out of memory", "outofmemory"),
    SOCKETS: ("using network socket", "via net/socket"),
    TIMEOUT: ("watchdog caught collective",),
    _STATED["cluster.num_gpus"]: ("using world size",),
    _STATED["job.global_batch_size"]: ("global batch size", "global_batch size", "global batch_size",
                                       "global_batch_size", "total train batch size"),
    _STATED["layout.microbatch_size"]: ("local batch size", "batch size per device"),
    _STATED["job.sequence_length"]: ("sequence length",),
    _STATED["said.accumulation"]: ("gradient accumulation steps",),
}  # fmt: skip
"""Small letters without one of which a text has no match of a pattern: most logs have a few of all."""
_SENTENCES = frozenset(
    (*_STATED.values(), _MODEL, _APPLIED, _PARAMETERS, _MESH, _CONSUMED, _RUN_NAME, _CONSUMED_TOKENS)
)
_PRINTED = frozenset((_ARGUMENT, _COMMAND, _PARALLEL))


@dataclass(slots=True)
class Measured:
    """What a log measured; None where it does not say.

    Attributes:
        step_time_s: Median of the steady steps.
        steps: How many these are.
        tflops_per_gpu: Median of the printed rates.
        tokens_per_s_per_gpu: Median of the printed rates.
        tokens_per_s: Median of the printed rates of all GPUs together.
        samples_per_s: Last running average, or median, of all GPUs together.
        microbatch_s: Median of the printed times of a microbatch, where no step is printed.
        peak_memory_bytes: Largest printed.
        job: Facts that the log states: field, value, line.
        doubts: What of it is not to be taken as it stands.
        out_of_memory: The line on which a GPU ran out of memory; 0 where none did.
        interval_s: Median time from a step to the next by the clock of the logger, where it prints no step.
        engine: Whose sentences or steps it prints; empty where several print the like.
        gpu_memory_bytes: Memory of a GPU, of a printed peak and its share, or where an allocation failed.
        gpu_peak_flop_per_s: Peak of a GPU, of a printed rate and its share, the MFU.
        is_warm_up: Whether its one step is the first of the run: what compiles and allocates is in it.
        sockets: The line on which NCCL says that it joins nodes by TCP sockets; 0 where it does not.
        hung: The first collective that timed out, in words with its line; empty where none did.
    """

    step_time_s: float | None = None
    steps: int = 0
    tflops_per_gpu: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    microbatch_s: float | None = None
    peak_memory_bytes: float | None = None
    job: list[tuple[str, Any, int]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    out_of_memory: int = 0
    interval_s: float | None = None
    engine: str = ""
    gpu_memory_bytes: float | None = None
    gpu_peak_flop_per_s: float | None = None
    is_warm_up: bool = False
    sockets: int = 0
    hung: str = ""

    @property
    def has_steps(self) -> bool:
        """Whether it shows a job that made steps."""
        rates = (self.tflops_per_gpu, self.tokens_per_s_per_gpu, self.tokens_per_s, self.samples_per_s)
        return self.step_time_s is not None or any(rates) or self.microbatch_s is not None

    @property
    def has_trained(self) -> bool:
        """Whether it shows steps of a training job; a server prints rates of tokens, too."""
        return self.step_time_s is not None or self.microbatch_s is not None or bool(self.tflops_per_gpu)

    def pace(self, work: Work) -> Pace | None:
        """The step that it measured, of the rate that it prints where it prints no step.

        Args:
            work: What a step of the job does.
        """
        return pace_of(
            work,
            step_s=self.step_time_s,
            tokens_per_s_per_gpu=self.tokens_per_s_per_gpu,
            tokens_per_s=self.tokens_per_s,
            samples_per_s=self.samples_per_s,
            microbatch_s=self.microbatch_s,
            flop_per_s_per_gpu=None if self.tflops_per_gpu is None else self.tflops_per_gpu * TERA,
        )


def is_log(text: str) -> bool:
    """Whether a text has lines that only a running job prints; those that are commented out are none."""
    if _PRINTS.search(text):
        return True
    forms = tuple(form for form in forms_in(text) if form.means in PACE)
    marks = tuple(form.mark for form in forms)
    lines = (line for line in text.split("\n", MOST_LINES)[:MOST_LINES] if not line.lstrip().startswith("#"))
    return bool(forms) and any(
        step_line(line[:LONGEST_LINE], forms).is_progress
        for line in lines
        if any(mark in line.lower() for mark in marks)
    )


def is_named_log(name: str) -> bool:
    """Whether a file is called what logs are called.

    >>> is_named_log("slurm-12.out"), is_named_log("train.log.1"), is_named_log("job.yaml")
    (True, True, False)
    """
    return any(suffix in _LOG_SUFFIXES for suffix in name.lower().split(".")[-2:] if "." in name)


def is_like_log(text: str) -> bool:
    """Whether lines of a text begin as those of a running program do."""
    lines = [line for line in text[:MOST_HEAD].split("\n") if line.strip()]
    return bool(lines) and sum(bool(_LIKE_LOG.match(line)) for line in lines) >= LIKE_LOG_SHARE * len(lines)


_NUMBERED = re.compile(r"(?i)\b(?:step|iter|batch|update)\w{0,12}\b[^\n\d]{0,40}\d")
_PACED = re.compile(r"(?i)\d\s?(?:ms|s|sec|seconds|it/s|s/it)\b|tok\w{0,8}/s|samples/s|\bloss\b|throughput")
"""A time, a rate or a loss, which stands behind a step's number, in whatever words."""


def lines_like_steps(text: str) -> list[tuple[int, str]]:
    r"""Lines of an unknown log that look like those of steps, with their numbers.

    >>> lines_like_steps("starting\nupdate 12 took 3.4 s, loss 2.1\n")
    [(2, 'update 12 took 3.4 s, loss 2.1')]
    """
    return [
        (number, line[:LONGEST_LINE].strip())
        for number, line in enumerate(text.split("\n", MOST_LINES)[:MOST_LINES], 1)
        if (step := _NUMBERED.search(line[:MOST_SHOWN])) and _PACED.search(line[:MOST_SHOWN], step.end())
    ]


MOST_SHOWN = 2_000
"""Letters of a line in which a step is looked for, where no form has it."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """The run of a log that is read: a log may have several, one behind the other.

    Attributes:
        runs: How many so far.
        line: Where its first step stands.
        numbers: Numbers of its steps.
        first: The least of them that was printed first.
        printed: Settings and commands that stand before its last step so far.
    """

    runs: int = 1
    line: int = 1
    numbers: set[int] = field(default_factory=set)
    first: int = 0
    printed: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class _Read:
    """Numbers as they are found."""

    patterns: frozenset[re.Pattern[str]]
    """Patterns that the text may have."""
    forms: tuple[Form, ...]
    """Quantities that it may have."""
    steps: list[float] = field(default_factory=list)
    tflops: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    all_tokens: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    microbatches: list[float] = field(default_factory=list)
    memory: float = 0.0
    gpu_memories: list[float] = field(default_factory=list)
    gpu_peaks: list[float] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    job: dict[str, tuple[Any, int]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    arrays: dict[str, str] = field(default_factory=dict)
    average: float | None = None
    progress: dict[int, list[float]] = field(default_factory=dict)
    """Seconds of a step of progress bars, by the steps of the bar: that of the training is the longest."""
    consumed: tuple[int, int] | None = None
    """Step and samples so far."""
    consumed_tokens: tuple[int, int] | None = None
    """Samples and their tokens so far."""
    each_step: list[int] = field(default_factory=list)
    """Samples of a step, from those."""
    doubts: list[str] = field(default_factory=list)
    printed_at: tuple[float, float] | None = None
    """The last numbered step, and when it was printed."""
    intervals: list[float] = field(default_factory=list)
    """Seconds of a step between numbered ones, by the clock."""
    out_of_memory: int = 0
    capacity: float | None = None
    """Memory of the GPU that ran out of it."""
    sockets: int = 0
    hung: str = ""
    engine: str = ""
    run: _Run = field(default_factory=_Run)

    def of_next_run(self, number: int) -> None:
        """Forget what was measured, and what was printed before the last step of the run that ended.

        Args:
            number: The line on which the next run makes its first step.
        """
        for values in (self.steps, self.tflops, self.tokens, self.all_tokens, self.samples, self.each_step):
            values.clear()
        for values in (self.microbatches, self.gpu_memories, self.gpu_peaks):
            values.clear()
        self.average, self.memory, self.consumed, self.consumed_tokens = None, 0.0, None, None
        self.printed_at = None
        self.intervals.clear()
        self.progress.clear()
        settings, commands = self.run.printed
        if len(self.settings) > settings:
            del self.settings[:settings]
        if len(self.commands) > commands:
            del self.commands[:commands]
        self.run = _Run(runs=self.run.runs + 1, line=number, printed=(len(self.settings), len(self.commands)))


LEAST_STEPS = 4
"""Of a run, before a number that is no greater than its first begins another: ranks lag behind each other."""


def measured_of(text: str) -> tuple[Measured, list[Setting], str]:
    """What a log measured, the settings that it prints, and the commands that it shows."""
    small = text.lower()
    patterns = (pattern for pattern, words in _MARKS.items() if any(word in small for word in words))
    read = _Read(patterns=frozenset(patterns), forms=forms_in(text))
    *whole, last = _lines(text)
    for number, line in whole:
        _take(line, number, read)
    _take(last[1], last[0], read, torn=not text.endswith("\n"))
    if read.run.runs > 1:
        begins = f"line {read.run.line}"
        read.doubts.append(
            f"the log has {read.run.runs} runs: the last counts, whose steps begin on {begins}"
        )
    if read.each_step and read.each_step[-1] > 0:
        read.job.setdefault("job.global_batch_size", (read.each_step[-1], 0))
    measured = Measured(
        job=[(name, value, line) for name, (value, line) in read.job.items()],
        doubts=read.doubts,
        out_of_memory=read.out_of_memory,
        sockets=read.sockets,
        hung=read.hung,
        engine=read.engine,
    )
    steady = read.steps[1:] if len(read.steps) > 1 else read.steps
    if steady:
        measured.step_time_s, measured.steps = statistics.median(steady), len(steady)
        if len(read.steps) == 1:
            measured.doubts.append("the log has one step, which is a warm-up: not a steady state")
    elif read.average is not None or (read.progress and not read.microbatches):  # whose bars they are
        measured.step_time_s = read.average or _median(read.progress[max(read.progress)])
    if len(read.intervals) >= LEAST_INTERVALS:
        measured.interval_s = statistics.median(read.intervals)
    measured.is_warm_up = len(read.steps) == 1 and read.run.first == 1
    measured.tflops_per_gpu = _median(read.tflops)
    measured.tokens_per_s_per_gpu = _median(read.tokens)
    measured.tokens_per_s = _median(read.all_tokens)
    measured.samples_per_s = _median(read.samples)
    if measured.step_time_s is None:
        measured.microbatch_s = _median(read.microbatches)
    measured.peak_memory_bytes = read.memory or None
    measured.gpu_memory_bytes, measured.gpu_peak_flop_per_s = (
        _median(read.gpu_memories) or read.capacity,
        _median(read.gpu_peaks),
    )
    if read.arrays:  # what `bash -x` shows of the arguments: the first of every name, as one command
        read.commands.insert(0, f"run {' '.join(read.arrays.values())}")
    return measured, read.settings, "\n".join(read.commands)


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
    return pattern.search(line) if pattern in read.patterns else None


def _take(line: str, number: int, read: _Read, *, torn: bool = False) -> None:
    """One line; the last of a file may be torn."""
    record = _RECORD.search(line)
    if record is not None:
        _take_json(line[record.start() :], number, read)
        return
    quantities = step_line(line, read.forms) if read.forms else StepLine()
    if not read.engine and quantities.is_progress:
        read.engine = engine_named(line, read.forms)
    if not (torn and _is_torn(quantities, read)):
        only_bar = quantities.bar_step_s is None or read.progress.keys() <= {int(quantities.steps or 0)}
        _of_run(quantities.step if quantities.is_progress and only_bar else None, number, read)
        _take_quantities(quantities, read)
        if quantities.step is not None and quantities.is_progress:
            _take_clock(line, quantities.step, read)
    if not read.out_of_memory and _search(_OUT_OF_MEMORY, line, read):
        read.out_of_memory = number
        read.capacity = _capacity_in(line)
    if not read.sockets and _search(SOCKETS, line, read):
        read.sockets = number
    if not read.hung and (waited := _search(TIMEOUT, line, read)):
        read.hung = f"{timeout_words(waited)} (line {number} of the log)"
    if read.patterns & _SENTENCES:
        _take_stated(line, number, read)
    if quantities.step_s is None and read.patterns & _PRINTED:
        _take_printed(line[_end_of_prefix(line) :], number, read)


def _capacity_in(line: str) -> float | None:
    """The memory of the GPU that a line says ran out of it, in bytes; None where it says none."""
    match = _CAPACITY.search(line)
    try:
        return float(match[1]) * {"GiB": GIB, "MiB": MIB}[match[2]] if match else None
    except ValueError:
        return None


def _of_run(step: float | None, number: int, read: _Read) -> None:
    """Note a step's number: one that is no greater than the first of its run is of another run."""
    if step is None:
        return
    run, at = read.run, int(step)
    if len(run.numbers) >= LEAST_STEPS and at <= run.first and at not in sorted(run.numbers)[-LEAST_STEPS:]:
        read.of_next_run(number)
        run = read.run
    if not run.numbers:
        run.first, run.line = at, number
    if len(run.numbers) < MOST_STEPS:
        run.numbers.add(at)
    run.printed = (len(read.settings), len(read.commands))


CUT_SHARE = 0.5
"""Of the median so far, below which a number at the torn end of a file has lost digits."""


def _is_torn(line: StepLine, read: _Read) -> bool:
    """Whether the last line of a file that does not end is cut within a number."""
    tflops = None if line.flop_per_s_per_gpu is None else line.flop_per_s_per_gpu / TERA
    pairs = (
        (line.step_s, read.steps), (line.tokens_per_s_per_gpu, read.tokens), (tflops, read.tflops),
        (line.tokens_per_s, read.all_tokens), (line.samples_per_s, read.samples),
    )  # fmt: skip
    return any(value and before and value < CUT_SHARE * statistics.median(before) for value, before in pairs)


def _take_quantities(line: StepLine, read: _Read) -> None:
    """Times, rates and memory of a line."""
    if line.step_s is not None:
        _add_step(line.step_s, read)
    tflops = None if line.flop_per_s_per_gpu is None else line.flop_per_s_per_gpu / TERA
    pairs = (
        (tflops, read.tflops), (line.tokens_per_s_per_gpu, read.tokens), (line.tokens_per_s, read.all_tokens),
        (line.samples_per_s, read.samples), (line.microbatch_s, read.microbatches),
        (line.bar_step_s, read.progress.setdefault(int(line.steps or 0), []) if line.bar_step_s else []),
        (_whole_of(line.peak_memory_bytes, line.memory_share), read.gpu_memories),
        (_whole_of(line.flop_per_s_per_gpu, line.mfu), read.gpu_peaks),
    )  # fmt: skip
    for value, into in pairs:
        if value and len(into) < MOST_STEPS:
            into.append(value)
    read.average = line.mean_step_s or read.average
    read.memory = max(read.memory, line.peak_memory_bytes or 0.0)


def _whole_of(part: float | None, share: float | None) -> float | None:
    """What a printed number is a printed share of."""
    return part / share if part and share else None


def _take_clock(line: str, step: float, read: _Read) -> None:
    """The time of a step, by when its line and that of a step before it were printed."""
    match = _TIME.search(line[:MOST_SHOWN])
    if match is None:
        return
    try:
        *parts, fraction = match.groups(default="0")
        at = datetime(*map(int, parts), tzinfo=UTC).timestamp() + float(f"0.{fraction}")  # type: ignore[misc, arg-type]  # six numbers
    except ValueError:
        return
    before, read.printed_at = read.printed_at, (step, at)
    if before is not None and step > before[0] and at - before[1] > 0 and len(read.intervals) < MOST_STEPS:
        read.intervals.append((at - before[1]) / (step - before[0]))


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
    _take_built(line, number, read)
    mesh = _search(_MESH, line, read)
    for axis, degree in zip(mesh.group(1).split(","), mesh.group(2).split(","), strict=False) if mesh else ():
        stated, size = _MESH_FIELDS.get(axis.strip(" '\"")), degree.strip()
        if stated is not None and size.isdecimal() and len(size) < 9:
            read.job.setdefault(stated, (int(size), number))
    _take_run_name(line, number, read)
    _take_length(line, number, read)
    consumed = _search(_CONSUMED, line, read)
    if consumed and "job.global_batch_size" not in read.job:
        steps, samples = (int(text[:15]) for text in consumed.groups())
        before, read.consumed = read.consumed, (steps, samples)
        if before is not None and steps > before[0] and (samples - before[1]) % (steps - before[0]) == 0:
            read.each_step.append((samples - before[1]) // (steps - before[0]))


def _take_run_name(line: str, number: int, read: _Read) -> None:
    """Degrees in the name of a run, and the recipe before them."""
    if (named := _search(_RUN_NAME, line, read)) is None:
        return
    for name, count in re.findall(r"_([a-z]+)(\d+)", named.group()):
        if int(count):
            read.job.setdefault(_RUN_FIELDS[name], (int(count), number))
    if recipe := _RUN_RECIPE.search(line[max(0, named.start() - 80) : named.start()]):
        read.job.setdefault("said.run_recipe", (f"{recipe['model']}_{recipe['task']}", number))


def _take_built(line: str, number: int, read: _Read) -> None:
    """The model that a line says is built, what is done to it, and the format of its parameters."""
    built = _search(_MODEL, line, read)
    if built:
        name = built["hub"] or f"{built['family']}-{built['size']}"
        read.job.setdefault("said.model", (name, number))
        read.engine = read.engine or ("" if built["hub"] else "torchtitan")
    applied = _search(_APPLIED, line, read)
    if applied and applied["mode"]:
        read.job.setdefault("said.recompute", (applied["mode"], number))
    elif applied:
        read.job.setdefault("said.compile", ("true", number))
    parameters = _search(_PARAMETERS, line, read)
    if parameters:
        read.job.setdefault("said.precision", (parameters[1], number))


def _take_length(line: str, number: int, read: _Read) -> None:
    """The length of a sequence, of what two lines have consumed; of lengths that grow the last counts."""
    match = _search(_CONSUMED_TOKENS, line, read)
    if match is None:
        return
    samples, tokens = int(match[1]), int(match[2])
    before, read.consumed_tokens = read.consumed_tokens, (samples, tokens)
    more = samples - before[0] if before is not None else 0
    if before is not None and more > 0 and tokens > before[1] and not (tokens - before[1]) % more:
        read.job["job.sequence_length"] = ((tokens - before[1]) // more, number)


def _add_step(seconds: float, read: _Read) -> None:
    """A step, if it is one: of a length that exists."""
    if 0 < seconds < LONGEST_STEP_S and len(read.steps) < MOST_STEPS:
        read.steps.append(seconds)


def _take_printed(line: str, number: int, read: _Read) -> None:
    """Arguments and commands that a log shows."""
    argument = _ARGUMENT.match(line) if len(line) < 500 and (".." in line or line[:2] == "  ") else None
    if argument:
        name, value = argument.group(1) or argument.group(3), argument.group(2) or argument.group(4)
        read.settings.append(Setting(name=name, value=value.strip(), line=number))
    for kind, degree in _PARALLEL.findall(line[:2000]) if _PARALLEL in read.patterns else ():
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
    _of_run(_step_of_record(record), number, read)
    if isinstance(data, dict):
        _take_record(data, number, read)
    key, value = record.get("key"), record.get("value")
    if key == "tracked_stats" and isinstance(value, dict):
        _take_tracked(value, read)
    elif key in _MLLOG_FIELDS and isinstance(value, int) and not isinstance(value, bool):
        read.job.setdefault(_MLLOG_FIELDS[key], (value, number))


def _step_of_record(record: dict[str, Any]) -> float | None:
    """The number of the step that a record measures; None where it measures none."""
    data, value, meta = record.get("data"), record.get("value"), record.get("metadata")
    for measured, at in (
        (data, record.get("step")),
        (value, meta.get("step") if isinstance(meta, dict) else None),
    ):
        names = measured.keys() if isinstance(measured, dict) else ()
        if (
            isinstance(at, int)
            and not isinstance(at, bool)
            and any(name.startswith("train_step_tim") for name in names)
        ):
            return at
    return None


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
