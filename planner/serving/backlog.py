"""Whether what serves a load keeps up with it, judged by the queue that it leaves.

The load is sent a second time, right after the first: a queue that is longer at the end of the second than at
the end of the first grows for ever. Both passes are the same requests, so a few long prompts, or when they
come, decide nothing. In a single queue the difference is exactly the work offered beyond what is served
(Loynes 1962): with the load ρ, the work left after passes of T seconds differs by max(0, ρ − 1)·T.

A replica is no single queue: it begins the first pass with every place in its batch free, so its queue
may still settle in the second. There the third, which begins as full as it ends, is compared with the second.
If nobody finds the queue empty in the second, it grows by the same in every pass, as far as a replica's pace
does not hang on who waits. That changes its growth by less than the share to which rates are told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from costmodel.serving.simulation.load import Load
from costmodel.serving.simulation.simulator import Simulation
from topology.base.arrays import Floats

FEW_WAITING = 0.5  # requests, of a load too short to show growth
GROWTH_RESOLUTION = 0.01  # of the requests of a load
RATE_RESOLUTION = 2 * GROWTH_RESOLUTION  # to which rates are told apart
ROOMY = 0.8  # of its places or its cache that the fullest decode worker uses: nobody waits for room there
FEWEST_S = 1e-9  # that a load takes to come
LAST = 0.25  # of a pass, in which those that wait are counted

Admissions = Callable[[Load, float], tuple[Floats, Floats]]
"""When the requests of a load reach what serves it, and when they are admitted; after a time maybe never."""


def admissions_of(serve: Callable[[Load], Simulation]) -> Admissions:
    """Admissions of what simulates a load to its end."""
    return partial(_to_the_end, serve)


def _to_the_end(serve: Callable[[Load], Simulation], load: Load, _until_s: float) -> tuple[Floats, Floats]:
    """Admissions of a whole simulation; no function within another, which no process could send back."""
    simulation = serve(load)
    return simulation.arrival_s, simulation.admitted_s


def keeps_up(load: Load, simulation: Simulation, admissions: Admissions) -> bool:
    """Whether the queue does not grow without end.

    A load of n requests that exceeds what is served by a share x has a mean queue of n·x/2 or more: a shorter
    one than that of `GROWTH_RESOLUTION` does not grow.

    Args:
        load: What was sent openly.
        simulation: What happened to it.
        admissions: Simulates another load of whatever served it.
    """
    few = max(FEW_WAITING, GROWTH_RESOLUTION * len(load) / simulation.replicas / 2)
    if simulation.mean_queue < few or _waits_for_prompts_alone(load, simulation):
        return True
    return growth(load, admissions) <= GROWTH_RESOLUTION


def _waits_for_prompts_alone(load: Load, simulation: Simulation) -> bool:
    """Whether a pool of prompts is offered no more than it computes, and the one that decodes has room.

    Prompts before a pool of their own are a single queue, whose growth is the work beyond that pool's time.
    Fuller steps take less time for a token, so no later pass has more work than the first.
    """
    offered = simulation.prefill_work_s / max(_period_s(load), FEWEST_S)
    return 0 < offered <= 1 + GROWTH_RESOLUTION and simulation.decode_filled <= ROOMY


def growth(load: Load, admissions: Admissions) -> float:
    """Requests by which the queue grows when a load is sent once more, as a share of the load.

    Those that wait in the last quarter of each pass, on average.
    """
    period_s = _period_s(load)
    if period_s <= 0:
        return 1.0
    second, emptied = _growth_of_last(load, admissions, period_s, passes=2)
    if second <= GROWTH_RESOLUTION or (second > RATE_RESOLUTION and not emptied):
        return second
    return _growth_of_last(load, admissions, period_s, passes=3)[0]


def _growth_of_last(
    load: Load, admissions: Admissions, period_s: float, *, passes: int
) -> tuple[float, bool]:
    """Growth from the last pass but one to the last of so many, and whether the queue was empty between."""
    ends_s = (passes - 1) * period_s, passes * period_s
    reached_s, admitted_s = admissions(_repeated(load, period_s, passes), ends_s[1])
    before, after = (_waiting(reached_s, admitted_s, end_s - LAST * period_s, end_s) for end_s in ends_s)
    emptied = _queue_empties(reached_s, admitted_s, ends_s[0] - LAST * period_s)
    return (after - before) / len(load), emptied


def _waiting(reached_s: Floats, admitted_s: Floats, start_s: float, end_s: float) -> float:
    """Mean number of requests that wait for admission between two times."""
    waited_s = np.minimum(admitted_s, end_s) - np.maximum(reached_s, start_s)
    return float(np.maximum(waited_s, 0.0).sum()) / (end_s - start_s)


def _queue_empties(reached_s: Floats, admitted_s: Floats, after_s: float) -> bool:
    """Whether a request that comes after this time finds nobody waiting."""
    reached_s = np.sort(reached_s)
    waiting = np.arange(len(reached_s)) - np.searchsorted(np.sort(admitted_s), reached_s)
    return bool((waiting[reached_s >= after_s] <= 0).any())


def _period_s(load: Load) -> float:
    """Seconds after which a load is sent again, a mean gap after its last request at the earliest."""
    first_s, last_s, count = float(load.arrival_s[0]), float(load.arrival_s[-1]), len(load)
    return last_s if first_s > 0 else last_s * count / max(count - 1, 1)


def _repeated(load: Load, period_s: float, passes: int) -> Load:
    """The load so many times, one period after the other."""
    return replace(
        load,
        input_tokens=np.tile(load.input_tokens, passes),
        output_tokens=np.tile(load.output_tokens, passes),
        cached_tokens=np.tile(load.cached_tokens, passes),
        replica=np.tile(load.replica, passes),
        lookup_s=np.tile(load.lookup_s, passes),
        arrival_s=np.concatenate([load.arrival_s + done * period_s for done in range(passes)]),
        block_hashes=(),
    )
