# ruff: noqa: PLR1730, FURB136  # the builtins max and min are calls, which this file is without
"""An open load on one replica, followed with the replica's state in local variables.

What happens is what `Replica.advance` does, event by event and to the last bit
(`tests/oracle/costmodel/serving/test_open_run.py`). A search simulates a million events, and half of the time
of one is spent on calls and attributes; here there are none, and chunks of a long prompt that nothing
interrupts are one event. What is rare (a full cache, prompts that wait for those of other ranks) is left to
`advance`.

Legend: ``b`` decoding requests, ``g`` tokens per request and step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import ceil, sqrt

from costmodel.serving.simulation.replica import Replica
from costmodel.serving.simulation.requests import NEVER
from costmodel.serving.simulation.window import Window

ASKED_EVERY = 32  # arrivals and ends of requests after which an open load is looked at again


class OpenRun(Replica):
    """A replica that is sent requests at known times."""

    __slots__ = ()

    @property
    def _state(self) -> tuple[int, int, int, float, float, float, float, float, float, float, int]:
        """What an event changes, but for lists."""
        return (
            self._step, self._batch, self._running, self._kv, self._decoding_kv, self._remaining, self._stall,
            self.clock, self.peak_kv, self.busy_s, self.prefilled_tokens,
        )  # fmt: skip

    @_state.setter
    def _state(
        self, state: tuple[int, int, int, float, float, float, float, float, float, float, int]
    ) -> None:
        (
            self._step, self._batch, self._running, self._kv, self._decoding_kv, self._remaining, self._stall,
            self.clock, self.peak_kv, self.busy_s, self.prefilled_tokens,
        ) = state  # fmt: skip

    def serve(  # noqa: C901, PLR0912, PLR0915 - one loop, since a call is what an event would mostly cost
        self,
        order: Sequence[int],
        sent_s: Sequence[float],
        window: Window,
        hopeful: Callable[[Replica], bool],
        *,
        stepwise: bool = True,
    ) -> bool:
        """Serve requests in their order of arrival to the end, or until that is hopeless.

        Args:
            order: numbers of the requests as they reach the engine.
            sent_s: when each does, and after them never.
            window: hears what has arrived, to average over it.
            hopeful: is asked now and then, and False ends the run.
            stepwise: whether steps are kept; latencies and counts need none.

        Returns:
            Whether all were served.
        """
        rules, times = self._rules, self._times
        g, ranks, stages, passing = times.tokens_per_step, times.ranks, times.stages, times.passing
        capacity, max_batch, token_budget = rules.kv_capacity_tokens, rules.max_batch, rules.token_budget
        mixed, chunked, lagged = rules.mixed, rules.chunked, rules.lagged
        reserve, spare = rules.output_reserve, rules.spare_blocks * rules.kv_block_tokens
        balance = rules.balance_steps + rules.gather_steps > 0 and ranks > 1
        linear_s, shared_s, last = times.linear_s, times.shared_s, len(times.linear_s) - 1
        graph_s, fixed_s = times.graph_linear_s, times.decode_attention_s
        slope_s = times.decode_attention_s_per_token
        chunks_s, attention_at, along = (
            times.chunks_s,
            times.prefill_attention.at,
            times.prefill_attention.along,
        )
        per_round, rest = ranks * stages, 1 - 1 / stages
        budget_s = token_budget * ranks
        left, context, steps_left, held = self._left, self._context, self._steps_left, self._held
        finish_step, start_step, heap = self._finish_step, self._start_step, self._heap
        admitted, prefilling, waiting = self._admitted, self._prefilling, self.waiting
        unseen, unseen_done = self._unseen, self._unseen_done
        first_s, finish_s, admitted_s = self.first_token_s, self.finish_s, self.admitted_s
        finished, entered, steps = self.finished, self.entered, self.steps
        step, batch, running, kv, cached, remaining, stall, clock, peak_kv, busy_s, prefilled = self._state
        count, upcoming, asked, mark = len(order), 0, ASKED_EVERY, window.next
        ended, served = unseen_done if lagged else finished, len(finished)
        nothing: Sequence[int] = ()
        computed: list[int] = []
        while served < count:
            while sent_s[upcoming] <= clock:
                waiting.append(order[upcoming])
                upcoming += 1
            if upcoming >= mark:
                window.passes(upcoming, clock, busy_s)
                mark = window.next
            if upcoming + served >= asked:
                asked += ASKED_EVERY
                self.clock = clock
                if not hopeful(self):
                    return False
            grown = batch * g
            waits = balance and waiting and not prefilling
            if waits or (kv + grown > capacity and running > 1):
                self._state = (
                    step, batch, running, kv, cached, remaining, stall, clock, peak_kv, busy_s, prefilled,
                )  # fmt: skip
                self.advance(sent_s[upcoming])
                served = len(finished)
                step, batch, running, kv, cached, remaining, stall, clock, peak_kv, busy_s, prefilled = (
                    self._state
                )
                continue
            if prefilling and chunked and not (unseen or unseen_done):
                i, riders = prefilling[0], batch if mixed else 0
                chunk = min(budget_s - riders, token_budget - -(-riders // ranks))
                k = (left[i] - 1) // chunk if chunk > 0 and (ranks == 1 or not waiting) else 0
                if len(prefilling) > 1:
                    k = 0
                if k > 1 and riders:  # no rider ends, and the cache has room
                    k = min(k, heap[0][0] - step - 1, int((capacity - kv) // grown) - 1)
                if k > 1:
                    riding, past = -(-riders // per_round), context[i] - left[i]
                    linear_of_s = times.linear_at(chunk + riding, -(-chunk // ranks) + riding)
                    until_s = sent_s[int(mark) - 1] if mark < NEVER else NEVER
                    if ranks > 1:  # the next to arrive is computed by another rank
                        until_s = sent_s[upcoming]
                    if riders:
                        fixed, slope, graph = fixed_s[riders], slope_s[riders], graph_s[riders]
                        share = min(riders, stages) / stages
                    taken = 0
                    for attention in along(chunk, past, k):
                        prompt_s = linear_of_s + attention
                        if riders:
                            kv_s = fixed + slope * cached
                            rider_s = kv_s / stages + rest * (graph + kv_s)
                            clock += prompt_s + rider_s
                            busy_s += prompt_s + rider_s * share
                            if stepwise:
                                steps.append((prompt_s + rider_s, 1, riders, clock))
                            cached += grown
                            kv += grown
                        else:
                            clock += prompt_s
                            busy_s += prompt_s
                            stall += prompt_s
                        taken += 1
                        if clock >= until_s:
                            break
                    if riders:
                        step += taken
                        remaining -= taken * batch
                        peak_kv = max(peak_kv, kv)
                    prefilled += taken * chunk
                    left[i] -= taken * chunk
                    continue
            riders, done = -1, nothing  # of prompts that this step ends
            if waiting or prefilling:
                budget, tokens, largest, unfinished, attention, widest = 1, 0, 0, 0, 0.0, 0.0
                while budget > 0 or not tokens:
                    while waiting and (not prefilling or (unfinished and len(prefilling) <= unfinished)):
                        i = waiting[0]
                        if running >= max_batch:
                            break
                        need = (batch if mixed or not running else running + 1) * g
                        if reserve:
                            growth = reserve * (remaining + steps_left[i]) * g
                            if growth > need:
                                need = growth
                        if spare * running > need:
                            need = spare * running
                        if kv + held[i] + need > capacity:
                            break
                        waiting.popleft()
                        admitted.append(i)
                        kv += held[i]
                        if kv > peak_kv:
                            peak_kv = kv
                        running += 1
                        remaining += steps_left[i]
                        if admitted_s[i] == NEVER:
                            admitted_s[i] = clock
                            entered.append(i)
                        if left[i]:
                            prefilling.append(i)
                            break
                        if first_s[i] == NEVER:
                            first_s[i] = clock
                            unseen.append(i)
                        steps_left[i] -= 1
                        remaining -= 1
                        start_step[i] = step
                        finish_step[i] = step + steps_left[i]
                        if steps_left[i] == 0:
                            kv -= held[i]
                            running -= 1
                            if admitted[-1] == i:
                                admitted.pop()
                            finish_s[i] = clock
                            ended.append(i)
                            served = len(finished)
                            continue
                        batch += 1
                        cached += context[i]
                        heappush(heap, (finish_step[i], i))
                    if len(prefilling) <= unfinished:
                        break
                    if riders < 0:
                        riders = batch if mixed else 0
                        budget = budget_s - riders
                        each = token_budget - -(-riders // ranks)
                        done = computed = []
                    i = prefilling[unfinished]
                    more = left[i]
                    if chunked:
                        room = budget if budget < each else each
                        if room < 1:
                            room = 1
                        chunk = room if room < more else more
                    else:
                        if tokens and more > budget:
                            break
                        chunk = more
                    past = context[i] - more
                    seconds = chunks_s.get((chunk, past))
                    if seconds is None:
                        seconds = chunks_s[chunk, past] = attention_at(chunk, past)
                    tokens += chunk
                    budget -= chunk
                    attention += seconds
                    if chunk > largest:
                        largest = chunk
                    if seconds > widest:
                        widest = seconds
                    left[i] = more - chunk
                    if more > chunk:
                        unfinished += 1
                        continue
                    computed.append(i)
                    if unfinished:
                        del prefilling[unfinished]
                    else:
                        prefilling.popleft()
            if riders >= 0:
                mean, riding = -(-tokens // ranks), -(-riders // per_round)
                most, mean = (mean if mean > largest else largest) + riding, mean + riding
                prompt_s = linear_s[most] if most <= last else linear_s[last] * most / last
                if mean < most and shared_s:
                    prompt_s = times.linear_at(most, mean)
                attention /= ranks
                prompt_s += attention if attention > widest else widest
                if riders:
                    kv_s = fixed_s[riders] + slope_s[riders] * cached
                    rider_s = kv_s / stages + rest * (graph_s[riders] + kv_s)
                    used_s = prompt_s + rider_s
                    clock += used_s
                    busy_s += prompt_s + rider_s * ((riders if riders < stages else stages) / stages)
                else:
                    clock += prompt_s
                    busy_s += prompt_s
                if unseen or unseen_done:
                    if lagged:
                        for i in unseen:
                            if clock > first_s[i]:
                                first_s[i] = clock
                        for i in unseen_done:
                            if clock > finish_s[i]:
                                finish_s[i] = clock
                            finished.append(i)
                        served = len(finished)
                        unseen_done.clear()
                    unseen.clear()
                prefilled += tokens
                if riders:
                    if stepwise:
                        steps.append((used_s, 1, riders, clock))
                    k, grown = 1, batch * g
                else:
                    stall += prompt_s
                    k = 0
            elif batch:
                while heap[0][0] != finish_step[heap[0][1]]:
                    heappop(heap)
                k = heap[0][0] - step
                grown = batch * g
                fits = int((capacity - kv) // grown)
                if fits < k:
                    k = fits
                if k < 1 or unseen_done:
                    k = 1
                slope = slope_s[batch]
                first = graph_s[batch] + fixed_s[batch] + slope * cached
                curve = slope * grown / 2
                if not waiting and running < max_batch:
                    wait = sent_s[upcoming] - clock
                    if wait <= first:
                        k = 1
                    elif k > 1 and wait < NEVER:
                        fits = ceil(2 * wait / (first + sqrt(first * first + 4 * curve * wait)))
                        if fits < k:
                            k = fits
                seconds = k * first + curve * k * (k - 1)
                if unseen or unseen_done:
                    if lagged:
                        at_s = clock + first
                        for i in unseen:
                            if at_s > first_s[i]:
                                first_s[i] = at_s
                        for i in unseen_done:
                            if at_s > finish_s[i]:
                                finish_s[i] = at_s
                            finished.append(i)
                        served = len(finished)
                        unseen_done.clear()
                    unseen.clear()
                clock += seconds
                busy_s += seconds if stages == 1 else seconds * (min(batch, stages) / stages)
                if not stepwise:
                    pass
                elif stall:
                    steps.append((first + stall, 1, batch, clock))
                    stall = 0.0
                    if k > 1:
                        steps.append(((seconds - first) / (k - 1), k - 1, batch, clock))
                else:
                    steps.append((seconds / k, k, batch, clock))
                grown = k * batch * g
            elif unseen or unseen_done:
                self.clock = clock
                self._show(clock)
                served = len(finished)
                continue
            else:
                if sent_s[upcoming] > clock:
                    clock = sent_s[upcoming]
                continue
            if k:
                step += k
                kv += grown
                cached += grown
                remaining -= k * batch
                if kv > peak_kv:
                    peak_kv = kv
                while heap and heap[0][0] <= step:
                    at, i = heappop(heap)
                    if at == finish_step[i]:
                        grown = (step - start_step[i]) * g
                        batch -= 1
                        cached -= context[i] + grown
                        kv -= grown
                        kv -= held[i]
                        running -= 1
                        if admitted[-1] == i:
                            admitted.pop()
                        finish_step[i] = -1
                        finish_s[i] = clock
                        ended.append(i)
                        served = len(finished)
            if done:
                at_s = clock + passing * prompt_s
                for i in done:
                    if first_s[i] == NEVER:
                        first_s[i] = at_s
                        unseen.append(i)
                    remains = steps_left[i] - 1
                    steps_left[i] = remains
                    remaining -= 1
                    start_step[i] = step
                    finish_step[i] = step + remains
                    if remains == 0:
                        kv -= held[i]
                        running -= 1
                        if admitted[-1] == i:
                            admitted.pop()
                        finish_s[i] = at_s
                        ended.append(i)
                        served = len(finished)
                        continue
                    batch += 1
                    cached += context[i]
                    heappush(heap, (step + remains, i))
        self._state = (
            step, batch, running, kv, cached, remaining, stall, clock, peak_kv, busy_s, prefilled,
        )  # fmt: skip
        return True
