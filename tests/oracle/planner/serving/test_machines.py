"""The program of a fleet in whole machines, against counting every fleet and every way to place it."""

from __future__ import annotations

from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from planner.serving.fleet_choice import machines_for, select_fleet
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY, WHOLE

SIZES = (1, 2, 3, 4, 6, 8, 16)  # GPUs of the replicas that are laid out on hosts of eight


@cache
def fewest_machines(left: tuple[tuple[int, int], ...], room: int) -> int:
    """Fewest machines of `room` GPUs for workers (GPUs, number), by trying every filling of the next one."""
    left = tuple((gpus, number) for gpus, number in left if number)
    if not left:
        return 0
    (gpus, number), *rest = sorted(left, reverse=True)
    if gpus > room:
        return -(-gpus // room) * number + fewest_machines(tuple(rest), room)
    ways = product(*(range(min(n, room // g) + 1) for g, n in left))
    fillings = [
        w for w in ways if sum(w) > 0 and sum(k * g for k, (g, _) in zip(w, left, strict=True)) <= room
    ]
    return 1 + min(
        fewest_machines(tuple((g, n - k) for k, (g, n) in zip(w, left, strict=True)), room) for w in fillings
    )


@pytest.mark.parametrize("room", [4, 8])
def test_workers_are_placed_on_the_fewest_machines(room: int) -> None:
    """Every pair of sizes, up to five workers of each: the largest first, where it fits, is the best."""
    for a, b in product(SIZES, SIZES):
        if a >= b:
            for x, y in product(range(1, 6), range(6 if a > b else 1)):
                workers = ((a, x), (b, y)) if a > b else ((a, x),)
                assert machines_for(workers, room) == fewest_machines(workers, room), (workers, room)


def option(gpus: int, phase: str) -> Any:
    """A replica of so many GPUs, which is all that the program asks of one."""
    return SimpleNamespace(num_gpus=gpus, phase=phase)


@pytest.mark.parametrize("seed", range(40))
def test_the_program_rents_what_counting_all_fleets_rents(seed: int) -> None:
    """Fewest machines, then fewest GPUs, of whole replicas and of two pools, with spare workers and without."""
    rng = np.random.default_rng(seed)
    spare, room = int(rng.integers(0, 3)), int(rng.choice([4, 8]))
    kinds = [WHOLE, WHOLE, PROMPT_ONLY, PROMPT_ONLY, OUTPUT_ONLY, OUTPUT_ONLY]
    options = [option(int(rng.choice(SIZES)), phase) for phase in kinds]
    rates = [one.num_gpus * rng.uniform(0.5, 1.5) * (1.6 if one.phase != WHOLE else 1.0) for one in options]
    wanted = {i: int(np.ceil(12.0 / rate)) + spare for i, rate in enumerate(rates)}
    fleets = [(i,) for i in (0, 1)] + list(product((2, 3), (4, 5)))

    def paid(fleet: tuple[int, ...]) -> tuple[int, int]:
        by_size: dict[int, int] = {}
        for i in fleet:
            by_size[options[i].num_gpus] = by_size.get(options[i].num_gpus, 0) + wanted[i]
        gpus = sum(g * n for g, n in by_size.items())
        return fewest_machines(tuple(sorted(by_size.items())), room), gpus

    found = select_fleet(options, rates, most_gpus=512, rate_per_s=12.0, machine_gpus=room, spare=spare)
    assert found is not None
    assert (found.machines, found.num_gpus) == min(paid(fleet) for fleet in fleets)
    assert {i: n + spare for i, n in found.counts.items()} == {i: wanted[i] for i in found.counts}


def test_a_fleet_of_more_gpus_on_fewer_machines_is_the_better_one() -> None:
    """Five of three GPUs are 15 and need three machines of eight; sixteen of one GPU need two."""
    options = [option(3, WHOLE), option(1, WHOLE)]
    found = select_fleet(options, [2.0, 0.625], most_gpus=64, rate_per_s=10.0, machine_gpus=8)
    assert found is not None
    assert (found.counts, found.machines, found.num_gpus) == ({1: 16}, 2, 16)
    alone = select_fleet(options, [2.0, 0.625], most_gpus=64, rate_per_s=10.0)
    assert alone is not None
    assert alone.counts == {0: 5}


@pytest.mark.parametrize("seed", range(40))
def test_a_fleet_of_given_gpus_serves_most_on_the_machines_that_they_are(seed: int) -> None:
    """Every fleet that every way to place it fits into: none of them serves more, with spare workers or without."""
    rng = np.random.default_rng(seed)
    spare, room, hosts = int(rng.integers(0, 2)), int(rng.choice([4, 8])), int(rng.integers(1, 5))
    kinds = [WHOLE, PROMPT_ONLY, PROMPT_ONLY, OUTPUT_ONLY, OUTPUT_ONLY]
    options = [option(int(rng.choice(SIZES)), phase) for phase in kinds]
    rates = [one.num_gpus * rng.uniform(0.5, 1.5) for one in options]
    rates[0] *= 0.5

    def fits(fleet: dict[int, int]) -> bool:
        by_size: dict[int, int] = {}
        for i, count in fleet.items():
            by_size[options[i].num_gpus] = by_size.get(options[i].num_gpus, 0) + count + spare
        gpus = sum(each * count for each, count in by_size.items())
        return gpus <= hosts * room and fewest_machines(tuple(sorted(by_size.items())), room) <= hosts

    counts = range(1, hosts * room + 1)
    fleets = [{0: n} for n in counts]
    fleets += [{i: n, j: m} for i in (1, 2) for j in (3, 4) for n in counts for m in counts]
    served = [
        min(count * rates[i] for i, count in fleet.items())
        for fleet in fleets
        if sum((n + spare) * options[i].num_gpus for i, n in fleet.items()) <= hosts * room and fits(fleet)
    ]
    found = select_fleet(options, rates, most_gpus=hosts * room, rate_per_s=None, host_gpus=room, spare=spare)
    assert (found.rate_per_s if found else 0.0) == pytest.approx(max(served, default=0.0))
    assert found is None or fits(found.counts)
    wanted = 0.7 * max(served, default=1.0)
    asked = select_fleet(
        options, rates, most_gpus=hosts * room, rate_per_s=wanted, host_gpus=room, spare=spare
    )
    assert (asked is not None and fits(asked.counts)) == bool(served)


def test_three_of_eight_gpus_are_two_workers_a_machine() -> None:
    """Ten workers of three GPUs are 30 of 32 and five machines; eight are what four machines hold."""
    found = select_fleet([option(3, WHOLE)], [1.0], most_gpus=32, rate_per_s=None, host_gpus=8)
    assert found is not None
    assert found.counts == {0: 8}
