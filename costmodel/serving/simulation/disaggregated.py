"""Event simulation of a disaggregated fleet: prompts are computed by one pool of workers, outputs by another.

Each worker is a `Replica`; a prompt goes to the prefill worker with the shortest queue, its cache travels,
and it joins the decode worker with the fewest requests. The prefill worker keeps the cache until that one has
admitted the request: decode workers fetch it, or name the place it is sent to, when they have room. Events
come in the order of their times: decode steps up to a finish are one, which a prompt that arrives divides.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from costmodel.serving.deployment import Deployment
from costmodel.serving.memory import kv_bytes_per_token
from costmodel.serving.simulation.load import Load, outputs_of, prompts_of
from costmodel.serving.simulation.replica import Replica
from costmodel.serving.simulation.requests import NEVER, Requests
from costmodel.serving.simulation.scheduler import Scheduler
from costmodel.serving.simulation.simulator import Simulation
from costmodel.serving.simulation.window import Window
from costmodel.serving.step_table import StepTimes
from topology.fabric.hierarchy import p2p_bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """Workers of one phase: how many, their step times and their scheduler."""

    workers: int
    times: StepTimes
    rules: Scheduler

    def requests_of(self, load: Load) -> Requests:
        """What the workers note of the requests of a load."""
        g, block = self.times.tokens_per_step, self.rules.kv_block_tokens
        return Requests.of(load, tokens_per_step=g, block_tokens=block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Time to move a prompt's cache to a decode worker: a latency and the seconds of each token."""

    latency_s: float
    s_per_token: float


class Fleet:
    """The state of two pools and of the requests between them."""

    __slots__ = (
        "_arrived",
        "_closed",
        "_count",
        "_entered",
        "_holder",
        "_late",
        "_load",
        "_looks",
        "_most_late",
        "_ready",
        "_seen",
        "_sent",
        "_ttft_s",
        "_turn",
        "_workers",
        "arrival_s",
        "decode",
        "done",
        "events",
        "prefill",
        "transfer_s",
        "window",
        "window_of_prompts",
    )

    def __init__(
        self,
        prefill: PoolRules,
        decode: PoolRules,
        transfer: Transfer,
        load: Load,
        may_be_late: tuple[float, float] = (NEVER, NEVER),
    ) -> None:
        """Idle pools at time zero and the first arrivals of the load.

        `may_be_late` is a time to first token, seconds, and how many requests may take longer.
        """
        prompts, outputs = prompts_of(load), outputs_of(load)
        computed, decoded = prefill.requests_of(prompts), decode.requests_of(outputs)
        self.prefill = [
            Replica(prefill.times, prefill.rules, computed, keeps=True) for _ in range(prefill.workers)
        ]
        self.decode = [Replica(decode.times, decode.rules, decoded) for _ in range(decode.workers)]
        self._workers = self.prefill + self.decode
        ttft_s, self._most_late = may_be_late
        self._ttft_s = ttft_s - prefill.times.response_s
        self._late = 0
        self.transfer_s = (transfer.latency_s + transfer.s_per_token * load.input_tokens).tolist()
        self._load, self._count, self._closed = load, len(load), bool(load.concurrency)
        self._seen, self._entered, self._turn = ([0] * len(self._workers) for _ in range(3))
        self._holder: dict[int, int] = {}
        self._ready: list[tuple[float, int, int]] = []
        self._looks: set[int] = set()  # decode workers that next see what came
        first = min(load.concurrency, len(load)) if load.concurrency else 0
        self.arrival_s: list[float] = [0.0] * first if load.concurrency else load.arrival_s.tolist()
        late: list[float] = load.lookup_s.tolist() if len(load.lookup_s) else [0.0] * len(self.arrival_s)
        self.events: list[tuple[float, int, bool]] = [
            (at + late[i], i, False) for i, at in enumerate(self.arrival_s)
        ]
        self._sent: list[int] = load.replica.tolist()
        heapify(self.events)
        self.done = self._arrived = 0
        self.window, self.window_of_prompts = Window(load), Window(load)

    @property
    def busy_s(self) -> float:
        """Seconds that the mean worker was busy."""
        return sum(worker.busy_s for worker in self._workers) / len(self._workers)

    @property
    def prefill_busy_s(self) -> float:
        """Seconds that the mean prefill worker was busy."""
        return sum(worker.busy_s for worker in self.prefill) / len(self.prefill)

    def run(self) -> bool:
        """Serve every request; false where more are late than may be, at which it ends."""
        while self.done < self._count:
            if self._late > self._most_late:
                return False
            self._drop_stale()
            earliest_s = self._ready[0][0] if self._ready else NEVER
            if self.events and self.events[0][0] <= earliest_s:
                self._deliver(*heappop(self.events))
            elif self._ready:
                self._step(self._ready[0][1])
        return True

    def _drop_stale(self) -> None:
        """Forget times at which a worker was ready before it changed."""
        ready, turn = self._ready, self._turn
        while ready and ready[0][2] != turn[ready[0][1]]:
            heappop(ready)

    def _changed(self, at: int) -> None:
        """Note when worker `at` has its next event, if it has one."""
        worker, next_s = self._workers[at], 0.0
        if at < len(self.prefill):
            next_s = worker.clock
        elif not worker.idle:
            next_s = worker.next_s()
            self._fetch(at)
            self._collect(at)
        self._note(at, next_s)

    def _note(self, at: int, next_s: float) -> None:
        """Note that worker `at` has its next event at a time, unless it has nothing to do or is blocked."""
        worker = self._workers[at]
        self._turn[at] += 1
        if not worker.idle and not worker.blocked:
            heappush(self._ready, (next_s, at, self._turn[at]))

    def _deliver(self, at_s: float, i: int, prompt_done: bool) -> None:
        """Give a request to the worker its router names, or the least loaded."""
        if not prompt_done:
            self._arrived += 1
            if self._arrived >= self.window.next:
                self._catch_up(at_s)
                self.window.passes(self._arrived, at_s, self.busy_s)
                self.window_of_prompts.passes(self._arrived, at_s, self.prefill_busy_s)
        if self._sent and not prompt_done:
            at = self._sent[i]
        else:
            first = len(self.prefill) if prompt_done else 0
            at = first + _least_loaded(self.decode if prompt_done else self.prefill)
        worker = self._workers[at]
        if worker.idle:
            worker.clock = max(worker.clock, at_s)
            worker.waiting.append(i)
            self._look(at)
        elif prompt_done and worker.may_admit():
            self._decode_until(at, at_s)
            worker.waiting.append(i)
            self._look(at)
        else:
            worker.waiting.append(i)

    def _catch_up(self, at_s: float) -> None:
        """Bring the decode workers to a time, of which only their next events were noted."""
        for at in range(len(self.prefill), len(self._workers)):
            if not self._workers[at].idle:
                self._decode_until(at, at_s)
                self._look(at)

    def _look(self, at: int) -> None:
        """Let worker `at` see what came when its step ends."""
        if at >= len(self.prefill):
            self._looks.add(at)
        self._note(at, self._workers[at].clock)

    def _decode_until(self, at: int, at_s: float) -> None:
        """Take the decode steps of worker `at` that begin before a time."""
        worker = self._workers[at]
        while worker.clock < at_s and not worker.idle:
            worker.advance(at_s)
        self._collect(at)

    def _step(self, at: int) -> None:
        """Advance worker `at`, whose next event is the first, to it, and pass on what it finished."""
        heappop(self._ready)
        if at in self._looks:
            self._looks.remove(at)
        else:
            self._workers[at].advance(self.events[0][0] if at < len(self.prefill) and self.events else NEVER)
            if at >= len(self.prefill):
                self._fetch(at)
            if self._collect(at) and self._closed:  # what they bring comes before who waits is admitted
                self._look(at)
                return
        self._changed(at)

    def _collect(self, at: int) -> int:
        """Pass on what worker `at` has finished since; how many these are."""
        worker, decoding = self._workers[at], at >= len(self.prefill)
        finished = worker.finished[self._seen[at] :]
        self._seen[at] += len(finished)
        for i in finished:
            if not decoding:
                self._holder[i] = at
            self._pass_on(i, worker.finish_s[i], decoding=decoding)
        return len(finished)

    def _fetch(self, at: int) -> None:
        """Free the caches of those that a decode worker has admitted, where they were computed."""
        worker = self._workers[at]
        for i in worker.entered[self._entered[at] :]:
            self._let_go(i, worker.admitted_s[i])
        self._entered[at] = len(worker.entered)

    def _let_go(self, i: int, at_s: float) -> None:
        """Free the cache of a prompt where it was computed."""
        at = self._holder.pop(i)
        self._workers[at].let_go(i, at_s)
        self._changed(at)

    def _pass_on(self, i: int, at_s: float, *, decoding: bool) -> None:
        """A prompt goes to the decode pool; a finished request makes room for the next of a closed loop."""
        if not decoding:
            self._late += at_s - self.arrival_s[i] > self._ttft_s
        if not decoding and self._load.output_tokens[i] > 1:
            heappush(self.events, (at_s + self.transfer_s[i], i, True))
            return
        if not decoding:
            self._let_go(i, at_s)
        self.done += 1
        if self._closed and len(self.arrival_s) < self._count:
            heappush(self.events, (at_s, len(self.arrival_s), False))
            self.arrival_s.append(at_s)


def _least_loaded(pool: list[Replica]) -> int:
    """The worker with the fewest requests; of equals that whose last event was first, then the first."""
    chosen, fewest = 0, pool[0].load
    for at in range(1, len(pool)):
        load = pool[at].load
        if load < fewest or (load == fewest and pool[at].clock < pool[chosen].clock):
            chosen, fewest = at, load
    return chosen


def simulate_pools(prefill: PoolRules, decode: PoolRules, transfer: Transfer, load: Load) -> Simulation:
    """Serve the whole load on a prefill pool and a decode pool; a request waits for admission in both.

    The client sees its first token when the worker that decodes has fetched the cache and has a place for
    the request; of a request of one token, when its prompt is computed.
    """
    fleet = Fleet(prefill, decode, transfer, load)
    fleet.run()
    return _simulation(fleet, prefill, decode, load)


def simulate_pools_unless_late(
    prefill: PoolRules, decode: PoolRules, transfer: Transfer, load: Load, late: tuple[float, float]
) -> Simulation | None:
    """The same, or None as soon as more prompts than `late` lets be are computed after its time."""
    fleet = Fleet(prefill, decode, transfer, load, late)
    return _simulation(fleet, prefill, decode, load) if fleet.run() else None


def _simulation(fleet: Fleet, prefill: PoolRules, decode: PoolRules, load: Load) -> Simulation:
    """What both pools did, once all is served."""
    first, last = np.asarray(fleet.prefill[0].finish_s), np.asarray(fleet.decode[0].finish_s)
    single = load.output_tokens == 1
    steps = np.array(
        [step for worker in fleet.decode for step in worker.steps] or [(0.0, 0, 0, 0.0)], dtype=float
    )
    workers = fleet.prefill + fleet.decode
    finish = np.where(single, first, last)
    entered, fetched = (np.asarray(pool[0].admitted_s) for pool in (fleet.prefill, fleet.decode))
    waited = np.where(single, 0.0, fetched - (first + np.asarray(fleet.transfer_s)))
    seen = np.where(single, first + prefill.times.response_s, fetched + decode.times.response_s)
    end_s = float(finish.max())
    busy_s, window_s = fleet.window.closed(fleet.busy_s, end_s)
    prompts_s, _ = fleet.window_of_prompts.closed(fleet.prefill_busy_s, end_s)
    peak_kv = max(worker.peak_kv for worker in fleet.decode)
    places = float(steps[:, 2].max()) / decode.rules.max_batch
    return Simulation(
        arrival_s=np.asarray(fleet.arrival_s),
        first_token_s=np.minimum(seen, finish),
        finish_s=finish,
        admitted_s=entered + waited,
        output_tokens=load.output_tokens,
        step_s=steps[:, 0],
        step_count=steps[:, 1],
        step_batch=steps[:, 2],
        step_end_s=steps[:, 3],
        preemptions=sum(worker.preemptions for worker in workers),
        restarts=sum(worker.restarts for worker in workers),
        prefilled_tokens=sum(worker.prefilled_tokens for worker in workers),
        peak_kv_tokens=peak_kv,
        busy_s=busy_s,
        window_s=window_s,
        prefill_busy_s=prompts_s,
        prefill_work_s=fleet.prefill_busy_s,
        decode_filled=max(places, peak_kv / decode.rules.kv_capacity_tokens),
        filling=load.filling,
    )


def sent_bytes_per_token(prompts: Deployment, outputs: Deployment) -> float:
    """Bytes of a token's cache that a GPU of the narrower replica sends."""
    tp = prompts.layout.tp
    return kv_bytes_per_token(prompts) * tp / min(tp, outputs.layout.tp)


def transfer_of(prompts: Deployment, outputs: Deployment) -> Transfer:
    """Time to move a prompt's cache between pools.

    Every GPU of the narrower replica sends its share over its own link.

    t = latency + tokens·(bytes of a token on a prefill GPU)·tp_prefill/min(tp_prefill, tp_decode)/p2p rate
    """
    h, per_gpu = prompts.hierarchy, sent_bytes_per_token(prompts, outputs)
    apart = h.gpus_per_node if h.num_gpus > h.gpus_per_node else 1
    return Transfer(latency_s=prompts.stack.transfer_s, s_per_token=per_gpu / float(p2p_bandwidth(h, apart)))
