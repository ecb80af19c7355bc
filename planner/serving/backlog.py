"""Whether what serves a load keeps up with it, judged by the queue that it leaves.

The load is sent a second time, right after the first: a queue that is longer at the end of the second than at
the end of the first grows for ever. Both passes are the same requests, so a few long prompts, or when they
come, decide nothing. In a single queue the difference is exactly the work offered beyond what is served
(Loynes 1962): with the load ρ, the work left after passes of T seconds differs by max(0, ρ − 1)·T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from costmodel.serving.simulation.load import Load
from costmodel.serving.simulation.simulator import Simulation

FEW_WAITING = 0.5  # requests, of a load too short to show growth
GROWTH_RESOLUTION = 0.01  # of the requests of a load; rates are told apart to twice that


def keeps_up(load: Load, simulation: Simulation, serve: Callable[[Load], Simulation]) -> bool:
    """Whether the queue does not grow without end.

    A load of n requests that exceeds what is served by a share x has a mean queue of n·x/2 or more: a shorter
    one than that of `GROWTH_RESOLUTION` does not grow.

    Args:
        load: What was sent openly.
        simulation: What happened to it.
        serve: Simulates another load of whatever served it.
    """
    few = max(FEW_WAITING, GROWTH_RESOLUTION * len(load) / simulation.replicas / 2)
    return simulation.mean_queue < few or growth(load, serve) <= GROWTH_RESOLUTION


def growth(load: Load, serve: Callable[[Load], Simulation]) -> float:
    """Requests by which the queue grows when a load is sent once more, as a share of the load.

    Those that wait in the last quarter of each pass, on average.
    """
    period_s = _period_s(load)
    if period_s <= 0:
        return 1.0
    simulation = serve(_twice(load, period_s))
    first, second = (_waiting(simulation, (end - 0.25) * period_s, end * period_s) for end in (1, 2))
    return (second - first) / len(load)


def _waiting(simulation: Simulation, start_s: float, end_s: float) -> float:
    """Mean number of requests that wait for admission between two times."""
    waited_s = np.minimum(simulation.admitted_s, end_s) - np.maximum(simulation.arrival_s, start_s)
    return float(np.maximum(waited_s, 0.0).sum()) / (end_s - start_s)


def _period_s(load: Load) -> float:
    """Seconds after which a load is sent again, a mean gap after its last request at the earliest."""
    first_s, last_s, count = float(load.arrival_s[0]), float(load.arrival_s[-1]), len(load)
    return last_s if first_s > 0 else last_s * count / max(count - 1, 1)


def _twice(load: Load, period_s: float) -> Load:
    """The load, and the same once more after its period."""
    return replace(
        load,
        input_tokens=np.tile(load.input_tokens, 2),
        output_tokens=np.tile(load.output_tokens, 2),
        cached_tokens=np.tile(load.cached_tokens, 2),
        replica=np.tile(load.replica, 2),
        lookup_s=np.tile(load.lookup_s, 2),
        arrival_s=np.concatenate([load.arrival_s, load.arrival_s + period_s]),
        block_hashes=(),
    )
