"""Events gathered one by one into columns; names and details that repeat are kept once."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from planner.traces.events import CATEGORIES, Events
from topology.base.errors import InputError

MOST_EVENTS = 6_000_000
"""Of one file: 400 MB of columns."""
LONGEST_NAME = 400
"""Characters of a kernel's name that are kept; templates go on for thousands."""
LONGEST_SECONDS = 1e8
"""Three years: no recorder runs longer, and sums of a million of them stay exact to a microsecond."""
CODES = {name: code for code, name in enumerate(CATEGORIES)}


class EventColumns:
    """What a reader fills, row by row."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._names: dict[str, int] = {}
        self._details: dict[str, int] = {}
        self._kept: list[dict[str, Any]] = []
        self._name, self._category, self._detail = array("i"), array("B"), array("i")
        self._forward = array("B")
        self._start, self._duration = array("d"), array("d")
        self._stream, self._thread, self._correlation = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._start)

    def detail_of(self, key: str, made: Callable[[], dict[str, Any]]) -> int:
        """Place of what is said beside an event; made where its key is new."""
        place = self._details.get(key)
        if place is None:
            place = self._details[key] = len(self._kept)
            self._kept.append(made())
        return place

    def add(
        self,
        name: str,
        category: int,
        start_s: float,
        duration_s: float,
        stream: int = -1,
        thread: int = -1,
        correlation: int = -1,
        detail: int = -1,
        *,
        forward: bool = False,
    ) -> None:
        """Add one event. Raises InputError where there are too many, OverflowError for no 64-bit number."""
        if len(self._start) >= MOST_EVENTS:
            cause = f"it has more than {MOST_EVENTS:,} events"
            raise InputError(f"{self._source} is too large", cause, "record fewer steps: schedule(active=2)")
        place = self._names.get(name)
        if place is None:
            name = name[:LONGEST_NAME]
            place = self._names.setdefault(name, len(self._names))
        self._correlation.append(correlation)  # first what may not fit, so that columns stay of one length
        try:
            self._stream.append(stream)
            try:
                self._thread.append(thread)
            except (OverflowError, TypeError):
                self._stream.pop()
                raise
        except (OverflowError, TypeError):
            self._correlation.pop()
            raise
        self._name.append(place)
        self._category.append(category)
        self._start.append(start_s)
        self._duration.append(duration_s)
        self._detail.append(detail)
        self._forward.append(forward)

    def events(self, rank: int = 0, unit_s: float = 1.0) -> Events:
        """The columns, in the order of their starts; both times are multiplied by the recorder's unit."""
        start = np.frombuffer(self._start, np.float64) if len(self) else np.zeros(0)
        order = np.argsort(start, kind="stable")

        def column(values: array[Any], dtype: type) -> Any:
            return np.array(values, dtype)[order] if len(self) else np.zeros(0, dtype)

        return Events(
            names=tuple(self._names),
            name=column(self._name, np.int32),
            category=column(self._category, np.uint8),
            start_s=start[order] * unit_s,
            duration_s=column(self._duration, np.float64) * unit_s,
            stream=column(self._stream, np.int64),
            thread=column(self._thread, np.int64),
            correlation=column(self._correlation, np.int64),
            details=tuple(self._kept),
            detail=column(self._detail, np.int32),
            forward=column(self._forward, np.bool_),
            rank=rank,
        )
