"""A run in plain words: the time that it has, and the GPUs among which the fewest for it are sought."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from topology.base.errors import InputError

UNITS: Final = {
    "hour": (1, "h"), "hr": (1, "h"), "h": (1, "h"), "day": (1, "d"), "d": (1, "d"), "week": (7, "d"),
    "w": (7, "d"), "month": (30, "d"), "year": (365, "d"),
}  # fmt: skip
"""What a time is said in, and so many of which unit of a flag."""
TIME: Final = re.compile(r"(\d+(?:\.\d+)?)[- ]?([a-z]+)", re.IGNORECASE)
ASSUMED: Final = {"--tokens": ("1T", "1T tokens"), "--deadline": ("30d", "30 days")}
"""A run where none is described whose fewest GPUs are asked for, as flags and in words."""
LEAST_END: Final = 1024
"""Ranges that end below it are hardly sooner searched."""
SHARE_OF_PEAK: Final = 1 / 3
"""What of its GPUs' peak a run is taken to reach, failures included; one that reaches more needs fewer."""
OPERATIONS_OF_A_TOKEN: Final = 6
"""Floating-point operations per parameter: two forward, four backward."""


def deadline_of(text: str) -> str:
    """A time as a deadline's flag says it; "" where a text is none.

    >>> deadline_of("30 days"), deadline_of("2 weeks"), deadline_of("36h"), deadline_of("30 gpus")
    ('30d', '14d', '36h', '')
    """
    matched = TIME.fullmatch(text)
    unit = matched[2].lower() if matched else ""
    times, letter = UNITS.get(unit) or UNITS.get(unit.removesuffix("s"), (0, ""))
    return f"{float(matched[1]) * times:g}{letter}" if matched and times else ""


def with_tokens(flags: Sequence[str], assumed: list[str]) -> list[str]:
    """Flags with the tokens that a deadline needs; what is assumed is added to `assumed`."""
    if "--deadline" not in flags or "--tokens" in flags:
        return [*flags]
    value, words = ASSUMED["--tokens"]
    assumed.append(words)
    return [*flags, "--tokens", value]


def fewest_gpus(
    model: str, kinds: Sequence[str], flags: Sequence[str], assumed: list[str]
) -> tuple[str, list[str]]:
    """The range of GPUs of which the fewest are asked for, and the flags that ask so.

    Args:
        model: Its name.
        kinds: Of the GPU; the default where none is named.
        flags: What was said.
        assumed: What is assumed of the run is added to it, in words.
    """
    lacking = {flag: each for flag, each in ASSUMED.items() if flag not in flags}
    added = [part for flag, (value, _) in lacking.items() for part in (flag, value)]
    if lacking:
        assumed.append(" in ".join(words for _, words in lacking.values()))
    tokens, deadline = ([*flags, *added][[*flags, *added].index(flag) + 1] for flag in ASSUMED)
    try:
        end = end_of_range(model, kinds[0] if kinds else "", tokens, deadline)
    except InputError:
        end = LEAST_END  # the line is refused where it is read
    return f"..{end}", ["--objective", "gpus", *added]


def end_of_range(model: str, gpu: str, tokens: str, deadline: str) -> int:
    """GPUs that keep a deadline at a third of their peak.

    >>> end_of_range("70b", "h100", "1T", "30d"), end_of_range("405b", "h100", "15T", "30d")
    (1024, 49152)

    Args:
        model: Its name.
        gpu: The kind; "" is the default.
        tokens: Of the run, as a flag says them.
        deadline: A time, as a flag says it.

    Raises:
        InputError: one of them is not known, or no number.
    """
    from app.entry.handed_out import one_name
    from costmodel.models.catalog import model as known
    from costmodel.models.parameters import active_parameter_count
    from planner.questions.gpu_ranges import end_of_gpus
    from topology.base.counts import TOTALS, parse_count
    from topology.base.units import parse_seconds
    from topology.hardware.datasheets import default_gpu, sheet_named

    peak = sheet_named(gpu or default_gpu()).gpu().peak("bf16")
    parameters = active_parameter_count(known(one_name(model)))
    operations = OPERATIONS_OF_A_TOKEN * parameters * parse_count(tokens, "--tokens", suffixes=TOTALS)
    needed = operations / (parse_seconds(deadline, "30d") * peak * SHARE_OF_PEAK)
    return max(LEAST_END, end_of_gpus(needed))
