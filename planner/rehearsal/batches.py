"""The batches of one worker in real time: the scheduler of the simulation, asleep while an engine computes.

The worker's clock is that of the simulation: a step starts when the one before has ended, with whoever
arrived until then, and ends when its seconds are over. Being late by a moment moves no later step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, inf

import numpy as np

from costmodel.serving.simulation.disaggregated import PoolRules
from costmodel.serving.simulation.load import Load
from costmodel.serving.simulation.replica import Replica
from costmodel.serving.simulation.simulator import GOLDEN

_NOBODY = np.empty(0, dtype=np.int64)
_EMPTY = Load(
    input_tokens=_NOBODY,
    output_tokens=_NOBODY,
    cached_tokens=_NOBODY,
    arrival_s=np.empty(0),
    concurrency=None,
)


@dataclass(slots=True, kw_only=True)
class Request:
    """One request in a worker: its tokens, how many of its output are out, and since when."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    number: int = -1
    tokens: int = 0
    first_s: float = inf
    ended: bool = False
    progress: asyncio.Event = field(default_factory=asyncio.Event)


class Batches:
    """A worker that batches continuously."""

    def __init__(self, pool: PoolRules, *, slowdown: float = 1.0) -> None:
        """An idle worker; every second of the plan takes `slowdown` seconds."""
        self._pool, self._slowdown = pool, slowdown
        self._replica = Replica(pool.times, pool.rules, _EMPTY)
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._coming: list[tuple[float, int, Request]] = []
        self._here: dict[int, Request] = {}
        self._computed: dict[int, int] = {}
        self._count = 0
        self._arrived = asyncio.Event()

    @property
    def now_s(self) -> float:
        """Seconds since the start, in the plan's time."""
        return (self._loop.time() - self._start) / self._slowdown

    async def until(self, at_s: float) -> None:
        """Sleep until a moment of the plan's time."""
        await asyncio.sleep(max((at_s - self.now_s) * self._slowdown, 0.0))

    async def tokens(self, request: Request) -> AsyncIterator[int]:
        """Serve a request: how many tokens of its output are out, whenever more are."""
        ready_s = self.now_s + 2 * self._pool.times.request_s * ((self._count * GOLDEN) % 1.0)
        heappush(self._coming, (ready_s, self._count, request))
        self._count += 1
        self._arrived.set()
        seen = 0
        while not request.ended or seen < request.tokens:
            await request.progress.wait()
            request.progress.clear()
            if not seen and request.tokens:
                await self._answered(request)
            if request.tokens > seen:
                seen = request.tokens
                yield seen

    async def _answered(self, request: Request) -> None:
        """Let a first token travel to its client, unless the last one is out before."""
        arrives_s = request.first_s + self._pool.times.response_s
        while not request.ended and (wait_s := (arrives_s - self.now_s) * self._slowdown) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(request.progress.wait(), wait_s)
            request.progress.clear()

    async def run(self) -> None:
        """Take one step after the other, until cancelled."""
        replica = self._replica
        while True:
            self._take()
            if replica.idle:
                await self._next_arrival()
                continue
            before = dict(self._computed)
            replica.advance(replica.clock, most_steps=1)
            await self.until(replica.clock)
            self._computed = {number: self._tokens(request) for number, request in self._here.items()}
            self._tell(before if self._pool.rules.lagged else self._computed)

    def _take(self) -> None:
        """Queue who has arrived until the worker's clock."""
        while self._coming and self._coming[0][0] <= self._replica.clock:
            request = heappop(self._coming)[2]
            number = self._replica.receive(request.input_tokens, request.output_tokens, request.cached_tokens)
            request.number = number
            self._here[number] = request

    async def _next_arrival(self) -> None:
        """Sleep until somebody arrives, and set the clock to that."""
        self._arrived.clear()
        if not self._coming:
            await self._arrived.wait()
        ready_s = self._coming[0][0]
        await self.until(ready_s)
        self._replica.clock = max(self._replica.clock, min(ready_s, self._coming[0][0]))

    def _tokens(self, request: Request) -> int:
        """Tokens of a request that are computed."""
        g = self._pool.times.tokens_per_step
        steps = 1 + ceil((request.output_tokens - 1) / g)
        done = steps - self._replica.steps_left(request.number)
        if done == steps:
            return request.output_tokens
        return min(1 + int((done - 1) * g), request.output_tokens - 1) if done else 0

    def _tell(self, out: dict[int, int]) -> None:
        """Let clients see tokens; those of a lagged engine see what the step before computed."""
        replica, finished = self._replica, set(self._replica.finished)
        for number, request in list(self._here.items()):
            ended = number in finished
            tokens = request.output_tokens if ended else out.get(number, 0)
            handed_over = request.cached_tokens >= request.input_tokens
            if handed_over and self._computed.get(number):
                tokens = max(tokens, 1)  # it came with the cache
            if tokens > request.tokens:
                seen_s = replica.admitted_s if handed_over else replica.first_token_s
                request.tokens, request.first_s = tokens, seen_s[number]
                request.ended = ended
                request.progress.set()
            if ended:
                del self._here[number]
                self._computed.pop(number, None)
        replica.finished.clear()
