"""Steps of a trace, by what programs annotate them with."""

from __future__ import annotations

import itertools
import re

import numpy as np

from planner.traces.events import GPU_CATEGORIES, Events, StepWindow

STEP = re.compile(
    r"^(?:ProfilerStep|(?:train(?:ing)?[ _])?(?:step|iteration|iter))[#:= _]*(\d{1,15})$", re.IGNORECASE
)
"""`ProfilerStep#7` of torch, and what programs write into NVTX."""
OPTIMIZER = re.compile(r"^Optimizer\.step#|^optimizer(?:_step)?$")


def step_windows(events: Events) -> tuple[StepWindow, ...]:
    """Annotated steps, else what lies between calls of the optimizer, else the period of kernel names.

    A step lasts until the next one starts, the last until its annotation is over. A GPU runs behind the
    host: there a step starts when the host has come to it and kernels of earlier steps are done, those of
    before the recording too.
    """
    on_host = events.of("annotation", "operation")
    matches = [STEP.match(name) for name in events.names]
    places = np.flatnonzero(on_host & events.named(np.array([match is not None for match in matches], bool)))
    if len(places):
        numbers = [int(match.group(1)) for place in places if (match := matches[events.name[place]])]
        return _windows(
            numbers, [*events.start_s[places].tolist(), float(events.end_s[places].max())], "ProfilerStep"
        )
    called = np.array([OPTIMIZER.match(name) is not None for name in events.names], bool)
    edges = events.end_s[on_host & events.named(called)].tolist()
    if len(edges) > 1:
        return _windows(list(range(1, len(edges))), edges, "optimizer")
    return _periodic(events)


def _on_gpu(events: Events, edges: list[float]) -> list[float]:
    """Moments of the host, put off until kernels that were launched before them are done."""
    calls, kernels = events.of("runtime", "driver"), events.of(*GPU_CATEGORIES)
    if not kernels.any() or not calls.any():
        return edges
    order = np.argsort(events.correlation[calls], kind="stable")
    numbers, launched = events.correlation[calls][order], events.start_s[calls][order]
    place = np.minimum(np.searchsorted(numbers, events.correlation[kernels]), len(numbers) - 1)
    linked = numbers[place] == events.correlation[kernels]
    starts, ends = events.start_s[kernels], events.end_s[kernels]
    first = starts[linked].min() if linked.any() else np.inf
    earlier = ~linked & (starts < first)  # launched before the recorder was started
    when = np.where(earlier, -np.inf, launched[place])[linked | earlier]
    by_launch = np.argsort(when, kind="stable")
    done = np.maximum.accumulate(ends[linked | earlier][by_launch])
    before = np.searchsorted(when[by_launch], edges)
    return [
        max(edge, float(done[count - 1])) if count else edge
        for edge, count in zip(edges, before, strict=True)
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
