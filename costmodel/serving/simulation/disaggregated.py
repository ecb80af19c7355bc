"""Event simulation of a disaggregated fleet: prompts are computed by one pool of workers, outputs by another.

Each worker is a `Replica`; a prompt goes to the prefill worker with the shortest queue, its cache travels,
and it joins the decode worker with the fewest requests. The prefill worker keeps the cache until that one has
admitted the request: decode workers fetch it, or name the place it is sent to, when they have room. Workers
advance in the order of their clocks, and none runs past the time at which another could send it something.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from costmodel.serving.deployment import Deployment
from costmodel.serving.memory import kv_bytes_per_token
from costmodel.serving.simulation.load import Load
from costmodel.serving.simulation.replica import NEVER, Replica, Scheduler
from costmodel.serving.simulation.simulator import Simulation
from costmodel.serving.step_table import StepTimes
from topology.fabric.hierarchy import p2p_bandwidth

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """Workers of one phase: how many, their step times and their scheduler."""

    workers: int
    times: StepTimes
    rules: Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Time to move a prompt's cache to a decode worker: a latency and the seconds of each token."""

    latency_s: float
    s_per_token: float


class Fleet:
    """The state of two pools and of the requests between them."""

    __slots__ = (
        "_closed",
        "_count",
        "_decoders",
        "_entered",
        "_holder",
        "_latency_s",
        "_load",
        "_seen",
        "_sent",
        "_transfer",
        "_workers",
        "arrival_s",
        "decode",
        "done",
        "events",
        "prefill",
    )

    def __init__(self, prefill: PoolRules, decode: PoolRules, transfer: Transfer, load: Load) -> None:
        """Idle pools at time zero and the first arrivals of the load."""
        ones = np.ones(len(load), dtype=np.int64)
        prompts = Load(
            input_tokens=load.input_tokens,
            output_tokens=ones,
            cached_tokens=load.cached_tokens,
            arrival_s=load.arrival_s,
        )
        outputs = Load(
            input_tokens=load.input_tokens,
            output_tokens=load.output_tokens,
            cached_tokens=load.input_tokens,
            arrival_s=load.arrival_s,
        )
        self.prefill = [
            Replica(prefill.times, prefill.rules, prompts, keeps=True) for _ in range(prefill.workers)
        ]
        self.decode = [Replica(decode.times, decode.rules, outputs) for _ in range(decode.workers)]
        self._workers = self.prefill + self.decode
        self._decoders = frozenset(map(id, self.decode))
        self._latency_s = transfer.latency_s
        self._transfer = (transfer.latency_s + transfer.s_per_token * load.input_tokens).tolist()
        self._load, self._count, self._closed = load, len(load), bool(load.concurrency)
        self._seen = dict.fromkeys(map(id, self._workers), 0)
        self._entered = dict.fromkeys(map(id, self.decode), 0)
        self._holder: dict[int, Replica] = {}
        first = min(load.concurrency, len(load)) if load.concurrency else 0
        self.arrival_s: list[float] = [0.0] * first if load.concurrency else load.arrival_s.tolist()
        late: list[float] = load.lookup_s.tolist() if len(load.lookup_s) else [0.0] * len(self.arrival_s)
        self.events: list[tuple[float, int, bool]] = [
            (at + late[i], i, False) for i, at in enumerate(self.arrival_s)
        ]
        self._sent: list[int] = load.replica.tolist()
        heapify(self.events)
        self.done = 0

    def run(self) -> None:
        """Serve every request."""
        earliest, next_s = self._earliest()
        while self.done < self._count:
            if self.events and (earliest is None or self.events[0][0] <= earliest.clock):
                if self._deliver(*heappop(self.events)):
                    earliest, next_s = self._earliest()
            elif earliest is not None:
                self._step(earliest, next_s)
                earliest, next_s = self._earliest()

    def _earliest(self) -> tuple[Replica | None, float]:
        """The worker whose next event comes first, None when none has one, and the clock of the one after."""
        first, first_s, next_s = None, NEVER, NEVER
        for worker in self._workers:
            clock = worker.clock
            if clock < next_s and not worker.idle and not worker.blocked:
                if clock < first_s:
                    first, first_s, next_s = worker, clock, first_s
                else:
                    next_s = clock
        return first, next_s

    def _deliver(self, at_s: float, i: int, prompt_done: bool) -> bool:
        """Give a request to the worker its router names, or the least loaded; whether that was idle."""
        if self._sent and not prompt_done:
            worker = self.prefill[self._sent[i]]
        else:
            pool = self.decode if prompt_done else self.prefill
            worker = min(pool, key=lambda candidate: (candidate.load, candidate.clock))
        idle = worker.idle
        if idle:
            worker.clock = max(worker.clock, at_s)
        worker.waiting.append(i)
        return idle

    def _step(self, worker: Replica, next_s: float) -> None:
        """Advance one worker by an event, and pass on what it finished; no other has one before `next_s`."""
        decoding = id(worker) in self._decoders
        horizon = self.events[0][0] if self.events else NEVER
        if decoding:
            horizon = min(horizon, next_s + self._latency_s)
            if any(one.blocked for one in self.prefill):  # what it lets go may be sent on at once
                horizon = worker.clock
        worker.advance(horizon)
        if decoding:
            self._fetch(worker)
        finished = worker.finished
        for i in finished[self._seen[id(worker)] :]:
            if not decoding:
                self._holder[i] = worker
            self._pass_on(i, worker.finish_s[i], decoding=decoding)
        self._seen[id(worker)] = len(finished)

    def _fetch(self, worker: Replica) -> None:
        """Free the caches of those that a decode worker has admitted, where they were computed."""
        for i in worker.entered[self._entered[id(worker)] :]:
            self._holder.pop(i).let_go(i, worker.admitted_s[i])
        self._entered[id(worker)] = len(worker.entered)

    def _pass_on(self, i: int, at_s: float, *, decoding: bool) -> None:
        """A prompt goes to the decode pool; a finished request makes room for the next of a closed loop."""
        if not decoding and self._load.output_tokens[i] > 1:
            heappush(self.events, (at_s + self._transfer[i], i, True))
            return
        if not decoding:
            self._holder.pop(i).let_go(i, at_s)
        self.done += 1
        if self._closed and len(self.arrival_s) < self._count:
            heappush(self.events, (at_s, len(self.arrival_s), False))
            self.arrival_s.append(at_s)


def simulate_pools(prefill: PoolRules, decode: PoolRules, transfer: Transfer, load: Load) -> Simulation:
    """Serve the whole load on a prefill pool and a decode pool.

    Times to first token are the prefill pool's.
    """
    fleet = Fleet(prefill, decode, transfer, load)
    fleet.run()
    first = np.min([worker.finish_s for worker in fleet.prefill], axis=0)
    last = np.min([worker.finish_s for worker in fleet.decode], axis=0)
    single = load.output_tokens == 1
    steps = np.array([step for worker in fleet.decode for step in worker.steps] or [(0.0, 0, 0)], dtype=float)
    workers = fleet.prefill + fleet.decode
    finish = np.where(single, first, last)
    return Simulation(
        arrival_s=np.asarray(fleet.arrival_s),
        first_token_s=np.minimum(first + prefill.times.response_s, finish),
        finish_s=finish,
        admitted_s=np.min([worker.admitted_s for worker in fleet.prefill], axis=0),
        output_tokens=load.output_tokens,
        step_s=steps[:, 0],
        step_count=steps[:, 1],
        step_batch=steps[:, 2],
        preemptions=sum(worker.preemptions for worker in workers),
        restarts=sum(worker.restarts for worker in workers),
        prefilled_tokens=sum(worker.prefilled_tokens for worker in workers),
        peak_kv_tokens=max(worker.peak_kv for worker in fleet.decode),
        busy_s=sum(worker.busy_s for worker in workers) / len(workers),
    )


def transfer_of(prompts: Deployment, outputs: Deployment) -> Transfer:
    """Time to move a prompt's cache between pools.

    Every GPU of the narrower replica sends its share over its own link.

    t = latency + tokens·(bytes of a token on a prefill GPU)·tp_prefill/min(tp_prefill, tp_decode)/p2p rate
    """
    layout, h = prompts.layout, prompts.hierarchy
    per_gpu = kv_bytes_per_token(prompts) * layout.tp / min(layout.tp, outputs.layout.tp)
    apart = h.gpus_per_node if h.num_gpus > h.gpus_per_node else 1
    return Transfer(latency_s=prompts.stack.transfer_s, s_per_token=per_gpu / float(p2p_bandwidth(h, apart)))
