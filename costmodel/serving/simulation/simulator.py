"""Event simulation of one replica under a load: from step times to latencies.

Open loads arrive at their times; in a closed loop the next request is sent when one finishes. The replica
itself, with what its scheduler does, is in `costmodel.serving.simulation.replica`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from costmodel.serving.simulation.load import Load, thin
from costmodel.serving.simulation.open_run import OpenRun
from costmodel.serving.simulation.replica import Replica
from costmodel.serving.simulation.requests import NEVER
from costmodel.serving.simulation.scheduler import Scheduler
from costmodel.serving.simulation.window import Window
from costmodel.serving.step_table import StepTimes
from topology.base.arrays import Floats
from topology.base.errors import InputError

GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What one simulated replica did; arrays are per request, `step_*` per jump of equal steps.

    `restarts` are those of the `preemptions` that met a prompt half computed. Of several `replicas` that were
    simulated apart requests are in their common order, and `busy_s` is that of the mean replica. It is of the
    `window_s` in which an open load that `filling` requests have filled it arrives, or of the whole run;
    `prefill_busy_s` is that of the mean prefill worker of two pools, `prefill_work_s` the same of the whole
    run, `decode_filled` the share of its places, or of its cache, that the fullest decode worker had in use.
    """

    arrival_s: Floats
    first_token_s: Floats
    finish_s: Floats
    output_tokens: NDArray[np.int64]
    step_s: Floats
    step_count: Floats
    step_batch: Floats
    step_end_s: Floats
    preemptions: int
    restarts: int
    prefilled_tokens: int
    peak_kv_tokens: float
    busy_s: float
    window_s: float
    admitted_s: Floats
    replicas: int = 1
    filling: int = 0
    prefill_busy_s: float = 0.0
    prefill_work_s: float = 0.0
    decode_filled: float = 1.0

    @property
    def ttft_s(self) -> Floats:
        """Time to first token of each request."""
        return self.first_token_s - self.arrival_s

    @property
    def end_to_end_s(self) -> Floats:
        """Time from arrival to last token of each request."""
        return self.finish_s - self.arrival_s

    @property
    def tpot_s(self) -> Floats:
        """Mean time per output token after the first; not a number for requests of one token."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(
                (self.finish_s - self.first_token_s)
                / np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
            )

    @property
    def makespan_s(self) -> float:
        """Time of the last token."""
        return float(self.finish_s.max())

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens per second of the replica over the whole run."""
        return float(self.output_tokens.sum()) / self.makespan_s

    @property
    def utilisation(self) -> float:
        """Share of the window in which a pipeline stage computed, averaged over the stages."""
        return self.busy_s / self.window_s

    @property
    def prefill_utilisation(self) -> float:
        """Share of the window in which the mean prefill worker computed; 0 where prompts have no pool."""
        return self.prefill_busy_s / self.window_s

    @property
    def mean_queue(self) -> float:
        """Requests waiting for admission at a replica, averaged over the window."""
        waited = (self.admitted_s - self.arrival_s)[self.filling :]
        return float(waited.sum()) / self.window_s / self.replicas

    @property
    def mean_batch(self) -> float:
        """Requests that decode in a step, averaged over the steps of the window."""
        count = self.step_count
        if self.filling:
            end_s, (first, last) = self.step_end_s, self.arrival_s[[self.filling, -1]]
            inside = np.where((end_s >= first) & (end_s <= last), count, 0.0)
            count = inside if inside.any() else count
        return float((self.step_batch * count).sum()) / max(float(count.sum()), 1.0)


def simulate(times: StepTimes, rules: Scheduler, load: Load) -> Simulation:
    """Serve the whole load on one replica and return when every request got its first and last token.

    Open loads arrive at their times; in a closed loop the next request is sent when one finishes.
    Every request is served and every token counted exactly once (property-tested).
    """
    simulation = _simulated(times, rules, load, lambda _: True)
    if simulation is None:
        raise RuntimeError("a simulation that nothing ends has no end")
    return simulation


def simulate_apart(times: StepTimes, rules: Scheduler, load: Load, replicas: int) -> Simulation:
    """Serve an open load on replicas to which a router has sent its requests, each simulated with its own."""
    of_each = [np.flatnonzero(load.replica == which) for which in range(replicas)]
    busy = [which for which in range(replicas) if len(of_each[which])]
    runs = [simulate(times, rules, thin(load, replicas, which)) for which in busy]
    order = np.argsort(np.concatenate([of_each[which] for which in busy]), kind="stable")

    def joined(name: str) -> Floats:
        return np.concatenate([getattr(run, name) for run in runs])

    per_request = ("arrival_s", "first_token_s", "finish_s", "admitted_s")
    per_step = ("step_s", "step_count", "step_batch", "step_end_s")
    return Simulation(
        **{name: joined(name)[order] for name in per_request},
        **{name: joined(name) for name in per_step},
        output_tokens=load.output_tokens,
        preemptions=sum(run.preemptions for run in runs),
        restarts=sum(run.restarts for run in runs),
        prefilled_tokens=sum(run.prefilled_tokens for run in runs),
        peak_kv_tokens=max(run.peak_kv_tokens for run in runs),
        busy_s=sum(run.busy_s for run in runs) / replicas,
        window_s=max(run.makespan_s for run in runs),
        prefill_busy_s=0.0,
        prefill_work_s=0.0,
        decode_filled=1.0,
        replicas=replicas,
        filling=0,
    )


def simulate_while(
    times: StepTimes, rules: Scheduler, load: Load, hopeful: Callable[[Replica], bool]
) -> Simulation | None:
    """The same, or None as soon as it is no longer hopeful, which is asked now and then in an open load.

    Steps are left out: whoever asks whether limits hold looks at requests.
    """
    return _simulated(times, rules, load, hopeful, stepwise=False)


def admissions(times: StepTimes, rules: Scheduler, load: Load, until_s: float) -> tuple[Floats, Floats]:
    """When each request of an open load reaches one replica, and when it is admitted, if before a time.

    Of the others some are never: what happens later is not followed.
    """
    _check_fits(times, rules, load)
    order, sent_s = _sent_openly(load, outside_s(times.request_s, len(load)))
    run = OpenRun(times, rules, load)
    run.serve(order, sent_s, Window(load), lambda seen: seen.clock < until_s, stepwise=False)
    reached_s = np.empty(len(load))
    reached_s[order] = sent_s[:-1]
    return reached_s, np.asarray(run.admitted_s)


def simulate_loop_while(
    times: StepTimes, rules: Scheduler, load: Load, hopeful: Callable[[Replica, Sequence[float]], bool]
) -> Simulation | None:
    """A closed loop to its end, or None as soon as it is no longer hopeful, which is asked at every finish.

    Args:
        times: Of steps.
        rules: The scheduler.
        load: Requests, of which a constant number is in flight.
        hopeful: Is handed the replica and the times at which its requests were sent.
    """
    return _simulated(times, rules, load, lambda _: True, hopeful_in_loop=hopeful)


def _simulated(
    times: StepTimes,
    rules: Scheduler,
    load: Load,
    hopeful: Callable[[Replica], bool],
    *,
    stepwise: bool = True,
    hopeful_in_loop: Callable[[Replica, Sequence[float]], bool] = lambda _replica, _sent: True,
) -> Simulation | None:
    """Serve the load as long as that is hopeful; with what each jump of equal steps was, where asked."""
    _check_fits(times, rules, load)
    outside, window = outside_s(times.request_s, len(load)), Window(load)
    replica: Replica
    if load.concurrency:
        replica = Replica(times, rules, load)
        sent_s = _drive_closed(replica, load, outside, hopeful_in_loop, rules.polling_steps)
        if sent_s is None:
            return None
        arrival_s: Sequence[float] | Floats = sent_s
    else:
        replica = run = OpenRun(times, rules, load)
        if not run.serve(*_sent_openly(load, outside), window, hopeful, stepwise=stepwise):
            return None
        arrival_s = load.arrival_s
    finish_s = np.asarray(replica.finish_s)
    steps = np.array((replica.steps if stepwise else []) or [(0.0, 0, 0, 0.0)], dtype=float)
    busy_s, window_s = window.closed(replica.busy_s, float(finish_s.max()))
    return Simulation(
        arrival_s=np.asarray(arrival_s),
        first_token_s=np.minimum(np.asarray(replica.first_token_s) + times.response_s, finish_s),
        finish_s=finish_s,
        admitted_s=np.asarray(replica.admitted_s),
        output_tokens=load.output_tokens,
        step_s=steps[:, 0],
        step_count=steps[:, 1],
        step_batch=steps[:, 2],
        step_end_s=steps[:, 3],
        preemptions=replica.preemptions,
        restarts=replica.restarts,
        prefilled_tokens=replica.prefilled_tokens,
        peak_kv_tokens=replica.peak_kv,
        busy_s=busy_s,
        window_s=window_s,
        filling=load.filling,
    )


def _sent_openly(load: Load, outside: Floats) -> tuple[list[int], list[float]]:
    """Numbers of the requests as they reach the engine, each after its time outside, and when; then never."""
    ready = load.arrival_s + outside + (load.lookup_s if len(load.lookup_s) else 0.0)
    order = np.argsort(ready, kind="stable")
    return order.tolist(), [*ready[order].tolist(), NEVER]


def _drive_closed(
    replica: Replica,
    load: Load,
    outside: Floats,
    hopeful: Callable[[Replica, Sequence[float]], bool],
    polling_steps: int = 1,
) -> list[float] | None:
    """Keep `concurrency` requests in flight: a finished request sends the next one.

    An engine that looks for requests every n decode steps finds those that came between two looks together.
    """
    count, seen, look, computed = len(load), 0, 0, 0
    delay: list[float] = outside.tolist()
    arrival_s = [0.0] * min(load.concurrency or 1, count)
    upcoming = [(delay[i], i) for i in range(len(arrival_s))]
    heapify(upcoming)
    while len(replica.finished) < count:
        looks = not replica.decoding or replica.decode_steps >= look or replica.prefilled_tokens > computed
        if polling_steps > 1 and looks:
            look, computed = replica.decode_steps + polling_steps, replica.prefilled_tokens
        while looks and upcoming and upcoming[0][0] <= replica.clock:
            replica.waiting.append(heappop(upcoming)[1])
        next_s, most = upcoming[0][0] if upcoming else NEVER, None
        if polling_steps > 1:  # a request that is not looked for yet ends no jump
            next_s, most = NEVER if next_s <= replica.clock else next_s, look - replica.decode_steps
        replica.advance(next_s, most_steps=most)
        for i in replica.finished[seen:]:
            if len(arrival_s) < count:
                heappush(upcoming, (replica.finish_s[i] + delay[len(arrival_s)], len(arrival_s)))
                arrival_s.append(replica.finish_s[i])
        if len(replica.finished) > seen and not hopeful(replica, arrival_s):
            return None
        seen = len(replica.finished)
    return arrival_s


def outside_s(request_s: float, count: int) -> Floats:
    """Seconds from sending a request until the engine has it.

    0…2·request_s, spread evenly by a golden-ratio sequence.

    Tokenising and routing take different times; without that spread, requests of equal length that finish
    in the same step would be sent, admitted and finished together for ever.
    """
    return np.asarray(2 * request_s * ((np.arange(count) * GOLDEN) % 1.0), dtype=np.float64)


def _check_fits(times: StepTimes, rules: Scheduler, load: Load) -> None:
    """Refuse a load with a request that could never be admitted, and tables shorter than the batch."""
    block = rules.kv_block_tokens
    longest = int((load.input_tokens + load.output_tokens).max()) + block
    if longest > rules.kv_capacity_tokens:
        raise InputError(
            what="the KV cache cannot hold one request",
            cause=f"one needs {longest} tokens, the cache holds {rules.kv_capacity_tokens}",
            fix="use more GPUs per replica, a smaller weight precision or an fp8 KV cache",
        )
    if rules.max_batch > times.max_batch:
        raise InputError(
            what="the step times do not cover the batch",
            cause=f"up to {rules.max_batch} requests, step times for {times.max_batch}",
            fix="tabulate step times for the scheduler's largest batch",
        )
