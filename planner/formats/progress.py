"""Steps of a running job with when they were logged: of `plan run`, Megatron-LM, NeMo and torchtitan."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from planner.formats.logs import LONGEST_LINE, LONGEST_STEP_S

MOST_LOGGED = 400_000
MOST_STEP = 10**12
LATEST_S = 1e11
"""Three thousand years after 1970."""
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_WHEN = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
_MEGATRON = re.compile(
    r"\biteration\s+(\d{1,12})/\s*\d+ \|.{0,400}?elapsed time per iteration \((ms|s)\):\s*([\d.]{1,20})"
)
_NEMO = re.compile(
    r"\bglobal_step[=:]\s*(\d{1,12})(?:\.0+)?\b.{0,400}?train_step_timing in s[=:]\s*([\d.]{1,20})"
)
_TORCHTITAN = re.compile(r"\bstep:\s*(\d{1,12})\s.{0,400}?\btps:\s*([\d,]{1,20})")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """One line of progress.

    Attributes:
        step: Its number.
        step_s: Seconds of a step; None where the line has tokens alone.
        tokens_per_s_per_gpu: Tokens a second of one GPU, likewise.
        at_s: When it was logged, seconds since 1970; None where the line does not say.
        compared: Whether it was on what its plan is for; False where `plan run` says that it was not.
    """

    step: int
    step_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    at_s: float | None = None
    compared: bool = True


def logged_steps(lines: Iterable[str]) -> Iterator[LoggedStep]:
    """Every step in the order of the lines; others, and half-written ones, are left out."""
    for _, line in zip(range(MOST_LOGGED), lines, strict=False):
        plain = _COLOUR.sub("", line[:LONGEST_LINE])
        found = _of_run(plain) if plain.startswith("{") else _of_log(plain)
        if found is not None:
            yield found


def _of_log(line: str) -> LoggedStep | None:
    """A line of Megatron-LM, NeMo or torchtitan. NeMo counts the steps before this one.

    >>> _of_log("[2026-01-02 03:04:05] iteration 10/ 100 | elapsed time per iteration (ms): 5400.0 |")
    LoggedStep(step=10, step_s=5.4, tokens_per_s_per_gpu=None, at_s=1767323045.0, compared=True)
    """
    megatron, nemo, titan = _MEGATRON.search(line), _NEMO.search(line), _TORCHTITAN.search(line)
    if megatron:
        seconds = _positive(megatron[3]) * (1e-3 if megatron[2] == "ms" else 1)
        return _timed(int(megatron[1]), seconds, line)
    if nemo:
        return _timed(int(nemo[1]) + 1, _positive(nemo[2]), line)
    if titan:
        rate = _positive(titan[2].replace(",", ""))
        return LoggedStep(step=int(titan[1]), tokens_per_s_per_gpu=rate, at_s=_when(line)) if rate else None
    return None


def _timed(step: int, seconds: float, line: str) -> LoggedStep | None:
    """A step whose seconds are printed; None where they are none."""
    return LoggedStep(step=step, step_s=seconds, at_s=_when(line)) if 0 < seconds < LONGEST_STEP_S else None


def _of_run(line: str) -> LoggedStep | None:
    """A line of `metrics.jsonl`."""
    try:
        data: Any = json.loads(line)
        step, seconds = int(data["step"]), float(data["step_time_s"])
        at_s = float(data["at_s"]) if "at_s" in data else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if not (0 < seconds < LONGEST_STEP_S and 0 <= step < MOST_STEP):
        return None
    known = at_s is not None and 0 < at_s < LATEST_S
    compared = data.get("compared") is not False
    return LoggedStep(step=step, step_s=seconds, at_s=at_s if known else None, compared=compared)


def _when(line: str) -> float | None:
    """The first time of day that a line has; zones are not printed, and differences need none."""
    found = _WHEN.search(line)
    if found is None:
        return None
    try:
        return datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _positive(text: str) -> float:
    """A printed number, 0 where it is none."""
    try:
        return max(float(text), 0.0)
    except ValueError:
        return 0.0
