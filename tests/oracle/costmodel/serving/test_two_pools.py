"""Two pools followed event by event, against the same workers that take one step after the other."""

from dataclasses import replace
from heapq import heappop, heappush

import numpy as np
import pytest

from costmodel.serving.simulation.disaggregated import Fleet, PoolRules, Transfer
from tests.counts import tries
from tests.oracle.costmodel.serving.test_open_run import drawn


class PlainFleet(Fleet):
    """Workers take a step when their clock is the first of all, so that nothing is ever ahead of a prompt."""

    __slots__ = ()

    def _changed(self, at: int) -> None:
        worker = self._workers[at]
        self._turn[at] += 1
        if not worker.idle and not worker.blocked:
            heappush(self._ready, (worker.clock, at, self._turn[at]))

    def _deliver(self, at_s: float, i: int, prompt_done: bool) -> None:
        self._arrived += not prompt_done
        first, pool = (len(self.prefill), self.decode) if prompt_done else (0, self.prefill)
        at = first + min(range(len(pool)), key=lambda of: (pool[of].load, pool[of].clock))
        worker = self._workers[at]
        idle = worker.idle
        if idle:
            worker.clock = max(worker.clock, at_s)
        worker.waiting.append(i)
        if idle:
            self._changed(at)

    def _step(self, at: int) -> None:
        heappop(self._ready)
        worker = self._workers[at]
        worker.advance(self.events[0][0] if self.events else worker.clock, most_steps=1)
        if at >= len(self.prefill):
            self._fetch(at)
        self._collect(at)
        self._changed(at)


def fleets(seed: int) -> tuple[Fleet, Fleet]:
    """Both, for any prompts' pool before one worker that decodes."""
    case, other, rng = drawn(seed), drawn(seed + 10_000), np.random.default_rng(seed)
    load = replace(case.load, block_hashes=(), filling=0)
    if rng.random() < 0.3:
        load = replace(load, arrival_s=load.arrival_s[:0], concurrency=int(rng.choice([1, 7, 40])))
    longest = int((load.input_tokens + load.output_tokens).max()) + 2 * other.rules.kv_block_tokens
    roomy = replace(
        other.rules,
        kv_capacity_tokens=max(other.rules.kv_capacity_tokens, longest),
        max_batch=other.rules.max_batch,
    )
    prefill = PoolRules(workers=int(rng.integers(1, 6)), times=case.times, rules=case.rules)
    decode = PoolRules(workers=1, times=other.times, rules=roomy)
    transfer = Transfer(latency_s=float(rng.uniform(0, 0.1)), s_per_token=float(rng.uniform(0, 1e-6)))
    return Fleet(prefill, decode, transfer, load), PlainFleet(prefill, decode, transfer, load)


@pytest.mark.parametrize("seed", range(tries(120, 1500)))
def test_decode_steps_up_to_a_finish_are_the_steps_one_by_one(seed: int) -> None:
    """Each request's times, and what the workers did."""
    fleet, plain = fleets(seed)
    assert fleet.run()
    assert plain.run()
    for mine, theirs in zip(fleet.prefill + fleet.decode, plain.prefill + plain.decode, strict=True):
        for times in ("first_token_s", "finish_s", "admitted_s"):
            seen = np.asarray(getattr(mine, times)), np.asarray(getattr(theirs, times))
            np.testing.assert_allclose(*seen, rtol=1e-9, atol=1e-9, err_msg=times)
        assert (mine.preemptions, mine.prefilled_tokens) == (theirs.preemptions, theirs.prefilled_tokens)
        assert mine.busy_s == pytest.approx(theirs.busy_s)
