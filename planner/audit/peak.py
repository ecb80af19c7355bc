"""Memory that a log shows and its prediction cannot mean: what was assumed is doubted first, else the log.

Within the band taken twice the prediction may be off, and proposals take the printed peak's level. Beyond it
nothing that is predicted of the job's memory is of the job that the log shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from costmodel.estimate import Estimate
from costmodel.kernels.tables import Calibration
from planner.audit.changes import Running, reaches_peak
from planner.audit.job import Job
from planner.audit.read import Reading
from planner.audit.residual import lengths_beside, unstated_of
from planner.questions.flags import Flags
from topology.base.units import format_bytes, three_digits
from topology.builders import build


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakResidual:
    """A printed peak beyond the band of its prediction, taken twice.

    Attributes:
        printed_bytes: As the log has it.
        predicted: As the files have it.
        unstated: What nobody stated, in words.
        length: What was assumed of the length; 0 where it is stated.
        lengths: Other lengths whose band holds the printed peak, with their predictions, the nearest first.
    """

    printed_bytes: float
    predicted: Estimate
    unstated: tuple[str, ...] = ()
    length: int = 0
    lengths: tuple[tuple[int, Estimate], ...] = ()

    @property
    def words(self) -> str:
        """It in a line, what to doubt first."""
        ratio = self.printed_bytes / self.predicted.peak_memory_bytes
        more = f"a factor {three_digits(max(ratio, 1 / ratio))} {'more' if ratio > 1 else 'less'} than"
        predicted = format_bytes(self.predicted.peak_memory_bytes)
        head = f"the printed peak of {format_bytes(self.printed_bytes)} is {more} the predicted {predicted}"
        if self.lengths:
            length, estimate = self.lengths[0]
            would = format_bytes(estimate.peak_memory_bytes)
            return (
                f"{head}: the length {self.length:,} is assumed; with {length:,} tokens it is {would}; "
                f"say --sequence-length {length}"
            )
        if self.unstated:
            return f"{head}: doubt first what no file states: {', '.join(self.unstated)}"
        return f"{head}: the log is of another job than the files, or counts its memory otherwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class RanRegardless:
    """Steps of a job whose predicted memory, the band taken twice, no GPU of it has: a run disproves that.

    Attributes:
        predicted: As the files have it.
        capacity_bytes: Of a GPU.
        taken: What was taken of its memory and nobody stated, in words.
    """

    predicted: Estimate
    capacity_bytes: float
    taken: tuple[str, ...]

    @property
    def words(self) -> str:
        """It in a line, what to doubt first."""
        peak, capacity = format_bytes(self.predicted.peak_memory_bytes), format_bytes(self.capacity_bytes)
        head = f"the job ran, where {peak} are predicted of {capacity}"
        more = "memory and time are those of another job until that is said"
        return f"{head}: doubt first {'; '.join(self.taken)}; {more}"


def peak_residual_of(
    reading: Reading, job: Job, now: Running | None, flags: Flags, asked: Flags, cal: Calibration
) -> PeakResidual | RanRegardless | None:
    """Hold what a log shows of memory against its prediction; None where the two can be of one job.

    Args:
        reading: What the files say.
        job: The job, with what decides its memory and is not settled.
        now: It as they have it.
        flags: What holds beside them.
        asked: What of that the user said of this job.
        cal: Kernel and collective tables.
    """
    log = reading.measured
    if now is None or log is None or log.out_of_memory:
        return None
    if not log.peak_memory_bytes:
        return _ran_regardless(job, now) if log.has_steps else None
    if reaches_peak(log.peak_memory_bytes, now.estimate):
        return None
    unstated = dict(unstated_of(reading, now.request, asked))
    unstated.pop("batch", None)  # how many sequences a replica takes in turn moves no peak
    length = now.request.job.sequence_length if "length" in unstated else 0
    printed = log.peak_memory_bytes
    lengths = tuple(_lengths(reading, flags, printed, cal)) if length else ()
    return PeakResidual(
        printed_bytes=printed,
        predicted=now.estimate,
        unstated=tuple(unstated.values()),
        length=length,
        lengths=tuple(sorted(lengths, key=lambda row: abs(row[1].peak_memory_bytes - printed))),
    )


def _ran_regardless(job: Job, now: Running) -> RanRegardless | None:
    """Steps that the memory of what was taken rules out; None where the two can be of one job."""
    capacity = build(now.request.cluster).gpu.memory_bytes
    leaner = [gap.words for gap in job.unsettled if gap.leanest is not None and gap.leanest != gap.taken]
    fits = capacity >= now.estimate.peak_memory_bytes or reaches_peak(capacity, now.estimate)
    if fits or not leaner:
        return None
    return RanRegardless(predicted=now.estimate, capacity_bytes=capacity, taken=tuple(leaner))


def _lengths(
    reading: Reading, flags: Flags, printed_bytes: float, cal: Calibration
) -> Iterator[tuple[int, Estimate]]:
    """Lengths whose band holds a peak, with what is predicted of them."""
    for length, running in lengths_beside(reading, flags, cal):
        if running.estimate.memory_lower_bytes <= printed_bytes <= running.estimate.memory_upper_bytes:
            yield length, running.estimate
