"""What of a measured step its prediction leaves open, and what that says of what was assumed.

A band that holds the measurement blames nothing. Outside it, what nobody stated is doubted first: another
GPU, batch or length with which the band holds the measurement is named. What is left no flag explains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from costmodel.estimate import Estimate
from costmodel.kernels.saved import calibration_for
from costmodel.kernels.tables import Calibration
from costmodel.ops.layer import model_flop_per_step
from planner.audit.changes import Running, running_of
from planner.audit.contract_reading import is_of_sentences
from planner.audit.job import audited_job
from planner.audit.legal import rule_findings, stops
from planner.audit.link_rate import LinkRate, rate_that_explains
from planner.audit.logged_gpu import can_be, shown_gpu
from planner.audit.read import Reading
from planner.formats.step_lines import Pace, Work
from planner.plan import PlanRequest
from planner.questions.flags import Flags
from topology.base.errors import InputError
from topology.base.units import format_seconds, three_digits
from topology.builders import build
from topology.catalog import gpus as catalogued_gpus

MOST_NAMED = 3
"""Candidates that are named, the closest first."""
_TIMES = (2, 4, 8, 16, 32, 64, 128)
"""Microbatches of a replica that are tried."""
_SPREAD = 3.0
"""Ratio by which steps of two GPUs differ at most beside that of their peaks."""
_TAKEN = ("default", "assumed", "given")
"""How facts are known that no file states; what is given counts where the user is asked who gave it."""
PCIE = "pcie"
"""How GPUs of a node are joined that have no link beside it."""
_LENGTHS = tuple(2**power for power in range(9, 18))
"""Lengths that jobs are trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One thing that nobody stated, with a value that the measurement is like.

    Attributes:
        what: Its name in words.
        taken: The value that was assumed.
        value: The value whose band holds the measurement.
        flag: What says it.
        estimate: Of the job with it.
        measured_s: What the log measured of the job with it.
        is_linked: Whether GPUs of its nodes are joined by more than PCIe, as most that train are.
    """

    what: str
    taken: str
    value: str
    flag: str
    estimate: Estimate
    measured_s: float
    is_linked: bool

    @property
    def distance(self) -> tuple[bool, float]:
        """How far it is: usual machines first, then the ratio to what was measured."""
        return not self.is_linked, abs(math.log(self.measured_s / self.estimate.step_time_s))

    @property
    def words(self) -> str:
        """It in a line: what the job takes with it."""
        band = f"{format_seconds(self.estimate.lower_s)} to {format_seconds(self.estimate.upper_s)}"
        return f"with {self.value} {format_seconds(self.estimate.step_time_s)}, band {band}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """A measured step beside its prediction.

    Attributes:
        measured_s: As the log has it.
        predicted: As the files have it.
        unstated: What nobody stated, in words.
        candidates: Values of it whose band holds the measurement, the closest first.
        slowed_by: Variables of the environment that slow the job down by what nothing prices.
        is_warm_up: Whether the measured step is the first of a run alone: a longer one says nothing.
        link: The rate of a link at which the job would be as slow; None where no rate explains it.
    """

    measured_s: float
    predicted: Estimate
    unstated: tuple[str, ...] = ()
    candidates: tuple[Suspect, ...] = ()
    slowed_by: tuple[str, ...] = ()
    is_warm_up: bool = False
    link: LinkRate | None = None

    @property
    def is_explained(self) -> bool:
        """Whether the band of the prediction holds the measurement."""
        return self.predicted.lower_s <= self.measured_s <= self.predicted.upper_s

    @property
    def factor(self) -> float:
        """How many times longer the measured step is, or shorter."""
        ratio = self.measured_s / self.predicted.step_time_s
        return max(ratio, 1 / ratio)

    @property
    def is_within_twice_the_band(self) -> bool:
        """Whether the band taken twice holds the measurement, so that the prediction itself may be off."""
        widest = 2 * math.log(self.predicted.upper_s / self.predicted.step_time_s)
        return math.log(self.factor) <= widest

    @property
    def open_s(self) -> float:
        """Seconds of the step that the prediction does not explain; negative where it runs faster."""
        return self.measured_s - self.predicted.step_time_s

    @property
    def says_nothing(self) -> bool:
        """Whether it is longer for being the first of its run: nothing is held against the job for it."""
        return self.is_warm_up and self.open_s > 0 and not self.is_explained

    @property
    def refutes(self) -> bool:
        """Whether something assumed cannot be: another value's band holds what its own misses."""
        return not self.is_explained and bool(self.candidates)

    @property
    def words(self) -> tuple[str, ...]:
        """What there is to say, the first first."""
        return tuple(_words(self))


def _words(residual: Residual) -> Iterator[str]:
    """Sentences of a residual."""
    measured, predicted = format_seconds(residual.measured_s), format_seconds(residual.predicted.step_time_s)
    if residual.is_explained:
        yield f"measured {measured} is inside the band of {predicted}: nothing is left to explain"
        return
    longer = "longer" if residual.open_s > 0 else "shorter"
    head = f"measured {measured} is a factor {three_digits(residual.factor)} {longer} than {predicted}"
    if residual.says_nothing:
        yield f"{head}: it is the first step alone, which warms up, so nothing follows from it"
        return
    if residual.candidates:
        first = residual.candidates[0]
        others = "".join(f"; {candidate.words}" for candidate in residual.candidates[1:])
        yield f"{head}: {first.what} {first.taken} is assumed; {first.words}{others}; say {first.flag}"
        return
    if residual.unstated:
        yield f"{head}: doubt first what no file states: {', '.join(residual.unstated)}"
    if residual.open_s > 0:
        yield from _slower(residual)
    elif not residual.unstated and residual.is_within_twice_the_band:
        yield f"{head}: it is inside the band taken twice, so the prediction may be too long for this job"
    elif not residual.unstated:
        yield f"{head}: the log is of another job, or counts its steps or tokens otherwise"


def _slower(residual: Residual) -> Iterator[str]:
    """Sentences of a step that is slower than the flags of its job deserve: what else would make it so."""
    measured, predicted = format_seconds(residual.measured_s), format_seconds(residual.predicted.step_time_s)
    share = f"{format_seconds(residual.open_s)} of {measured}"
    head = f"measured {measured} is {three_digits(residual.factor)} × the predicted {predicted}"
    link = "" if residual.link is None else f"; {residual.link.words}"
    if residual.slowed_by:
        names = ", ".join(residual.slowed_by)
        yield f"{head}{link}: {share} are in no price, {names} may be the cause, so measure without"
        return
    if link:
        yield f"{head}{link}, none of your flags does"
    price = f", {residual.link.flag} prices it" if residual.link and residual.link.flag else ""
    yield (
        f"{share} are explained by none of your flags: look at the network (plan bench on its nodes{price}), "
        "other jobs on it, the input pipeline, and clocks"
    )


def work_of_step(request: PlanRequest) -> Work:
    """What a step of a job does, so that a rate is a time."""
    job = request.job
    return Work(
        gpus=request.cluster.num_gpus,
        tokens=float(job.tokens_per_step),
        samples=float(job.global_batch_size),
        flop=model_flop_per_step(request.model, job),
    )


def residual_of(
    reading: Reading,
    now: Running | None,
    flags: Flags,
    asked: Flags,
    pace: Pace | None,
    cal: Calibration,
    slowed_by: tuple[str, ...] = (),
) -> Residual | None:
    """Hold a measured step against its prediction; None where either is not known.

    Args:
        reading: What the files say.
        now: The job as they have it.
        flags: What holds beside them.
        asked: What of that the user said of this job.
        pace: The step that a log measured.
        cal: Kernel and collective tables.
        slowed_by: Variables of the environment that slow the job down.
    """
    if now is None or pace is None or reading.measured is None:
        return None
    residual = Residual(
        measured_s=pace.step_s,
        predicted=now.estimate,
        slowed_by=slowed_by,
        is_warm_up=reading.measured.is_warm_up,
    )
    if residual.is_explained or residual.says_nothing:
        return residual
    unstated = dict(unstated_of(reading, now.request, asked))
    if residual.open_s > 0:
        unstated.pop("mentioned", None)  # the GPU that a file names is slow for another reason than its name
    if pace.from_rate:
        unstated.pop("batch", None)  # a rate is the same for a batch of any size
    candidates = sorted(
        _candidates(reading, now, flags, unstated, pace, cal), key=lambda candidate: candidate.distance
    )
    link = None if candidates else rate_that_explains(now, pace.step_s)
    return replace(
        residual, unstated=tuple(unstated.values()), candidates=tuple(candidates[:MOST_NAMED]), link=link
    )


def is_gpu_assumed(reading: Reading, flags: Flags) -> bool:
    """Whether neither the user nor a file says which GPU it is."""
    return not (flags.gpu or flags.cluster) and len(reading.gpus) != 1


def unstated_of(reading: Reading, request: PlanRequest, flags: Flags) -> Iterator[tuple[str, str]]:
    """What decides the step and no file states, in words, by what it is."""
    facts = reading.facts
    taken = request.cluster.nodes[0].gpu
    if shown_gpu(reading.measured, taken) == taken:
        pass  # the log has its figures
    elif is_gpu_assumed(reading, flags):
        yield "gpu", f"the GPU ({taken})"
    elif not (flags.gpu or flags.cluster):
        yield "mentioned", f"the GPU ({taken}, which the file only mentions)"
    length = facts.by_field.get("job.sequence_length")
    if (length is None or length.how in _TAKEN) and not flags.sequence_length:
        yield "length", f"the sequence length ({request.job.sequence_length:,})"
    batch = facts.by_field.get("job.global_batch_size")
    if (batch is None or batch.how in _TAKEN) and not flags.global_batch_size:
        yield "batch", f"the global batch ({request.job.global_batch_size:,} sequences)"
    if is_of_sentences(reading) and "layout.recompute" not in facts.by_field:
        yield "recompute", "what is recomputed"
    named = ("said.model", "said.flavor", "said.model_path", "model.num_layers")
    if not any(name in facts.by_field for name in named) and not flags.model:
        yield "model", f"the model ({request.model.name}, by its name)"


def _candidates(
    reading: Reading, now: Running, flags: Flags, unstated: dict[str, str], pace: Pace, cal: Calibration
) -> Iterator[Suspect]:
    """The job with other values of what is not stated, one changed at a time, as a flag would change it."""
    request = now.request
    if "gpu" in unstated:
        taken = request.cluster.nodes[0].gpu
        # of several nodes whose GPUs are joined: it is no number of workstations
        joined = request.cluster.num_nodes > 1 and request.cluster.nodes[0].scaleup != PCIE
        for name in _gpus_like(request, now.estimate, pace, reading):
            asked = replace(flags, gpu=name)
            suspects = _priced(reading, asked, "the GPU", taken, name, f"--gpu {name}", cal)
            yield from (suspect for suspect in suspects if suspect.is_linked or not joined)
    if "length" in unstated:
        taken = f"{request.job.sequence_length:,}"
        for length in _LENGTHS:
            asked, value = replace(flags, sequence_length=str(length)), f"{length:,} tokens"
            yield from _priced(reading, asked, "the length", taken, value, f"--sequence-length {length}", cal)
    if "batch" in unstated:
        taken, each = f"{request.job.global_batch_size:,}", now.layout.dp * now.layout.microbatch_size
        for batch in (times * each for times in _TIMES):
            asked, value = replace(flags, global_batch_size=str(batch)), f"{batch:,} sequences"
            yield from _priced(reading, asked, "the batch", taken, value, f"--batch {batch}", cal)


def lengths_beside(reading: Reading, flags: Flags, cal: Calibration) -> Iterator[tuple[int, Running]]:
    """The job with the other lengths that jobs are trained on, of those that are legal."""
    for length in _LENGTHS:
        asked = replace(flags, sequence_length=str(length))
        now = _running_with(reading, asked, cal)
        if now is not None:
            yield length, now


def _running_with(reading: Reading, flags: Flags, cal: Calibration) -> Running | None:
    """The job with other flags; None where it is not priced."""
    try:
        job = audited_job(reading, flags)
        if job.request is None or stops(rule_findings(reading, job)):
            return None
        return running_of(reading, job, cal if not flags.gpu else calibration_for(job.request.cluster))
    except (InputError, ValueError, KeyError, ZeroDivisionError):
        return None


def _gpus_like(request: PlanRequest, predicted: Estimate, pace: Pace, reading: Reading) -> Iterator[str]:
    """GPUs of the catalog that could take so long, by their peaks, and that the log can be of."""
    taken, log = build(request.cluster).gpu, reading.measured
    printed = log.peak_memory_bytes if log else None
    for name, gpu in catalogued_gpus().items():
        ratio = predicted.step_time_s * taken.peak("bf16") / gpu.peak("bf16") / pace.step_s
        if name == taken.name or not 1 / _SPREAD < ratio < _SPREAD or not can_be(gpu, log, taken):
            continue
        if (printed or 0.0) <= gpu.memory_bytes:
            yield name


def _priced(
    reading: Reading, flags: Flags, what: str, taken: str, value: str, flag: str, cal: Calibration
) -> Iterator[Suspect]:
    """One other job, if it is priced and its band holds what the log measured of it."""
    now = _running_with(reading, flags, cal)
    if now is None or reading.measured is None:
        return
    cluster, pace = now.request.cluster, reading.measured.pace(work_of_step(now.request))
    if pace is None or now.estimate.memory_lower_bytes > build(cluster).gpu.memory_bytes:
        return
    if now.estimate.lower_s <= pace.step_s <= now.estimate.upper_s:
        yield Suspect(
            what=what,
            taken=taken,
            value=value,
            flag=flag,
            estimate=now.estimate,
            measured_s=pace.step_s,
            is_linked=cluster.nodes[0].scaleup != PCIE,
        )
