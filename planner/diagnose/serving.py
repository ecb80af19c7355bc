"""Steps of a server: what each prefills and decodes, what the GPU waits for, what makes the slowest slow."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.diagnose.budget import RankTimeline, sets_of
from planner.diagnose.intervals import clipped, seconds
from planner.traces.events import GPU_CATEGORIES, Events
from planner.traces.server_steps import ServerStep, server_steps
from planner.traces.windows import gpu_spans, launched_by

GRAPH: Final = re.compile(r"GraphLaunch$")
"""CUDA and HIP: one call launches all kernels of a captured graph."""
SLOWEST: Final = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsOfAKind:
    """Steps that prefill, that decode, or that do both: means of them."""

    kind: str
    steps: int
    wall_s: float
    """From a step's start to the next."""
    p99_s: float
    busy_s: float
    """Its kernels and copies."""
    idle_s: float
    """The rest of it: the GPU has nothing to do."""
    requests: float
    prompt_tokens: float | None
    cached_tokens: float | None
    graph_share: float
    """Of its GPU activities, those that a graph replays."""
    predicted_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSteps:
    """What a server did while it was recorded."""

    kinds: tuple[StepsOfAKind, ...]
    token_gap_p99_s: float | None
    """Of the times between two steps that decode, as a request sees its tokens; None of fewer than two."""
    slowest_by: str
    """What most of the slowest such times is: prefill, decode, or waiting; empty where there is none."""

    def document(self) -> dict[str, Any]:
        """Plain data for a program."""
        return asdict(self)


Predicted = Callable[[ServerStep], float | None]
"""Seconds that a step should take."""


def served_steps(line: RankTimeline, predicted: Predicted | None = None) -> ServedSteps | None:
    """The steps of a recorded server; None where no annotation of one is there.

    Args:
        line: Of the rank that is looked at: ranks of a server step together.
        predicted: What a step should take.
    """
    events = line.trace.events
    steps = server_steps(events)
    if not steps:
        return None
    launched, spans = launched_by(events, steps), gpu_spans(events, steps)
    walls = [
        (following[0] - span[0]) if span is not None and following is not None else _lasts(step, span)
        for step, span, following in zip(steps, spans, [*spans[1:], None], strict=True)
    ]
    replayed = _replayed(events)
    kinds = []
    for kind in dict.fromkeys(step.kind for step in steps):
        chosen = [number for number, step in enumerate(steps) if step.kind == kind]
        busy = [seconds(sets_of(events, _mask(events, launched[number]))) for number in chosen]
        activities = sum(len(launched[number]) for number in chosen)
        graph = sum(int(replayed[launched[number]].sum()) for number in chosen)
        expected = [predicted(steps[number]) for number in chosen] if predicted else []
        kinds.append(
            StepsOfAKind(
                kind=kind,
                steps=len(chosen),
                wall_s=float(np.mean([walls[number] for number in chosen])),
                p99_s=float(np.quantile([walls[number] for number in chosen], SLOWEST)),
                busy_s=float(np.mean(busy)),
                idle_s=max(0.0, float(np.mean([walls[n] for n in chosen])) - float(np.mean(busy))),
                requests=float(
                    np.mean([steps[number].requests or steps[number].prompts for number in chosen])
                ),
                prompt_tokens=_mean([steps[number].prompt_tokens for number in chosen]),
                cached_tokens=_mean([steps[number].cached_tokens for number in chosen]),
                graph_share=graph / activities if activities else 0.0,
                predicted_s=_mean(expected),
            )
        )
    gap, by = _slowest(line, steps, spans)
    return ServedSteps(kinds=tuple(kinds), token_gap_p99_s=gap, slowest_by=by)


def _lasts(step: ServerStep, span: tuple[float, float] | None) -> float:
    """Of the last step: until its GPU is done; of one without a GPU's work, its annotation."""
    return span[1] - span[0] if span is not None else step.end_s - step.start_s


def _mask(events: Events, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    chosen = np.zeros(len(events), bool)
    chosen[places] = True
    return chosen


def _replayed(events: Events) -> NDArray[np.bool_]:
    """Which GPU activities a graph's launch started."""
    graphs = events.of("runtime", "driver") & events.named(
        np.array([GRAPH.search(name) is not None for name in events.names], bool)
    )
    numbers = events.correlation[graphs]
    replayed: NDArray[np.bool_] = events.of(*GPU_CATEGORIES) & np.isin(
        events.correlation, numbers[numbers >= 0]
    )
    return replayed


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _slowest(
    line: RankTimeline, steps: Sequence[ServerStep], spans: Sequence[tuple[float, float] | None]
) -> tuple[float | None, str]:
    """The slowest times between tokens, and what most of them is.

    A request that decodes has a token when a step that decodes is done. What lies between is prefill (steps
    that hold prompts), decode, or no work of the GPU.
    """
    pairs = [*zip(steps, spans, strict=True)]
    done = [span[1] for step, span in pairs if span is not None and step.requests]
    if len(done) < 2:
        return None, ""
    gaps = np.diff(done)
    limit = float(np.quantile(gaps, SLOWEST))
    busy = sets_of(line.trace.events, line.trace.events.of(*GPU_CATEGORIES))
    parts = {"prefill": 0.0, "decode": 0.0, "waiting": 0.0}
    for place in np.flatnonzero(gaps >= limit):
        start, end = done[place], done[place + 1]
        at_work = seconds(clipped(busy, start, end))
        prompts = sum(
            seconds(clipped(busy, max(start, span[0]), min(end, span[1])))
            for step, span in pairs
            if span is not None and step.prompts and span[1] > start and span[0] < end
        )
        parts["prefill"] += min(prompts, at_work)
        parts["decode"] += max(0.0, at_work - prompts)
        parts["waiting"] += end - start - at_work
    return limit, max(parts, key=lambda part: parts[part])
