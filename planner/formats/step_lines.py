"""What engines print of a running job, line by line: forms are rows of data, a quantity and a spelling each.

A `Form` says in which words an engine prints one quantity, in which unit, and what it means; `StepLine` is
what one line says in SI units. Both readers of logs, of an audit and of a watched run, read the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from topology.base.decode import read_toml
from topology.base.units import GB, GIB, KILO, MEGA, MIB, MS, TERA

LONGEST_STEP_S = 1e6
"""Eleven days."""
LARGEST = 1e15
"""Of a printed number, as its inverse is the least; more is none."""
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[\d{1,2}m")
"""What terminals take for colours and for places on the screen, also where the escape itself was lost."""
_NUMBER = r"([\d][\d,_]{0,20}(?:\.\d{0,20})?(?:[eE][+-]?\d{1,3})?)"
_FILE = Path(__file__).parent / "data" / "step_lines.toml"
_FACTORS = {
    "": 1.0, "s": 1.0, "ms": MS, "1/s": 1.0, "tokens/s": 1.0, "samples/s": 1.0, "TFLOP/s": TERA, "MiB": MIB,
    "GiB": GIB, "GB": GB, "%": 0.01,
}  # fmt: skip
_THOUSANDS = {None: 1.0, "": 1.0, "K": KILO, "k": KILO, "M": MEGA}
PACE = (
    "step_s", "mean_step_s", "bar_step_s", "tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s",
    "flop_per_s_per_gpu", "microbatch_s",
)  # fmt: skip
"""Meanings of which one makes a line that of a running job: its time, or a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One spelling of one quantity.

    Attributes:
        of: Whose line it is.
        means: The field of `StepLine`.
        unit: Of the printed number; of ``1/s`` the step is the inverse.
        mark: Small letters that every line of the form has.
        pattern: What is printed.
        first: What is added to a step number.
        example: A line of the form.
        value: What the example says, in SI units.
        names: Whether no other engine prints the like, so that a log with it is of this one.
    """

    of: str
    means: str
    unit: str
    mark: str
    pattern: re.Pattern[str]
    first: int
    example: str
    value: float
    names: bool = False

    def number(self, line: str) -> float | None:
        """What a line says, in SI units; None where it does not say it."""
        match = self.pattern.search(line)
        if match is None:
            return None
        thousands = match.groupdict().get("thousands")
        try:
            printed = float(match.group(1).replace(",", "").replace("_", "")) * _THOUSANDS[thousands]
        except ValueError:
            return None
        if not (printed == 0 or 1 / LARGEST < printed < LARGEST):
            return None
        if self.unit == "1/s":
            return 1 / printed if printed > 0 else None
        return printed * _FACTORS[self.unit] + self.first


@dataclass(slots=True, kw_only=True)
class StepLine:
    """What one line says of a running job, in SI units; None where it does not say.

    Attributes:
        step: Number of the step, the first is 1.
        steps: Steps of the whole run.
        step_s: Seconds of this step.
        mean_step_s: Seconds of a step in the mean so far.
        bar_step_s: Seconds of a step as a progress bar smooths them.
        tokens_per_s_per_gpu: Tokens a second of one GPU.
        tokens_per_s: Tokens a second of all GPUs.
        samples_per_s: Sequences a second of all GPUs.
        flop_per_s_per_gpu: Operations a second of one GPU, as the engine counts them.
        peak_memory_bytes: The most that the GPU of this rank held.
        memory_share: That peak as a share of the memory of the GPU.
        mfu: Those operations as a share of the peak of the GPU.
        microbatch_s: Seconds of a microbatch of a rank, where those are timed.
        microbatches: Microbatches of a rank so far.
    """

    step: float | None = None
    steps: float | None = None
    step_s: float | None = None
    mean_step_s: float | None = None
    bar_step_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    flop_per_s_per_gpu: float | None = None
    peak_memory_bytes: float | None = None
    memory_share: float | None = None
    mfu: float | None = None
    microbatch_s: float | None = None
    microbatches: float | None = None

    @property
    def is_progress(self) -> bool:
        """Whether only a running job prints it."""
        return any(getattr(self, name) for name in PACE)


def _form(row: dict[str, object]) -> Form:
    """A row of the file."""
    pattern = str(row.pop("pattern")).replace("NUMBER", _NUMBER)
    return Form(**{"first": 0, **row}, pattern=re.compile(pattern))  # type: ignore[arg-type]  # cells of a file of ours


FORMS: tuple[Form, ...] = tuple(map(_form, read_toml(_FILE)["forms"]))
"""Every form that is known."""


def forms_in(text: str) -> tuple[Form, ...]:
    """The forms that a text may have, by their marks: most logs have a few of all."""
    small = text.lower()
    return tuple(form for form in FORMS if form.mark in small)


def step_line(line: str, forms: Sequence[Form] = FORMS) -> StepLine:
    """What a line says, colours taken away.

    >>> step_line("0: [rank0]: step: 10  loss: 1.5  memory: 26GiB(33%)  wps: 1,786").tokens_per_s_per_gpu
    1786.0
    """
    result, plain = StepLine(), COLOUR.sub("", line)
    small = plain.lower()
    for form in forms:
        if form.mark in small and getattr(result, form.means) is None:
            setattr(result, form.means, form.number(plain))
    if result.microbatch_s and result.microbatches and result.step and result.step_s is None:
        result.step_s = result.microbatch_s * result.microbatches / result.step
    if result.microbatch_s is not None:
        result.bar_step_s = None  # the bar counts microbatches
    for name in ("step_s", "mean_step_s", "bar_step_s", "microbatch_s"):
        seconds = getattr(result, name)
        if seconds is not None and not 0 < seconds < LONGEST_STEP_S:
            setattr(result, name, None)
    return result


def engine_named(line: str, forms: Iterable[Form]) -> str:
    """The engine that prints a line as no other does; empty where several print the like.

    >>> engine_named("[titan] step: 2  memory: 26GiB(33%)  wps: 1,786", FORMS), engine_named("loss: 2", FORMS)
    ('torchtitan', '')
    """
    small, plain = line.lower(), COLOUR.sub("", line)
    alone = (form for form in forms if form.names and form.mark in small)
    return next((form.of for form in alone if form.number(plain) is not None), "")


def known_engines(forms: Iterable[Form] = FORMS) -> str:
    """Whose step lines are known, in words."""
    names = dict.fromkeys(name for form in forms if form.means in PACE for name in form.of.split(", "))
    return ", ".join(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A step as a log measured it.

    Attributes:
        step_s: Seconds.
        from_rate: The printed rate that it follows from, in words; empty where the step itself is printed.
        is_by_flop: Whether that rate counts operations, which engines do in several ways.
    """

    step_s: float
    from_rate: str = ""
    is_by_flop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one step does, as far as it is known, so that a rate is a time.

    Attributes:
        gpus: How many work.
        tokens: Of the global batch.
        samples: Sequences of the global batch.
        microbatches: Of a replica.
        flop: Operations of the model on them, none counted twice.
    """

    gpus: int | None = None
    tokens: float | None = None
    samples: float | None = None
    microbatches: float | None = None
    flop: float | None = None


def pace_of(
    work: Work,
    *,
    step_s: float | None = None,
    tokens_per_s_per_gpu: float | None = None,
    tokens_per_s: float | None = None,
    samples_per_s: float | None = None,
    flop_per_s_per_gpu: float | None = None,
    microbatch_s: float | None = None,
) -> Pace | None:
    """The step that a log measured: as printed, else of its rates, the one that assumes least first.

    Args:
        work: What a step does.
        step_s: Printed seconds of a step.
        tokens_per_s_per_gpu: Printed rate of one GPU.
        tokens_per_s: Printed rate of all.
        samples_per_s: Printed rate of all.
        flop_per_s_per_gpu: Printed rate of one GPU, as the engine counts operations.
        microbatch_s: Printed seconds of a microbatch.

    >>> pace_of(Work(gpus=32, tokens=32 * 8192), tokens_per_s_per_gpu=1786.0).from_rate
    '1,786 tokens/s per GPU'
    """
    if step_s:
        return Pace(step_s=step_s)
    if microbatch_s and work.microbatches:
        each = f"{work.microbatches:.0f} microbatches of {microbatch_s:.3g} s"
        return Pace(step_s=microbatch_s * work.microbatches, from_rate=each)
    if tokens_per_s_per_gpu and work.tokens and work.gpus:
        seconds = work.tokens / (tokens_per_s_per_gpu * work.gpus)
        return Pace(step_s=seconds, from_rate=f"{tokens_per_s_per_gpu:,.0f} tokens/s per GPU")
    if tokens_per_s and work.tokens:
        return Pace(step_s=work.tokens / tokens_per_s, from_rate=f"{tokens_per_s:,.0f} tokens/s")
    if samples_per_s and work.samples:
        return Pace(step_s=work.samples / samples_per_s, from_rate=f"{samples_per_s:,.3g} samples/s")
    if flop_per_s_per_gpu and work.flop and work.gpus:
        seconds = work.flop / (flop_per_s_per_gpu * work.gpus)
        rate = f"{flop_per_s_per_gpu / TERA:.3g} TFLOP/s per GPU"
        return Pace(step_s=seconds, from_rate=rate, is_by_flop=True)
    return None
