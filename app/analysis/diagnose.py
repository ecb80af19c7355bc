"""From the question of `plan diagnose` to its record and its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.errors import ANSWERED, FAILED_AUDIT
from planner.diagnose.beside import SideEvidence
from planner.diagnose.diagnosis import Diagnosis, diagnosed, explained, recorded_files
from planner.diagnose.job_files import prediction_of
from planner.questions.flags import Flags
from topology.base.counts import parse_share


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseQuestion:
    """The flags of one call; see `app.commands.diagnose`."""

    files: tuple[Path, ...]
    step: int | None = None
    fail_above: str | None = None


def diagnosis_of(question: DiagnoseQuestion, flags: Flags) -> tuple[Diagnosis | SideEvidence, int]:
    """The diagnosis, and the exit code: 4 where the job stands, does not start, or loses more than the limit.

    Without a trace it is what the other records explain: who hangs, who is slow, what memory lacks.
    """
    limit = parse_share(question.fail_above, "--fail-above") if question.fail_above else None
    files = recorded_files(_files(question.files))
    side = None if files.traces else explained(files)
    alone = side is not None and (files.beside or side.findings or side.servers)
    if side is not None and alone:
        prediction = prediction_of(files.job, flags)[0] if side.memory else None
        diagnosis: Diagnosis | SideEvidence = explained(files, prediction=prediction) if side.memory else side
    else:
        diagnosis = diagnosed(_files(question.files), flags, question.step)
    stands = any(finding.cause in ("hang", "no start") for finding in diagnosis.findings)
    behind = limit is not None and diagnosis.lost_share > limit
    return diagnosis, FAILED_AUDIT if stands or behind else ANSWERED


def _files(files: Sequence[Path]) -> list[Path]:
    return list(dict.fromkeys(files))
