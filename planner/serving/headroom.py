"""How much a fleet serves before a limit breaks, and which limit that is.

Whoever owns the GPUs asks what they carry: the rate up to which the fleet was seen to keep its limits, and
what breaks above it.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.serving.board import RESOLUTION
from planner.serving.fleet import FleetRun, run_fleet
from planner.serving.fleet_choice import Selection
from planner.serving.plan import Headroom
from planner.serving.replica import Option, rate_bound_per_s


def headroom_of(run: FleetRun) -> Headroom:
    """The highest rate this fleet is found to serve, by bisection from one it serves, and what breaks above.

    Nothing passes the bounds of its workers, so the first rate tried is at most theirs.
    """
    low, high, over = run.request_rate_per_s, None, run
    most = 1.01 * _bound_per_s(run)
    while high is None or high - low > RESOLUTION * high:
        rate = (low + high) / 2 if high is not None else max(min(1.25 * low, most), (1 + RESOLUTION) * low)
        tried = at_rate(run, rate)
        if tried.kept:
            low = rate
        else:
            high, over = rate, tried
    return Headroom(served_per_s=low, failed_per_s=high, broken=over.broken)


def bracket_of_fleet(run: FleetRun) -> tuple[float, float]:
    """A rate that this fleet serves, and one that it does not, by bisection from none to its bound."""
    low, high = 0.0, 1.01 * _bound_per_s(run)
    least = high / 100
    while high - low > RESOLUTION * high and high > least:
        middle = (low + high) / 2
        low, high = (middle, high) if at_rate(run, middle).kept else (low, middle)
    return low, high


_NAMES = {"ttft": "time to first token", "tpot": "time per output token", "end_to_end": "end-to-end time"}


def broken_at(run: FleetRun) -> str:
    """What a fleet breaks at its rate, in words, such as "p99 time to first token breaks"; "" where none."""
    return breaks(run.broken, run.decode.job.percentile)


def breaks(names: Sequence[str], percentile: float) -> str:
    """What breaks, in words.

    >>> breaks(("ttft", "tpot"), 99), breaks(("queue",), 99)
    ('p99 time to first token and time per output token break', 'the queue grows without end')
    """
    limits = [_NAMES[name] for name in names if name in _NAMES]
    if not limits:
        return "the queue grows without end" if names else ""
    return f"p{percentile:g} {' and '.join(limits)} break{'s' * (len(limits) == 1)}"


def fleet_label(run: FleetRun) -> str:
    """The fleet in a few words, such as 2 × tp4 bf16."""
    return ", ".join(f"{workers} × {option.label}" for option, workers in reversed(_pools(run)))


def at_rate(run: FleetRun, rate_per_s: float) -> FleetRun:
    """The same fleet at another rate."""
    pools = _pools(run)
    counts = {i: workers for i, (_, workers) in enumerate(pools)}
    selection = Selection(counts=counts, rate_per_s=rate_per_s, num_gpus=run.num_gpus)
    return run_fleet([option for option, _ in pools], selection, rate_per_s)


def _bound_per_s(run: FleetRun) -> float:
    """What no schedule of the fleet's scarcest pool passes."""
    return min(rate_bound_per_s(option) * workers for option, workers in _pools(run))


def _pools(run: FleetRun) -> list[tuple[Option, int]]:
    """The fleet's kinds of worker with their number."""
    prompts = [(run.prefill, run.prefill_workers)] if run.prefill is not None else []
    return [(run.decode, run.decode_workers), *prompts]
