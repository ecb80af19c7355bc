"""The findings of `plan validate` as data: one check each, passed, failed or skipped with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from executor.validation.expected_counts import Term
from executor.validation.memory_trace import StageMemory

CheckStatus = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: its verdict in a word and in a sentence."""

    name: str
    status: CheckStatus
    detail: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTerm:
    """One number of one stage on both sides."""

    stage: int
    term: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """How far the shrunk plan is from one process, relative; `worst` names the gradient that differs most."""

    layout: str
    ranks: int
    steps: int
    loss: float
    gradient: float
    worst: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMeasurement:
    """A rank run with real kernels on this GPU: its peak, and seconds of a forward and a backward chunk."""

    stage: int
    gpu: str
    peak_bytes: float
    estimated_bytes: float
    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """Everything that was checked of one plan."""

    checks: tuple[Check, ...]
    terms: tuple[StageTerm, ...] = ()
    memory: tuple[StageMemory, ...] = ()
    numerics: Numerics | None = None
    measured: tuple[RankMeasurement, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.status != "failed" for check in self.checks)
