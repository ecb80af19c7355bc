"""One knob turned until a job no longer fits: length, microbatch, adapter rank, or fewer and fewer GPUs.

Every rung is the layout as it is given, with the chance that it runs out of memory. Between the last rung
that fits and the next the largest value that does is sought; then each switch that frees memory is tried by
itself, and how far the knob goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from costmodel.layout import ParallelLayout
from costmodel.memory.fit import fit_of
from planner.plan import Plan
from planner.pricing import capacity_of_fullest
from planner.questions.flags import Flags
from topology.base.decode import unstructure
from topology.base.errors import InputError

Knob = Literal["length", "microbatch", "rank", "gpus"]
KNOBS: tuple[Knob, ...] = ("length", "microbatch", "rank", "gpus")
FIRST = {"length": 1024, "microbatch": 1, "rank": 8}
"""The lowest rung where the question names none."""
STEP = {"length": 256, "microbatch": 1, "rank": 8}
"""To what the largest value that fits is sought."""
MOST_RUNGS = 24
Priced = Callable[[Flags], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """The job at one value of the knob; without a plan, why there is none."""

    value: int
    plan: Plan | None
    reason: str = ""

    @property
    def verdict(self) -> str:
        """*fits*, *tight*, *does not fit*, or *refused* where the layout breaks a rule."""
        return "refused" if self.plan is None else fit_of(self.plan.estimate.out_of_memory_chance)

    def row(self) -> dict[str, Any]:
        """The rung as flat data; keys carry units."""
        if self.plan is None:
            return {"value": self.value, "verdict": self.verdict, "reason": self.reason}
        estimate = self.plan.estimate
        return {
            "value": self.value,
            "verdict": self.verdict,
            "out_of_memory_chance": estimate.out_of_memory_chance,
            "peak_memory_bytes": estimate.peak_memory_bytes,
            "memory_lower_bytes": estimate.memory_lower_bytes,
            "memory_upper_bytes": estimate.memory_upper_bytes,
            "capacity_bytes": capacity_of_fullest(self.plan),
            "step_time_s": estimate.step_time_s,
            "tokens_per_s": self.plan.request.job.tokens_per_step / estimate.step_time_s,
            "reason": "",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Eased:
    """How far the knob goes with one switch changed: its words on a command line, the last rung that fits."""

    flag: str
    rung: Rung


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """What `climbed` gives: rungs as they were tried, the last that fits, and switches by how far they go."""

    knob: Knob
    rungs: tuple[Rung, ...]
    last: Rung | None
    eased: tuple[Eased, ...]

    @property
    def layout(self) -> ParallelLayout | None:
        """The layout that is held, of the last rung that fits or the first; None where all are refused."""
        plans = [rung.plan for rung in (*([self.last] if self.last else []), *self.rungs)]
        return next((plan.layout for plan in plans if plan), None)

    @property
    def refused(self) -> str:
        """The law that refuses the first rung; "" where it has a price."""
        return self.rungs[0].reason if self.rungs and self.rungs[0].plan is None else ""

    def document(self) -> dict[str, Any]:
        """The whole as data: what is turned, rungs, the last value that fits, and that with each switch."""
        return {
            "knob": self.knob,
            "layout": unstructure(self.layout),
            "last_that_fits": None if self.last is None else self.last.value,
            "rungs": [rung.row() for rung in self.rungs],
            "switches": [{"flag": each.flag, **each.rung.row()} for each in self.eased],
        }


def names_layout(flags: Flags) -> bool:
    """Whether a question says anything of the layout that a ladder holds."""
    return any(each.startswith("layout.") for each in flags.settings)


def with_best(ladder: Ladder, flags: Flags, best: Plan, priced: Priced) -> Ladder:
    """A ladder whose switches tell, too, how far the best layout of the question goes.

    Args:
        ladder: Of the layout that is held where none is named.
        flags: The question.
        best: Its plan.
        priced: As for `climbed`.
    """
    pins = pins_of(best.layout, ladder.knob)
    rung = _last_of(replace(flags, settings=(*flags.settings, *pins)), ladder.knob, priced) if pins else None
    if rung is None or not _is_further(rung, ladder.last, ladder.knob):
        return ladder
    words = " ".join(f"--set {pin}" for pin in pins)
    others = [each for each in ladder.eased if each.flag != words]
    eased = sorted(
        (Eased(flag=words, rung=rung), *others),
        key=lambda each: each.rung.value,
        reverse=ladder.knob != "gpus",
    )
    return replace(ladder, eased=tuple(eased))


def pins_of(layout: ParallelLayout, knob: Knob) -> tuple[str, ...]:
    """The settings that name a layout; replicas follow from the GPUs.

    >>> pins_of(ParallelLayout(tp=2, pp=2, dp=2, zero_stage=1), "length")
    ('layout.tp=2', 'layout.pp=2', 'layout.zero_stage=1', 'layout.layers_of_stage=auto')
    """
    plain, kept = (
        ParallelLayout(),
        {"dp", "axis_order", *(("microbatch_size",) if knob == "microbatch" else ())},
    )
    values = {each.name: getattr(layout, each.name) for each in fields(layout) if each.name not in kept}
    settings = {name: value for name, value in values.items() if value != getattr(plain, name)}
    settings |= {"layers_of_stage": "auto"} if layout.pp > 1 else {}
    return tuple(f"layout.{name}={str(value).lower()}" for name, value in settings.items())


def climbed(flags: Flags, knob: Knob, priced: Priced) -> Ladder:
    """Turn one knob of a question until it no longer fits, then once more with each switch that frees memory.

    Args:
        flags: The question, of which one layout is priced (as `plan estimate` does).
        knob: What is turned.
        priced: The plan of a question's layout. Raises InputError where it breaks a rule.
    """
    rungs = list(_rungs(flags, knob, priced))
    last = _last_that_fits(flags, knob, priced, rungs)
    eased = [
        Eased(flag=flag, rung=rung)
        for flag, changed in _switches(flags)
        if (rung := _last_of(changed, knob, priced)) is not None and _is_further(rung, last, knob)
    ]
    further = sorted(eased, key=lambda each: each.rung.value, reverse=knob != "gpus")
    return Ladder(knob=knob, rungs=tuple(rungs), last=last, eased=tuple(further))


def _last_of(flags: Flags, knob: Knob, priced: Priced) -> Rung | None:
    """The last value of the knob that fits; None where the first does not."""
    return _last_that_fits(flags, knob, priced, list(_rungs(flags, knob, priced)))


def _is_further(rung: Rung, last: Rung | None, knob: Knob) -> bool:
    """Whether one rung is beyond another."""
    if last is None:
        return True
    return rung.value < last.value if knob == "gpus" else rung.value > last.value


def _rungs(flags: Flags, knob: Knob, priced: Priced) -> Iterator[Rung]:
    """Values that double, or GPUs that halve, up to the first that does not fit, or that a rule refuses."""
    value, tried = _first(flags, knob), 0
    while value >= 1 and tried < MOST_RUNGS:
        rung = _rung(flags, knob, value, priced)
        yield rung
        if rung.plan is None or rung.verdict == "does not fit":
            return
        value, tried = value // 2 if knob == "gpus" else 2 * value, tried + 1


def _first(flags: Flags, knob: Knob) -> int:
    """Where the ladder begins: at what the question says, or at the lowest."""
    if knob == "gpus":
        return int(_number(flags.gpus or ""))
    if knob == "rank":
        if flags.adapter is None:
            raise InputError(
                what="there is no adapter whose rank could grow",
                cause="--knob rank came without --adapter",
                fix="add --adapter lora, or another --knob: length, microbatch, gpus",
            )
        return FIRST["rank"]
    return FIRST[knob]


def _number(text: str) -> float:
    """A number of a flag. Raises InputError where there is none."""
    from topology.base.counts import parse_count

    if not text:
        raise InputError("--knob gpus starts at a number of GPUs", "--gpus is missing", "add --gpus 32")
    return parse_count(text, "--gpus")


def _rung(flags: Flags, knob: Knob, value: int, priced: Priced) -> Rung:
    """One value of the knob."""
    try:
        return Rung(value=value, plan=priced(turned(flags, knob, value)))
    except InputError as error:
        return Rung(value=value, plan=None, reason=error.cause)


def turned(flags: Flags, knob: Knob, value: int) -> Flags:
    """A question with its knob at a value; a batch of sequences holds whole microbatches of every replica.

    >>> turned(Flags(model="8b", gpus="8"), "length", 4096).sequence_length
    '4096'
    >>> turned(Flags(model="8b", gpus="8", adapter="lora:r=8,alpha=16"), "rank", 64).adapter
    'lora:r=64,alpha=16'
    """
    if knob == "length":
        return replace(flags, sequence_length=str(value))
    if knob == "gpus":
        return replace(flags, gpus=str(value))
    if knob == "rank":
        kind, _, words = (flags.adapter or "").partition(":")
        others = [word for word in words.split(",") if word and not word.startswith("r=")]
        return replace(flags, adapter=f"{kind}:{','.join([f'r={value}', *others])}")
    kept = tuple(each for each in flags.settings if not each.startswith("layout.microbatch_size="))
    gpus = int(_number(flags.gpus or "")) if flags.gpus else 1
    return replace(
        flags,
        settings=(*kept, f"layout.microbatch_size={value}"),
        global_batch_size=flags.global_batch_size or str(value * gpus),
    )


def _last_that_fits(flags: Flags, knob: Knob, priced: Priced, rungs: list[Rung]) -> Rung | None:
    """The last rung that fits, and between it and the next the largest value that does."""
    fitting = [rung for rung in rungs if rung.verdict == "fits"]
    if not fitting:
        return None
    last = fitting[-1]
    beyond = [rung.value for rung in rungs if rung.value > last.value and rung.verdict != "fits"]
    if knob == "gpus" or not beyond:
        return last
    low, high, step = last.value, min(beyond), STEP[knob]
    while high - low > step:
        middle = (low + high) // 2 // step * step
        if middle <= low:
            break
        rung = _rung(flags, knob, middle, priced)
        if rung.verdict == "fits":
            low, last = middle, rung
        else:
            high = middle
    return last


SWITCHES: tuple[tuple[str, str], ...] = (
    ("layout.recompute", "selective"),
    ("layout.recompute", "full"),
    ("layout.zero_stage", "1"),
    ("layout.zero_stage", "2"),
    ("layout.zero_stage", "3"),
    ("layout.tp", "2"),
    ("layout.tp", "8"),
    ("layout.cp", "2"),
    ("layout.cp", "4"),
    ("switch.loss", "chunked:8"),
    ("job.optimizer", "adamw-8bit"),
)
"""Settings that free memory, each by itself; where a question has one already it is left alone."""


def _switches(flags: Flags) -> Iterator[tuple[str, Flags]]:
    """Questions with one switch changed, and its words."""
    named = {each.partition("=")[0] for each in flags.settings}
    for name, value in SWITCHES:
        if name not in named:
            word = f"{name}={value}"
            yield f"--set {word}", replace(flags, settings=(*flags.settings, word))
    if flags.offload is None and flags.adapter is None:
        yield "--offload optimizer", replace(flags, offload="optimizer")
