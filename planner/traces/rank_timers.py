"""Timers by rank that a log prints: Megatron-LM's `--timing-log-option all` and `minmax`.

Form: `megatron/core/timers.py`. `times across ranks (ms):` is followed by a line for each timer, with a line
for each rank under it; `(min, max) time across ranks (ms):` by a line for each timer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from topology.base.units import MS

MAX_TIMES: Final = 5_000_000
_BY_RANK = re.compile(r"times across ranks \(ms\):\s*$")
_RANGES = re.compile(r"\(min, max\) time across ranks \(ms\):\s*$")
_TIMER = re.compile(r"^(?:.*?[:\]|] )? {2}([\w./-]{1,60}):\s*$")
_RANK = re.compile(r"^(?:.*?[:\]|] )? {5}rank +(\d{1,7}): (\d{1,12}(?:\.\d{1,6})?)\s*$")
_RANGE = re.compile(r"^(?:.*?[:\]|] )? {4}([\w./-]{1,60}) \.+: \((\d{1,12}\.\d\d), (\d{1,12}\.\d\d)\)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimers:
    """Seconds of timers, one for each time that the log prints them."""

    by_rank: Mapping[str, Mapping[int, tuple[float, ...]]]
    ranges: Mapping[str, tuple[tuple[float, float], ...]]
    """Least and most over the ranks, where the log says no more."""


def rank_timers(text: str) -> RankTimers:
    """Timers of a log's text; lines of anything else are passed over."""
    by_rank = defaultdict[str, dict[int, list[float]]](lambda: defaultdict(list))
    ranges = defaultdict[str, list[tuple[float, float]]](list)
    name, listing, count = "", False, 0
    for line in text.splitlines():
        if _BY_RANK.search(line) or _RANGES.search(line):
            name, listing = "", bool(_BY_RANK.search(line) and not _RANGES.search(line))
        elif (match := _RANGE.match(line)) is not None:
            ranges[match[1]].append((float(match[2]) * MS, float(match[3]) * MS))
        elif listing and (match := _RANK.match(line)) is not None and name:
            by_rank[name][int(match[1])].append(float(match[2]) * MS)
            count += 1
        elif listing and (match := _TIMER.match(line)) is not None:
            name = match[1]
        if count >= MAX_TIMES:
            break
    return RankTimers(
        by_rank={timer: {rank: tuple(times) for rank, times in of.items()} for timer, of in by_rank.items()},
        ranges={timer: tuple(pairs) for timer, pairs in ranges.items()},
    )
