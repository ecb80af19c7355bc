"""What binds a server by its own log: why it stopped, what its requests wait for, how long it took to start.

Shares are of the moments that the log prints while requests run: a cause that holds in all of them is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from planner.diagnose.evidence import fixes
from planner.diagnose.finding import StepFinding
from planner.formats.server_lines import ServerLog, ServerState
from planner.formats.settings import truth_of, whole_or_none
from topology.base.units import format_seconds

OFTEN: Final = 0.1
"""Share of the moments from which what they show is a cause."""
SLOW_START_S: Final = 180.0
"""Seconds of loading and warming up from which a start is slow."""
_LIMITS = ("max_num_seqs", "max_running_requests", "max_batch_size")


def server_findings(log: ServerLog) -> Iterator[StepFinding]:
    """Every cause that a server's log shows, what stopped it first."""
    if log.error:
        yield _finding(
            "no start" if log.stopped else "hang",
            1.0,
            f"line {log.error_line}: {log.error}",
            log.remedy,
        )
    busy = [state for state in log.states if state.running]
    yield from _waits(log, busy)
    if log.preemptions:
        evidence = f"{log.preemptions:,.0f} requests lost their cache while they ran, and are computed again"
        yield _finding(
            "preempted requests", _share(busy, lambda state: (state.cache_used or 0) > 0.9), evidence
        )
    if busy and (log.eager or _is_on(log, ("enforce_eager", "disable_cuda_graph"))):
        yield _finding("host-bound", 0.0, "it runs without CUDA graphs, so every step waits for its launches")
    took = sum(filter(None, (log.load_s, log.init_s if log.init_s is not None else log.graph_s)))
    if took >= SLOW_START_S:
        parts = (
            (log.load_s, "loading weights"),
            (log.init_s, "profile, compilation and warm-up"),
            (log.graph_s, "of these its graphs" if log.init_s else "CUDA graphs"),
        )
        words = ", ".join(f"{what} {format_seconds(seconds)}" for seconds, what in parts if seconds)
        yield _finding("slow start", 0.0, words)


def _waits(log: ServerLog, busy: Sequence[ServerState]) -> Iterator[StepFinding]:
    """What waiting requests wait for: the cache, a place in the batch, or their prompts' turn."""
    full = [state for state in busy if state.is_full]
    if full and len(full) >= OFTEN * len(busy):
        yield _finding("full cache", len(full) / len(busy), _seen(full, busy))
        return
    waiting = [state for state in busy if state.waiting]
    if not waiting or len(waiting) < OFTEN * len(busy):
        return
    limit = next((count for name in _LIMITS if (count := _count(log, name))), None)
    at_limit = [state for state in waiting if limit is not None and (state.running or 0) >= limit]
    if len(at_limit) > len(waiting) / 2:
        words = f"{_seen(at_limit, busy)}; no more than {limit} run at once"
        yield _finding("batch limit", len(at_limit) / len(busy), words)
    elif any(state.prompt_tokens_per_s for state in waiting):
        yield _finding("prefill", len(waiting) / len(busy), _seen(waiting, busy))
    else:
        yield _finding("queueing", len(waiting) / len(busy), _seen(waiting, busy))


def _finding(cause: str, share: float, evidence: str, fix: str = "") -> StepFinding:
    """A cause of a server's log, which says nothing of the seconds that it costs."""
    return StepFinding(cause=cause, seconds=0.0, share=share, evidence=evidence, fix=fix or fixes()[cause])


def _seen(states: Sequence[ServerState], busy: Sequence[ServerState]) -> str:
    """In how many moments something is seen, and the last of them."""
    last = states[-1]
    return f"in {len(states)} of {len(busy)} moments; line {last.line}: {state_words(last)}"


def state_words(state: ServerState) -> str:
    """A moment of a server, in words."""
    parts = [f"{state.running or 0:,.0f} requests run"]
    parts += [f"{state.waiting:,.0f} wait"] if state.waiting is not None else []
    parts += [f"{state.cache_used:.0%} of the cache in use"] if state.cache_used is not None else []
    rates = ((state.prompt_tokens_per_s, "in"), (state.output_tokens_per_s, "out"))
    parts += [f"{rate:,.0f} tokens/s {way}" for rate, way in rates if rate]
    parts += [f"{state.prefix_hits:.0%} of prompts found in the cache"] if state.prefix_hits else []
    return ", ".join(parts)


def server_words(log: ServerLog) -> str:
    """A server by its log, in one line."""
    busy = [state for state in log.states if state.running]
    name = f"{log.of} {log.version}".strip()
    if not busy:
        return f"{name}: no request ran"
    peak = max(busy, key=lambda state: state.output_tokens_per_s or 0.0)
    most = f"; at most {peak.output_tokens_per_s:,.0f} tokens/s out" if peak.output_tokens_per_s else ""
    return f"{name}: {state_words(busy[-1])}{most}"


def _share(busy: Sequence[ServerState], holds: Callable[[ServerState], bool]) -> float:
    """The share of moments in which something holds."""
    return sum(map(holds, busy)) / len(busy) if busy else 0.0


def _count(log: ServerLog, name: str) -> int | None:
    """A count that its arguments state."""
    return next((whole_or_none(each.value) for each in log.settings if each.path[-1] == name), None)


def _is_on(log: ServerLog, names: Sequence[str]) -> bool:
    """Whether one of its arguments switches something on."""
    return any(each.path[-1] in names and bool(truth_of(each.value)) for each in log.settings)
