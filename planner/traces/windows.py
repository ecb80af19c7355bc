"""Steps of a trace, by what programs annotate them with."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.traces.events import GPU_CATEGORIES, Events, StepWindow
from planner.traces.server_steps import ServerStep, server_steps

STEP = re.compile(
    r"^(?:ProfilerStep|(?:train(?:ing)?[ _])?(?:step|iteration|iter))[#:= _]*(\d{1,15})$", re.IGNORECASE
)
"""`ProfilerStep#7` of torch, and what programs write into NVTX."""
OPTIMIZER = re.compile(r"^Optimizer\.step#|^optimizer(?:_step)?$")


def step_windows(events: Events) -> tuple[StepWindow, ...]:
    """Annotated steps, else what lies between calls of the optimizer, else the period of kernel names.

    A step lasts until the next one starts, the last until its annotation is over. The host of a server runs
    ahead of its GPU: there a step lasts from its first kernel to that of the next, the last until it is done.
    """
    on_host = events.of("annotation", "operation")
    matches = [STEP.match(name) for name in events.names]
    places = np.flatnonzero(on_host & events.named(np.array([match is not None for match in matches], bool)))
    if len(places):
        numbers = [int(match.group(1)) for place in places if (match := matches[events.name[place]])]
        return _windows(
            numbers, [*events.start_s[places].tolist(), float(events.end_s[places].max())], "ProfilerStep"
        )
    if served := server_steps(events):
        spans = [
            span or (step.start_s, step.end_s)
            for step, span in zip(served, gpu_spans(events, served), strict=True)
        ]
        edges = [*(start for start, _ in spans), max(end for _, end in spans)]
        return _windows(list(range(1, len(served) + 1)), edges, "server")
    called = np.array([OPTIMIZER.match(name) is not None for name in events.names], bool)
    edges = events.end_s[on_host & events.named(called)].tolist()
    if len(edges) > 1:
        return _windows(list(range(1, len(edges))), edges, "optimizer")
    return _periodic(events)


def launched_by(events: Events, steps: Sequence[ServerStep]) -> list[NDArray[np.int64]]:
    """Places of the GPU activities of each step: launched in it, or until the next one starts.

    Where no launch is recorded they are those that start meanwhile.
    """
    on_gpu = np.flatnonzero(events.of(*GPU_CATEGORIES))
    calls = events.of("runtime", "driver") & (events.correlation >= 0)
    when = events.start_s[on_gpu]
    if calls.any():
        order = np.argsort(events.correlation[calls], kind="stable")
        numbers, begun = events.correlation[calls][order], events.start_s[calls][order]
        place = np.minimum(np.searchsorted(numbers, events.correlation[on_gpu]), len(numbers) - 1)
        when = np.where(numbers[place] == events.correlation[on_gpu], begun[place], -np.inf)
    of_step = np.searchsorted([step.start_s for step in steps], when, "right") - 1
    return [on_gpu[of_step == number] for number in range(len(steps))]


def gpu_spans(events: Events, steps: Sequence[ServerStep]) -> list[tuple[float, float] | None]:
    """From the first to the last of each step's GPU activities; None where it has none."""
    return [
        (float(events.start_s[places].min()), float(events.end_s[places].max())) if len(places) else None
        for places in launched_by(events, steps)
    ]


def _periodic(events: Events) -> tuple[StepWindow, ...]:
    """Steps told by the kernel that each of them runs once: the same names come between two of its runs."""
    kernels = np.flatnonzero(events.of("kernel"))
    names, counts = np.unique(events.name[kernels], return_counts=True)
    for count in sorted({int(each) for each in counts if 3 <= each <= 200}):
        for name in names[counts == count][:20]:
            at = np.flatnonzero(events.name[kernels] == name)
            runs = [events.name[kernels[first:last]] for first, last in itertools.pairwise(at)]
            if len(runs[0]) > 8 and all(np.array_equal(np.sort(run), np.sort(runs[0])) for run in runs[1:]):
                edges = events.start_s[kernels[at]].tolist()
                return _windows(list(range(1, len(edges))), edges, "period of kernel names")
    return ()


def _windows(numbers: list[int], edges: list[float], source: str) -> tuple[StepWindow, ...]:
    return tuple(
        StepWindow(number=number, start_s=start, end_s=end, source=source)
        for number, start, end in zip(numbers, edges, edges[1:], strict=False)
        if end > start
    )
