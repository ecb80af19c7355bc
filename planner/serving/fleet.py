"""The chosen fleet under its load: what the whole of it does, whole replicas or two pools.

Whole replicas are alike and share the load evenly, so one of them is simulated with its share; two pools
are simulated together, because a finished prompt is an arrival of the other pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import gcd

import numpy as np

from costmodel.serving.memory import host_cache_tokens, host_read_s_per_token
from costmodel.serving.simulation.disaggregated import (
    PoolRules,
    Transfer,
    simulate_pools,
    simulate_pools_unless_late,
    transfer_of,
)
from costmodel.serving.simulation.load import Load, thin
from costmodel.serving.simulation.prefix_cache import Hits, prefix_hits, routed
from costmodel.serving.simulation.simulator import Simulation, admissions, simulate, simulate_apart
from planner.serving.backlog import admissions_of, keeps_up
from planner.serving.capacity import (
    Loops,
    after_warm_up,
    broken_limits,
    closed_run,
    closed_run_unless_late,
    counted_in_loop,
    filled_load,
    load_at,
    load_of_loop,
    requests_in_flight,
    with_queue,
)
from planner.serving.fleet_choice import Selection, machines_for
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY, WHOLE, Option

FILLED = (
    1300.0  # requests in flight up to which pools are filled; each of more workers was, when it was alone
)
LOADS = 5  # that are drawn for the interval of a latency
STUDENT = 2.776  # of four degrees of freedom, 95 % between both ends


def _in_step_with_its_clients() -> bool:
    """A closed loop sends when something ended; by name, so that another process can send a run back."""
    return True


@dataclass(frozen=True, kw_only=True)
class FleetRun:
    """A simulated fleet: the replicas, the simulation of one of them (or of both pools).

    And the rate of the fleet. Spare workers are in `num_gpus` alone: what is simulated is the fleet without.
    `limits` names those that it breaks (ttft, tpot, end_to_end), and `keeps_up` tells whether its backlog
    does not grow without end. `hits` are what its caches were found to have, where they were followed.
    `request_rate_per_s` is what is sent, of a trace what its replay finished (`finished`).
    """

    selection: Selection
    decode: Option
    decode_workers: int
    prefill: Option | None
    prefill_workers: int
    simulation: Simulation
    request_rate_per_s: float
    limits: tuple[str, ...] = ()
    keeps_up: Callable[[], bool] = _in_step_with_its_clients
    hits: Hits | None = None
    finished: bool = False

    @cached_property
    def steady(self) -> bool:
        """Whether the backlog does not grow without end."""
        return self.keeps_up()

    @cached_property
    def kept(self) -> bool:
        """Whether every limit holds and the backlog does not grow without end."""
        return not self.limits and self.steady

    @property
    def completed_per_s(self) -> float:
        """Requests a second that get through: all that are sent, or as many as end while the queue is full.

        Those of the middle four fifths of a load that is sent once: before it fills, after it drains.
        """
        if self.finished or self.steady:
            return self.request_rate_per_s
        ends_s = np.quantile(self.simulation.finish_s, (0.1, 0.9))
        sent_s = float(self.simulation.arrival_s[-1] - self.simulation.arrival_s[0])
        return self.request_rate_per_s * min(0.8 * sent_s / float(ends_s[1] - ends_s[0]), 1.0)

    @property
    def broken(self) -> tuple[str, ...]:
        """What it does not keep: limits, or "queue" where nothing but the backlog's growth is in the way."""
        return () if self.kept else self.limits or ("queue",)

    @property
    def num_gpus(self) -> int:
        """GPUs of all workers."""
        prompts = self.prefill.num_gpus * self.prefill_workers if self.prefill else 0
        spare = sum(pool.num_gpus for pool in (self.decode, self.prefill) if pool) * self.selection.spare
        return self.decode.num_gpus * self.decode_workers + prompts + spare

    def machines(self, machine_gpus: int) -> int:
        """Whole machines of so many GPUs that the workers, spare ones too, are placed on."""
        pools = [(self.decode, self.decode_workers), (self.prefill, self.prefill_workers)]
        spare = self.selection.spare
        return machines_for(
            [(pool.num_gpus, n + spare) for pool, n in pools if pool is not None], machine_gpus
        )


def run_fleet(
    options: Sequence[Option],
    selection: Selection,
    rate_per_s: float | None,
    trace: Load | None = None,
    *,
    seed: int = 0,
) -> FleetRun:
    """Simulate the selection at the rate asked for, or at what it is believed to serve."""
    rate = rate_per_s if rate_per_s is not None else selection.rate_per_s
    chosen = {options[i].phase: (options[i], count) for i, count in selection.counts.items()}
    if WHOLE in chosen:
        option, count = chosen[WHOLE]
        hits = _hits(option, count, trace)
        if hits is not None and trace is not None:
            load = routed(trace, hits, s_per_host_token=_read_s(option))
            serve = partial(simulate_apart, option.times, option.rules, replicas=count)
            admitted = admissions_of(serve)
        else:
            load = thin(trace, count) if trace is not None else load_at(option, rate / count, seed=seed)
            serve = partial(simulate, option.times, option.rules)
            admitted = partial(admissions, option.times, option.rules)
        simulation = serve(load)
        return FleetRun(
            selection=selection,
            decode=option,
            decode_workers=count,
            prefill=None,
            prefill_workers=0,
            simulation=simulation,
            request_rate_per_s=rate,
            limits=broken_limits(option, simulation),
            keeps_up=partial(keeps_up, load, simulation, admitted),
            hits=hits,
        )
    (prompts, prompt_count), (outputs, output_count) = chosen[PROMPT_ONLY], chosen[OUTPUT_ONLY]
    return run_pools(selection, (prompts, prompt_count), (outputs, output_count), rate, trace, seed=seed)


def run_pools(
    selection: Selection,
    prompts: tuple[Option, int],
    outputs: tuple[Option, int],
    rate: float,
    trace: Load | None = None,
    *,
    seed: int = 0,
) -> FleetRun:
    """Simulate a prefill pool and a decode pool together, of one kind of GPU or of two."""
    (prefill, prefill_workers), (decode, decode_workers) = prompts, outputs
    at_work = decode_workers * requests_in_flight(decode, rate / decode_workers)
    load = trace if trace is not None else filled_load(decode.job, rate, min(at_work, FILLED), seed=seed)
    hits = _hits(prefill, prefill_workers, trace)
    if hits is not None:
        load = routed(load, hits, s_per_host_token=_read_s(prefill))
    serve = partial(simulate_pools, *_pools_of(prompts, outputs))
    simulation = serve(load)
    return FleetRun(
        selection=selection,
        decode=decode,
        decode_workers=decode_workers,
        prefill=prefill,
        prefill_workers=prefill_workers,
        simulation=simulation,
        request_rate_per_s=rate,
        limits=broken_limits(replace(decode, phase=WHOLE), simulation),
        keeps_up=partial(keeps_up, load, simulation, admissions_of(serve)),
        hits=hits,
    )


def _pools_of(
    prompts: tuple[Option, int], outputs: tuple[Option, int]
) -> tuple[PoolRules, PoolRules, Transfer]:
    """So many workers of both pools, and the time to move a cache between them."""
    (prefill, prefill_workers), (decode, decode_workers) = prompts, outputs
    return (
        PoolRules(workers=prefill_workers, times=prefill.times, rules=prefill.rules),
        PoolRules(workers=decode_workers, times=decode.times, rules=decode.rules),
        transfer_between(prefill, decode),
    )


def run_closed_pools(
    counts: Mapping[int, int], prompts: tuple[Option, int], outputs: tuple[Option, int], concurrency: int
) -> FleetRun:
    """Simulate a prefill and a decode pool that share a constant number of requests in flight."""
    run = _run_pools_in_loop(counts, prompts, outputs, concurrency, None)
    if run is None:
        raise RuntimeError("nothing ends a simulation that no limit is asked of")
    return run


def run_closed_pools_unless_late(
    counts: Mapping[int, int], prompts: tuple[Option, int], outputs: tuple[Option, int], concurrency: int
) -> FleetRun | None:
    """The same, or None where a limit breaks, mostly long before the end of the simulation."""
    run = _run_pools_in_loop(counts, prompts, outputs, concurrency, outputs[0].job.ttft_s)
    return run if run is not None and run.kept else None


def _run_pools_in_loop(
    counts: Mapping[int, int],
    prompts: tuple[Option, int],
    outputs: tuple[Option, int],
    concurrency: int,
    ttft_s: float | None,
) -> FleetRun | None:
    """A closed loop of both pools; those that consist of equal parts by one part with its share of it."""
    (prefill, prefill_workers), (decode, decode_workers) = prompts, outputs
    parts = gcd(prefill_workers, decode_workers)
    each = _of_each(concurrency, parts)
    most = decode.rules.max_batch * decode_workers // parts
    load = load_of_loop(decode.job, most, each)
    part = (prefill, prefill_workers // parts), (decode, decode_workers // parts)
    counted = counted_in_loop(most, each)
    pools, percentile = _pools_of(*part), decode.job.percentile
    if ttft_s is None or each > most:
        simulation = simulate_pools(*pools, load)
    else:
        late = ttft_s, (1 - percentile / 100) * len(load) + 1
        known = simulate_pools_unless_late(*pools, load, late)
        if known is None:
            return None
        simulation = known
    simulation = with_queue(most, each, simulation)
    rate = concurrency / float(np.mean(simulation.end_to_end_s[counted]))
    gpus = prefill_workers * prefill.num_gpus + decode_workers * decode.num_gpus
    return FleetRun(
        selection=Selection(counts=dict(counts), rate_per_s=rate, num_gpus=gpus),
        decode=decode,
        decode_workers=decode_workers,
        prefill=prefill,
        prefill_workers=prefill_workers,
        simulation=simulation,
        request_rate_per_s=rate,
        limits=_broken_in_loop(decode, simulation, counted),
    )


def drawn_anew(run: FleetRun) -> Mapping[str, tuple[float, float]]:
    """Latencies at the job's percentile over loads drawn anew: 95 % intervals of their mean, by limit.

    mean ± t·s/√n of n loads of the same rate and lengths, t of n − 1 degrees of freedom.
    """
    pools = [(run.decode, run.decode_workers)]
    pools += [(run.prefill, run.prefill_workers)] if run.prefill is not None else []
    counts = {i: workers for i, (_, workers) in enumerate(pools)}
    selection = Selection(counts=counts, rate_per_s=run.request_rate_per_s, num_gpus=run.num_gpus)
    options = [option for option, _ in pools]
    runs_anew = (run_fleet(options, selection, run.request_rate_per_s, seed=seed) for seed in range(1, LOADS))
    latencies = [_at_percentile(drawn) for drawn in (run, *runs_anew)]
    intervals = {}
    for name in latencies[0]:
        each = np.array([of_run[name] for of_run in latencies])
        half = STUDENT * float(each.std(ddof=1)) / LOADS**0.5
        intervals[name] = (float(each.mean()) - half, float(each.mean()) + half)
    return intervals


def _at_percentile(run: FleetRun) -> dict[str, float]:
    """Latencies of a run at the job's percentile after its warm-up, by limit, seconds."""
    steady, level = after_warm_up(run.simulation), run.decode.job.percentile
    latencies = {"ttft": run.simulation.ttft_s, "end_to_end": run.simulation.end_to_end_s}
    if run.decode.job.output_tokens > 1:
        latencies["tpot"] = run.simulation.tpot_s
    return {name: float(np.nanpercentile(values[steady], level)) for name, values in latencies.items()}


def _hits(option: Option, workers: int, trace: Load | None) -> Hits | None:
    """What the caches of the workers that compute prompts have of a trace; None where none are counted."""
    if trace is None or not trace.router:
        return None
    context = option.job.input_tokens + option.job.output_tokens
    return prefix_hits(
        trace,
        replicas=workers,
        capacity_tokens=option.rules.kv_capacity_tokens,
        policy=trace.router,
        host_tokens=host_cache_tokens(option.deployment, context),
    )


def _read_s(option: Option) -> float:
    """Seconds to read a token's cache back from the host; 0 where none is kept there."""
    if not option.deployment.host_cache_bytes:
        return 0.0
    return host_read_s_per_token(option.deployment, option.job.input_tokens + option.job.output_tokens)


def transfer_between(prefill: Option, decode: Option) -> Transfer:
    """Time to move a prompt's cache; between two kinds of GPU at the slower of both networks."""
    prompts, outputs = prefill.deployment, decode.deployment
    there = transfer_of(prompts, outputs)
    if prompts.hierarchy == outputs.hierarchy:
        return there
    here = transfer_of(replace(prompts, hierarchy=outputs.hierarchy), outputs)
    return max(there, here, key=lambda transfer: transfer.s_per_token)


def run_closed(option: Option, count: int, concurrency: int, *, which: int) -> FleetRun:
    """Simulate `count` replicas of option `which` that share a constant number of requests in flight."""
    each = _of_each(concurrency, count)
    return _run_of_loop(option, count, concurrency, which, closed_run(option, each))


def run_closed_unless_late(
    option: Option, count: int, concurrency: int, *, which: int, loops: Loops | None = None
) -> FleetRun | None:
    """The same, or None where a limit breaks, mostly long before the end of the simulation.

    `loops` has what was simulated of this option before.
    """
    simulation = closed_run_unless_late(option, _of_each(concurrency, count), loops)
    run = None if simulation is None else _run_of_loop(option, count, concurrency, which, simulation)
    return run if run is not None and run.kept else None


def _of_each(concurrency: int, count: int) -> int:
    """Requests in flight in the fullest of so many replicas."""
    return max(-(-concurrency // count), 1)


def _run_of_loop(
    option: Option, count: int, concurrency: int, which: int, simulation: Simulation
) -> FleetRun:
    """The run of replicas of which one is simulated in a closed loop."""
    counted = counted_in_loop(option.rules.max_batch, _of_each(concurrency, count))
    stay = float(np.mean(simulation.end_to_end_s[counted]))
    return FleetRun(
        selection=Selection(
            counts={which: count}, rate_per_s=concurrency / stay, num_gpus=count * option.num_gpus
        ),
        decode=option,
        decode_workers=count,
        prefill=None,
        prefill_workers=0,
        simulation=simulation,
        request_rate_per_s=concurrency / stay,
        limits=_broken_in_loop(option, simulation, counted),
    )


def _broken_in_loop(option: Option, simulation: Simulation, counted: slice) -> tuple[str, ...]:
    """The limits that these requests of a closed loop (which is always stable) break."""
    job = option.job
    limits = (
        ("ttft", simulation.ttft_s, job.ttft_s),
        ("tpot", simulation.tpot_s, job.tpot_s if job.output_tokens > 1 else None),
        ("end_to_end", simulation.end_to_end_s, job.end_to_end_s),
    )
    return tuple(
        name
        for name, values, limit in limits
        if limit is not None and not float(np.nanpercentile(values[counted], job.percentile)) <= limit
    )
