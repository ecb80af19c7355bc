"""The integer program of a fleet: which kind of replica, and how many, from what each can serve.

    choose one kind of whole replica, or one prefill and one decode kind; spare more of each kind chosen
    Σ gpus·(x + spare) ≤ N
    x ≥ ⌈rate/capacity⌉ of every kind chosen, fewest whole machines, then fewest GPUs,
        or most requests a second, of which capacity·x are served in every phase
    machines·G ≥ Σ gpus·(x + spare);   machines ≥ ⌈(x + spare) / ⌊G/gpus⌋⌉ of every kind

Capacities are upper bounds until a simulation has replaced them, so the value found bounds what any fleet
can do, and is exact once the chosen kinds have been simulated (`planner.serving.search`). OR-Tools CP-SAT
solves it, to the end. Two kinds may fit worse than these rows say; the machines on which their workers are
placed are then a row of their own, and the program is solved again. Without a rate capacities are rounded
up, to a billionth of what any fleet serves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from planner.serving.capacity import replicas
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY, WHOLE, Option

MOST_FLEET_GPUS = 4096  # a fleet asked for without a size is looked for up to here
SCALE = 10**9  # the most that any fleet serves, as CP-SAT counts requests per second


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
    spare: int = 0,
) -> Selection | None:
    """Solve the program; None when no fleet of `most_gpus` GPUs can serve the rate.

    Without a rate the requests per second are maximised, with one the machines of `machine_gpus` and then the
    GPUs are minimised. `excluded` combinations of options are not chosen.
    """
    from ortools.sat.python import cp_model

    program = cp_model.CpModel()
    counts = [
        program.new_int_var(0, max(most_gpus // option.num_gpus, 0), f"x{i}")
        for i, option in enumerate(options)
    ]
    chosen = [program.new_bool_var(f"y{i}") for i in range(len(options))]
    for x, y in zip(counts, chosen, strict=True):
        program.add(x >= 1).only_enforce_if(y)
        program.add(x == 0).only_enforce_if(y.negated())
    apart = _one_kind(program, options, chosen)
    for combination in excluded:
        program.add(sum(chosen[i] for i in combination) < len(combination))
    gpus = sum(
        (x + spare * y) * option.num_gpus for x, y, option in zip(counts, chosen, options, strict=True)
    )
    program.add(gpus <= most_gpus)
    whole = _whole_machines(program, options, counts, chosen, machine_gpus, spare, most_gpus)
    if rate_per_s is None:
        served = program.new_int_var(0, 2 * SCALE, "served")
        capacities = _scaled(options, capacities_per_s, most_gpus)
        for phase in (PROMPT_ONLY, OUTPUT_ONLY) if apart is not None else (WHOLE,):
            usable = [i for i, option in enumerate(options) if option.phase in (WHOLE, phase)]
            program.add(served <= sum(counts[i] * capacities[i] for i in usable))
        program.maximize(served * (most_gpus + 1) - gpus)
    else:
        for x, y, capacity in zip(counts, chosen, capacities_per_s, strict=True):
            program.add(x >= int(min(replicas(rate_per_s, capacity), most_gpus + 1))).only_enforce_if(y)
        merits = _merits(options, capacities_per_s, simulated)
        bonus = sum(y * merit for y, merit in zip(chosen, merits, strict=True))
        program.maximize(bonus - (gpus + whole * (most_gpus + 1)) * (2 * sum(merits) + 1))
    while (found := _solved(program, counts, whole, options, capacities_per_s, spare)) is not None:
        if machine_gpus == 1:
            return replace(found, machines=found.num_gpus)
        placed = machines_of(
            [(options[i].num_gpus, n + spare) for i, n in found.counts.items()], machine_gpus
        )
        if rate_per_s is None or placed <= found.machines:
            return replace(found, machines=placed)
        _need_machines(program, counts, whole, found, placed)
    return None


def machines_of(workers: Sequence[tuple[int, int]], machine_gpus: int) -> int:
    """Whole machines that hold workers, given as pairs of the GPUs of one and their number.

    A worker within a machine shares it, the largest placed first, each where it fits; a larger one has its
    machines to itself (`planner.deployment.placement`).

    >>> [machines_of(workers, 8) for workers in ([(4, 3)], [(3, 1), (4, 1)], [(3, 5)], [(12, 1)])]
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


def _whole_machines(
    program: Any,
    options: Sequence[Option],
    counts: Sequence[Any],
    chosen: Sequence[Any],
    machine_gpus: int,
    spare: int,
    most_gpus: int,
) -> Any:
    """The variable that counts whole machines, and the rows below it; 0 where GPUs are had one by one."""
    if machine_gpus == 1:
        return 0
    whole = program.new_int_var(0, most_gpus, "machines")
    taken = [
        -(-option.num_gpus // machine_gpus) * machine_gpus
        if option.num_gpus > machine_gpus
        else option.num_gpus
        for option in options
    ]
    workers = [x + spare * y for x, y in zip(counts, chosen, strict=True)]
    program.add(whole * machine_gpus >= sum(n * gpus for n, gpus in zip(workers, taken, strict=True)))
    for n, gpus in zip(workers, taken, strict=True):
        if gpus < machine_gpus:
            program.add(whole * (machine_gpus // gpus) >= n)
    return whole


def _need_machines(program: Any, counts: Sequence[Any], whole: Any, found: Selection, placed: int) -> None:
    """So many workers, or more, need as many machines as they were placed on."""
    reached = []
    for i, count in found.counts.items():
        enough = program.new_bool_var("")
        program.add(counts[i] <= count - 1).only_enforce_if(enough.negated())
        reached.append(enough)
    program.add(whole >= placed).only_enforce_if(*reached)


def _one_kind(program: Any, options: Sequence[Option], chosen: Sequence[Any]) -> Any:
    """Exactly one whole kind, or one kind of each phase.

    Returns the switch between them (None: no phases offered).
    """
    by_phase = {
        phase: [y for y, option in zip(chosen, options, strict=True) if option.phase == phase]
        for phase in (WHOLE, PROMPT_ONLY, OUTPUT_ONLY)
    }
    if not by_phase[PROMPT_ONLY] or not by_phase[OUTPUT_ONLY]:
        program.add(sum(by_phase[WHOLE]) == 1)
        for y in by_phase[PROMPT_ONLY] + by_phase[OUTPUT_ONLY]:
            program.add(y == 0)
        return None
    apart = program.new_bool_var("apart")
    program.add(sum(by_phase[WHOLE]) + apart == 1)
    program.add(sum(by_phase[PROMPT_ONLY]) == apart)
    program.add(sum(by_phase[OUTPUT_ONLY]) == apart)
    return apart


def _merits(
    options: Sequence[Option], capacities_per_s: Sequence[float], simulated: Collection[int]
) -> list[int]:
    """Rank of each option for breaking ties: simulated ones above all others, then by capacity per GPU."""
    per_gpu = [capacity / option.num_gpus for capacity, option in zip(capacities_per_s, options, strict=True)]
    order = sorted(range(len(options)), key=lambda i: (per_gpu[i], -i))
    rank = {i: place for place, i in enumerate(order)}
    return [rank[i] + (len(options) if i in simulated else 0) for i in range(len(options))]


def _scaled(options: Sequence[Option], capacities_per_s: Sequence[float], most_gpus: int) -> list[int]:
    """Capacities in whole parts of what any one kind serves with all GPUs, rounded up; at most that much."""
    numbers = [most_gpus // option.num_gpus for option in options]
    by_phase: dict[str, float] = {}
    for option, capacity, number in zip(options, capacities_per_s, numbers, strict=True):
        by_phase[option.phase] = max(by_phase.get(option.phase, 0.0), capacity * number)
    apart = min(by_phase.get(PROMPT_ONLY, 0.0), by_phase.get(OUTPUT_ONLY, 0.0))
    top = max(by_phase.get(WHOLE, 0.0), apart)
    return [ceil(min(capacity / top, 1.0) * SCALE) if top > 0 else 0 for capacity in capacities_per_s]


def served_per_s(
    options: Sequence[Option], capacities_per_s: Sequence[float], counts: Mapping[int, int]
) -> float:
    """Requests per second that so many of these replicas serve: those of the slowest phase."""
    by_phase: dict[str, float] = {}
    for i, count in counts.items():
        phase = options[i].phase
        by_phase[phase] = by_phase.get(phase, 0.0) + count * capacities_per_s[i]
    return min(by_phase.values())


def _solved(
    program: Any,
    counts: Sequence[Any],
    whole: Any,
    options: Sequence[Option],
    capacities_per_s: Sequence[float],
    spare: int,
) -> Selection | None:
    """Run the solver, single-threaded so that the same question has the same answer."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    status = solver.solve(program)
    if status == cp_model.INFEASIBLE:
        return None
    if status != cp_model.OPTIMAL:
        raise RuntimeError(f"the program of a fleet was not solved to the end: {solver.status_name(status)}")
    found = {i: int(solver.value(x)) for i, x in enumerate(counts) if solver.value(x) > 0}
    return Selection(
        counts=found,
        rate_per_s=served_per_s(options, capacities_per_s, found),
        num_gpus=sum((count + spare) * options[i].num_gpus for i, count in found.items()),
        machines=int(solver.value(whole)),
        spare=spare,
    )
