"""The findings of `plan validate` as data: one verdict on each claim, with its number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from executor.validation.expected_counts import Term
from executor.validation.memory_trace import StageMemory

Verdict = Literal["holds", "does not hold", "not checked here"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One claim: its verdict, in a sentence why, and the number it rests on, where there is one."""

    name: str
    verdict: Verdict
    detail: str
    value: float | None = None
    unit: str = ""
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
    """A rank run with real kernels on this GPU: its peak, and seconds of a forward and a backward chunk.

    The last are those of a layer, on average over the layers of the rank, and kernels of a step by name with
    the seconds that all calls of each took, longest first.
    """

    stage: int
    gpu: str
    peak_bytes: float
    estimated_bytes: float
    forward_s: float
    backward_s: float
    gpu_memory_bytes: float = 0.0
    layer_forward_s: float = 0.0
    layer_backward_s: float = 0.0
    kernels: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """All that was checked of a plan; `scope` says what that does not show of another engine's plan."""

    checks: tuple[Check, ...]
    scope: str = ""
    terms: tuple[StageTerm, ...] = ()
    memory: tuple[StageMemory, ...] = ()
    numerics: Numerics | None = None
    measured: tuple[RankMeasurement, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no claim was found not to hold."""
        return all(check.verdict != "does not hold" for check in self.checks)
