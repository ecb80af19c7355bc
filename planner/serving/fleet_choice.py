"""The choice of a fleet: which kind of replica, and how many, from what each can serve.

    choose one kind of whole replica, or one prefill and one decode kind; spare more of each kind chosen
    Σ gpus·(x + spare) ≤ N, and the workers are placed on the hosts that N GPUs are
    x ≥ ⌈rate/capacity⌉ of every kind chosen, fewest whole machines, then fewest GPUs,
        or most requests a second, of which capacity·x are served in every phase
    machines: those of G GPUs that the workers are placed on

Capacities are upper bounds until a simulation has replaced them, so the value found bounds what any fleet
can do, and is exact once the chosen kinds have been simulated (`planner.serving.search`). A fleet has two
kinds at most, so all fleets are counted, which takes a millisecond and no solver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from planner.serving.capacity import replicas_for
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY, WHOLE, Option
from topology.base.arrays import Ints

MOST_FLEET_GPUS = 4096  # a fleet asked for without a size is looked for up to here
LEAST_MORE = 1e-9  # rates this share apart are the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The replicas chosen: option index → count, and the requests per second they are believed to serve.

    `spare` more of each kind are part of `num_gpus` and `machines`, and of nothing that is served.
    """

    counts: dict[int, int]
    rate_per_s: float
    num_gpus: int
    machines: int = 0
    spare: int = 0


def select_fleet(
    options: Sequence[Option],
    capacities_per_s: Sequence[float],
    *,
    most_gpus: int,
    rate_per_s: float | None,
    excluded: Sequence[frozenset[int]] = (),
    simulated: Collection[int] = (),
    machine_gpus: int = 1,
    host_gpus: int = 1,
    spare: int = 0,
) -> Selection | None:
    """Solve the program; None when no fleet of `most_gpus` GPUs, in hosts of `host_gpus`, can serve the rate.

    Without a rate the requests per second are maximised, with one the machines of `machine_gpus` and then the
    GPUs are minimised. `excluded` combinations of options are not chosen; of equals `simulated` ones are.
    """
    if rate_per_s is None:
        room = (most_gpus, host_gpus)
        counts = _most_served(options, capacities_per_s, room, frozenset(excluded), spare)
    else:
        needed = {
            i: int(count)
            for i, capacity in enumerate(capacities_per_s)
            if (count := replicas_for(rate_per_s, capacity)) <= most_gpus
        }
        merits = _merits(options, capacities_per_s, simulated)
        room = (most_gpus, host_gpus)
        counts = _least_paid(options, needed, merits, room, frozenset(excluded), machine_gpus, spare)
    if counts is None:
        return None
    machines, gpus = paid_for([(options[i].num_gpus, n + spare) for i, n in counts.items()], machine_gpus)
    rate = served_per_s(options, capacities_per_s, counts)
    return Selection(counts=counts, rate_per_s=rate, num_gpus=gpus, machines=machines, spare=spare)


def paid_for(workers: Sequence[tuple[int, int]], machine_gpus: int) -> tuple[int, int]:
    """What is minimised for a rate: machines of so many GPUs, then GPUs, of pairs of GPUs and workers."""
    gpus = sum(each * number for each, number in workers)
    return (gpus if machine_gpus == 1 else machines_for(workers, machine_gpus)), gpus


def _of_phase(options: Sequence[Option], phase: str) -> list[int]:
    """The options of a phase."""
    return [i for i, option in enumerate(options) if option.phase == phase]


def _least_paid(
    options: Sequence[Option],
    needed: Mapping[int, int],
    merits: Sequence[int],
    room: tuple[int, int],
    excluded: frozenset[frozenset[int]],
    machine_gpus: int,
    spare: int,
) -> dict[int, int] | None:
    """The fleet of fewest machines, then GPUs, then of the greatest merit, of kinds needed so often each.

    It has the room of so many GPUs, in hosts of so many.
    """
    gpus = {i: (count + spare) * options[i].num_gpus for i, count in needed.items()}
    best: tuple[tuple[int, int, int], tuple[int, ...]] | None = None

    def consider(*fleet: int) -> bool:
        """Whether dearer fleets than this one may still be better."""
        nonlocal best
        total = sum(gpus[i] for i in fleet)
        least = -(-total // machine_gpus)
        if total > room[0] or (best is not None and least > best[0][0]):
            return False
        workers = [(options[i].num_gpus, needed[i] + spare) for i in fleet]
        fits = room[1] == 1 or machines_for(workers, room[1]) <= -(-room[0] // room[1])
        if frozenset(fleet) not in excluded and fits:
            cost = paid_for(workers, machine_gpus)
            key = (*cost, -sum(merits[i] for i in fleet))
            best = (key, fleet) if best is None or key < best[0] else best
        return True

    cheapest = {
        phase: sorted((i for i in _of_phase(options, phase) if i in gpus), key=lambda i: gpus[i])
        for phase in (WHOLE, PROMPT_ONLY, OUTPUT_ONLY)
    }
    for i in cheapest[WHOLE]:
        if not consider(i):
            break
    for prompts in cheapest[PROMPT_ONLY]:
        for outputs in cheapest[OUTPUT_ONLY]:
            if not consider(prompts, outputs):
                break
    return None if best is None else {i: needed[i] for i in best[1]}


def _most_served(
    options: Sequence[Option],
    capacities_per_s: Sequence[float],
    room: tuple[int, int],
    excluded: frozenset[frozenset[int]],
    spare: int,
) -> dict[int, int] | None:
    """The fleet that serves most requests a second, then of fewest GPUs; its room as above."""
    fleets = [
        {i: room_for(options[i].num_gpus, *room) - spare}
        for i in _of_phase(options, WHOLE)
        if frozenset((i,)) not in excluded
    ]
    fleets += _pairs_served(options, capacities_per_s, room, excluded, spare)
    served = [
        served_per_s(options, capacities_per_s, fleet) if min(fleet.values()) > 0 else -1.0
        for fleet in fleets
    ]
    top = max(served, default=-1.0)
    if top < 0:
        return None
    equal = [fleet for fleet, rate in zip(fleets, served, strict=True) if rate >= top * (1 - LEAST_MORE)]
    return min(equal, key=lambda fleet: sum(n * options[i].num_gpus for i, n in fleet.items()))


def _pairs_served(
    options: Sequence[Option],
    capacities_per_s: Sequence[float],
    room: tuple[int, int],
    excluded: frozenset[frozenset[int]],
    spare: int,
) -> list[dict[int, int]]:
    """The best numbers of workers of the best pairs of pools that all GPUs can hold, and no worker more.

    Every number of prefill workers is tried, beside as many decode workers as there is room for.
    """
    first, second = _of_phase(options, PROMPT_ONLY), _of_phase(options, OUTPUT_ONLY)
    if not first or not second:
        return []
    sizes = [option.num_gpus for option in options]
    rates = np.asarray(capacities_per_s, dtype=np.float64)
    prompts = np.arange(1, room[0] // min(sizes[i] for i in first) + 1)
    beside = {
        (a, b): beside_each(a, b, *room)
        for a in {sizes[i] for i in first}
        for b in {sizes[j] for j in second}
    }
    outputs = np.full((len(prompts), len(first), len(second)), -1)
    for at, i in enumerate(first):
        for of, j in enumerate(second):
            left = beside[sizes[i], sizes[j]][1 + spare :][: len(prompts)]
            outputs[: len(left), at, of] = left - spare
    served = np.minimum(prompts[:, None, None] * rates[first][:, None], outputs * rates[second])
    served = np.where(outputs > 0, served, -1.0)
    best, top = served.argmax(axis=0), served.max(axis=0)
    for at, of in np.ndindex(top.shape) if excluded else ():
        if frozenset((first[at], second[of])) in excluded:
            top[at, of] = -1.0
    pairs = []
    for at, of in np.argwhere((top >= 0) & (top >= top.max() * (1 - 2 * LEAST_MORE))).tolist():
        i, j, most = first[at], second[of], int(best[at, of])
        counts = {i: int(prompts[most]), j: int(outputs[most, at, of])}
        rate = served_per_s(options, capacities_per_s, counts)
        pairs.append({k: min(counts[k], _enough(rate, capacities_per_s[k])) for k in counts})
    return pairs


def room_for(gpus: int, most_gpus: int, host_gpus: int) -> int:
    """Most workers of so many GPUs that so many GPUs hold, in hosts of so many.

    >>> room_for(3, 32, 8), room_for(12, 32, 8), room_for(3, 32, 1)
    (8, 2, 10)
    """
    hosts = -(-most_gpus // host_gpus)
    fitting = hosts // -(-gpus // host_gpus) if gpus > host_gpus else hosts * (host_gpus // gpus)
    return min(fitting, most_gpus // gpus)


@cache
def beside_each(gpus: int, other_gpus: int, most_gpus: int, host_gpus: int) -> Ints:
    """Most workers of `other_gpus` beside 0, 1, 2, … of `gpus`, as `machines_for` places them; read-only.

    >>> beside_each(3, 4, 16, 8).tolist(), beside_each(16, 3, 32, 8).tolist()
    ([4, 3, 2, 1, 0], [8, 4, 0])
    """
    if gpus >= other_gpus:
        most = _after_larger(gpus, other_gpus, most_gpus, host_gpus)
    else:  # the largest is placed first: beside 0, 1, 2, … of it, then the most of it that leave room enough
        left = _after_larger(other_gpus, gpus, most_gpus, host_gpus)
        workers = np.arange(room_for(gpus, most_gpus, host_gpus) + 1)
        most = np.searchsorted(-left, -workers, side="right") - 1
    most.flags.writeable = False
    return most


def _after_larger(gpus: int, smaller_gpus: int, most_gpus: int, host_gpus: int) -> Ints:
    """Most of the smaller workers on what 0, 1, 2, … of the larger leave."""
    hosts = -(-most_gpus // host_gpus)
    workers = np.arange(room_for(gpus, most_gpus, host_gpus) + 1)
    each = max(host_gpus // gpus, 1)  # of the larger on the hosts that it takes together
    full, some = np.divmod(workers, each)
    taken = -(-gpus // host_gpus) * (full + (some > 0))
    shared = gpus <= host_gpus  # a worker of several hosts shares none of them
    rest = full * ((host_gpus - each * gpus) // smaller_gpus) + np.where(
        some > 0, (host_gpus - some * gpus) // smaller_gpus, 0
    )
    empty = hosts - taken
    alone = (
        empty * (host_gpus // smaller_gpus)
        if smaller_gpus <= host_gpus
        else empty // -(-smaller_gpus // host_gpus)
    )
    left = alone + rest * shared
    return np.asarray(np.minimum(left, (most_gpus - workers * gpus) // smaller_gpus), dtype=np.int64)


def _enough(rate_per_s: float, capacity_per_s: float) -> int:
    """Workers that serve the rate, one at least."""
    return max(int(replicas_for(rate_per_s, capacity_per_s)), 1) if capacity_per_s > 0 else 1


def most_useful(
    options: Sequence[Option],
    capacities_per_s: Sequence[float],
    i: int,
    known: Selection,
    *,
    rate_per_s: float,
    machine_gpus: int = 1,
    spare: int = 0,
) -> int:
    """Most replicas of option i in a fleet that is paid less for than a known one; 0 where none is.

    The other pool of a pair counts with as many workers as its capacity asks for.
    """
    each = options[i].num_gpus
    partners: dict[int, int] = {}
    for j in _of_phase(
        options, {PROMPT_ONLY: OUTPUT_ONLY, OUTPUT_ONLY: PROMPT_ONLY}.get(options[i].phase, "")
    ):
        gpus, count = options[j].num_gpus, replicas_for(rate_per_s, capacities_per_s[j])
        if count < partners.get(gpus, MOST_FLEET_GPUS + 1):
            partners[gpus] = int(count)
    others = [[(gpus, count + spare)] for gpus, count in partners.items()]
    others = others if options[i].phase != WHOLE else [[]]
    cost = known.machines, known.num_gpus
    useful, useless = 0, known.num_gpus // each + 1
    while useless - useful > 1:
        middle = (useful + useless) // 2
        better = any(paid_for([(each, middle + spare), *other], machine_gpus) < cost for other in others)
        useful, useless = (middle, useless) if better else (useful, middle)
    return useful


def machines_for(workers: Sequence[tuple[int, int]], machine_gpus: int) -> int:
    """Whole machines that hold workers, given as pairs of the GPUs of one and their number.

    A worker within a machine shares it, the largest placed first, each where it fits; a larger one has its
    machines to itself (`planner.deployment.placement`).

    >>> [machines_for(workers, 8) for workers in ([(4, 3)], [(3, 1), (4, 1)], [(3, 5)], [(12, 1)])]
    [2, 1, 3, 2]
    """
    alone, free = 0, Counter[int]()  # machines by the GPUs left on them
    for gpus, number in sorted(workers, reverse=True):
        if gpus > machine_gpus:
            alone += -(-gpus // machine_gpus) * number
            continue
        left = number
        for room in sorted(room for room in free if room >= gpus):
            opened = min(free[room], -(-left // (room // gpus)))
            left = _fill(free, room, gpus, opened, left)
        if left > 0:
            opened = -(-left // (machine_gpus // gpus))
            free[machine_gpus] += opened
            _fill(free, machine_gpus, gpus, opened, left)
    return alone + sum(free.values())


def _fill(free: Counter[int], room: int, gpus: int, opened: int, left: int) -> int:
    """Put workers on so many machines with this room; returns how many are left."""
    for _ in range(opened):
        here = min(room // gpus, left)
        free[room] -= 1
        free[room - here * gpus] += 1
        left -= here
    return left


def _merits(
    options: Sequence[Option], capacities_per_s: Sequence[float], simulated: Collection[int]
) -> list[int]:
    """Rank of each option for breaking ties: simulated ones above all others, then by capacity per GPU."""
    per_gpu = [capacity / option.num_gpus for capacity, option in zip(capacities_per_s, options, strict=True)]
    order = sorted(range(len(options)), key=lambda i: (per_gpu[i], -i))
    rank = {i: place for place, i in enumerate(order)}
    return [rank[i] + (len(options) if i in simulated else 0) for i in range(len(options))]


def served_per_s(
    options: Sequence[Option], capacities_per_s: Sequence[float], counts: Mapping[int, int]
) -> float:
    """Requests per second that so many of these replicas serve: those of the slowest phase."""
    by_phase: dict[str, float] = {}
    for i, count in counts.items():
        phase = options[i].phase
        by_phase[phase] = by_phase.get(phase, 0.0) + count * capacities_per_s[i]
    return min(by_phase.values())
