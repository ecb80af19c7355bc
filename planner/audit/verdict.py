"""Whether a job fits its GPUs, with the licence of that word: a log that runs, or all that decides memory.

A log with steps proves that the job fits, a log that ran out of memory that it does not. Without one, "does
not fit" needs a chance of OOM above 90 % also with every unstated setting at its leanest, where the lower end
of the band is above what a GPU has. What is not stated and would decide it leaves the verdict open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from costmodel.estimate import Estimate
from costmodel.memory.fit import fit_of
from planner.audit.job import Job
from planner.formats.logs import Measured
from topology.base.units import format_bytes, format_chance

EVEN = 0.5
"""Chance of OOM above which a job sooner runs out of memory than not."""
Basis = Literal["measured", "predicted"]
"""Where a number of an audit comes from."""
Word = Literal["fits", "tight", "does not fit", "not settled"]
"""What is said of a job's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a job fits.

    Attributes:
        word: In a word.
        basis: Whether a log shows it, or it is predicted.
        chance: Of OOM: 0 of a job that ran, 1 of one that ran out of memory, else as predicted.
        why: What it rests on, one sentence each.
    """

    word: Word
    basis: Basis
    chance: float
    why: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """It in a line."""
        return "; ".join((f"{self.word}, {self.ground}", *self.why))

    @property
    def ground(self) -> str:
        """What the word carries: a log, or a chance."""
        return (
            "as the log shows" if self.basis == "measured" else f"{format_chance(self.chance)} chance of OOM"
        )

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where that is not settled, or too tight to say."""
        return {"fits": True, "does not fit": False}.get(self.word)


def memory_verdict(
    log: Measured | None,
    job: Job,
    predicted: Estimate | None,
    leanest: Estimate | None,
    capacity_bytes: float,
) -> Verdict | None:
    """Judge the memory of a job; None where nothing is known of it.

    Args:
        log: What a log measured.
        job: The job, with what decides its memory and is not settled.
        predicted: Of the job as it is taken.
        leanest: Of the job with every unsettled setting at its leanest; None where nothing bounds that.
        capacity_bytes: Memory of a GPU.
    """
    if log is not None and (log.out_of_memory or log.has_steps):
        ran_out = bool(log.out_of_memory)
        peak = f"its peak is {format_bytes(log.peak_memory_bytes)}" if log.peak_memory_bytes else ""
        where = f"a GPU ran out of memory (line {log.out_of_memory})" if ran_out else "its steps were made"
        return Verdict(
            word="does not fit" if ran_out else "fits",
            basis="measured",
            chance=1.0 if ran_out else 0.0,
            why=tuple(filter(None, (where, peak))),
        )
    if predicted is None:
        return None
    chance = predicted.out_of_memory_chance
    word = fit_of(chance)
    if job.part:
        beside = "answers are taken at their longest, and what generates and scores beside it is not counted"
        return Verdict(word="not settled", basis="predicted", chance=chance, why=(beside,))
    if wide := [gap.words for gap in job.unsettled if gap.field == "job.precision"]:
        return Verdict(word="not settled", basis="predicted", chance=chance, why=(wide[0],))
    likened = [gap.words for gap in job.unsettled if gap.field == "stack"]
    if word == "tight" and chance > EVEN and likened:  # memory is another engine's, which may take more
        return Verdict(word="not settled", basis="predicted", chance=chance, why=(likened[0],))
    if word != "does not fit" or not job.unsettled:
        return Verdict(word=word, basis="predicted", chance=chance)
    unstated = "not stated: " + ", ".join(dict.fromkeys(gap.words for gap in job.unsettled))
    if leanest is None:
        return Verdict(word="not settled", basis="predicted", chance=chance, why=(unstated,))
    lean = leanest.out_of_memory_chance
    at = f"with that at its leanest {format_bytes(leanest.peak_memory_bytes)}, {format_chance(lean)}"
    proven = fit_of(lean) == "does not fit" and leanest.memory_lower_bytes > capacity_bytes
    return Verdict(
        word="does not fit" if proven else "not settled",
        basis="predicted",
        chance=lean if proven else chance,
        why=(unstated, at),
    )
