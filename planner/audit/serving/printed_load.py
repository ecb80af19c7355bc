"""What a server is sent, as far as that follows from what its log prints.

Of c requests that run, each holds its prompt and on average half of what it will have answered. With r tokens
of prompts computed for each that comes out, the cache's h tokens a request are r·out + out/2.

Legend: ``c`` requests that run, ``h`` tokens that one of them holds, ``r`` tokens in for each out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean, median

from planner.formats.server_lines import ServerLog
from planner.questions.flags import ServeFlags
from planner.questions.serving.lengths import ALIKE

_HALF = 0.5
"""Of its answer a request has on average while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedLoad:
    """What a server is sent, as its log tells it.

    Attributes:
        running: Requests that run, the median of its moments.
        waiting: Requests that wait, likewise.
        input_tokens: Tokens of a prompt that it computes.
        output_tokens: Tokens of an answer.
        output_tokens_per_s: Tokens that come out a second, the median.
    """

    running: int
    waiting: int
    input_tokens: int
    output_tokens: int
    output_tokens_per_s: float

    def flags(self, asked: ServeFlags, in_flight: int) -> ServeFlags:
        """The load in words, beside limits that are asked; lengths are alike: their spread is not printed."""
        return replace(
            asked,
            concurrency=str(in_flight),
            input_tokens=asked.input_tokens or str(self.input_tokens),
            output_tokens=asked.output_tokens or str(self.output_tokens),
            input_p99=asked.input_p99 or ALIKE,
            output_p99=asked.output_p99 or ALIKE,
        )


def printed_load(log: ServerLog) -> PrintedLoad | None:
    """What a server is sent, by its log; None where it prints too little.

    >>> from planner.formats.server_lines import ServerState
    >>> at = ServerState(
    ...     line=1, running=10, cache_used=0.5, prompt_tokens_per_s=400.0, output_tokens_per_s=100.0
    ... )
    >>> printed_load(ServerLog(of="vLLM", cache_tokens=90_000, states=(at,)))
    PrintedLoad(running=10, waiting=0, input_tokens=4000, output_tokens=1000, output_tokens_per_s=100.0)
    """
    busy = [state for state in log.states if state.running and state.output_tokens_per_s]
    used = [state.cache_used for state in busy if state.cache_used]
    if not busy or not used or not log.cache_tokens:
        return None
    running = median(state.running or 0 for state in busy)
    rates = fmean(state.prompt_tokens_per_s or 0.0 for state in busy)
    ratio = rates / fmean(state.output_tokens_per_s or 0.0 for state in busy)
    held = median(used) * log.cache_tokens / running
    output = held / (ratio + _HALF)
    return PrintedLoad(
        running=max(1, round(running)),
        waiting=round(median(state.waiting or 0 for state in busy)),
        input_tokens=max(1, round(ratio * output)),
        output_tokens=max(2, round(output)),
        output_tokens_per_s=median(state.output_tokens_per_s or 0.0 for state in busy),
    )
