"""One simulated replica of an engine that batches continuously.

Every engine step serves prompt chunks and one token of each decoding request. Between two events (an
arrival that can be admitted, a request that finishes, a full KV cache) the batch does not change, so any
number of decode steps is one jump in closed form; that is why a simulated request costs microseconds. What
an engine's scheduler does differently is in `Scheduler`: whether prompts share steps with decoding
requests, whether they are cut into chunks, how much of the output it reserves in the cache before it admits
a request.

Legend: ``b`` decoding requests, ``K`` tokens in their caches, ``g`` tokens per request and step.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import ceil, sqrt

from costmodel.serving.simulation.load import Load
from costmodel.serving.simulation.requests import NEVER, Requests
from costmodel.serving.simulation.scheduler import Scheduler
from costmodel.serving.step_table import StepTimes


class Replica:
    """The state of one simulated replica; `advance` performs its next event."""

    __slots__ = (
        "_admitted", "_batch", "_chunks_s", "_context", "_decoding_kv", "_finish_step", "_gathers", "_heap",
        "_held", "_held_until", "_keeps", "_kv", "_left", "_prefilling", "_remaining", "_rules", "_running",
        "_stall", "_start_step", "_step", "_steps_left", "_times", "_unseen", "_unseen_done", "admitted_s",
        "busy_s", "clock", "entered", "finish_s", "finished", "first_token_s", "peak_kv", "preemptions",
        "prefilled_tokens", "restarts", "steps", "waiting",
    )  # fmt: skip

    def __init__(
        self, times: StepTimes, rules: Scheduler, load: Load | Requests, *, keeps: bool = False
    ) -> None:
        """An idle replica at time zero; `load` has the requests it may be sent, alone or with other replicas.

        One that `keeps` holds the cache of a finished request until it is told to `let_go`.
        """
        self._times, self._rules, self._keeps = times, rules, keeps
        block, g = rules.kv_block_tokens, times.tokens_per_step
        state = (
            load if isinstance(load, Requests) else Requests.of(load, tokens_per_step=g, block_tokens=block)
        )
        self._left, self._context, self._steps_left = state.left, state.context, state.steps_left
        self._held, self._finish_step, self._start_step = state.held, state.finish_step, state.start_step
        self._heap: list[tuple[int, int]] = []
        self._admitted: list[int] = []
        self._prefilling: deque[int] = deque()
        self._step = self._batch = self._running = 0
        self._held_until, self._gathers = -1, False
        self._kv = self._decoding_kv = self._remaining = self._stall = 0.0
        self._chunks_s = times.chunks_s
        self._unseen: list[int] = []
        self._unseen_done: list[int] = []
        self.waiting: deque[int] = deque()
        self.first_token_s, self.finish_s, self.admitted_s = (
            state.first_token_s,
            state.finish_s,
            state.admitted_s,
        )
        self.finished: list[int] = []
        self.entered: list[int] = []
        self.steps: list[tuple[float, int, int, float]] = []
        self.preemptions = self.restarts = self.prefilled_tokens = 0
        self.clock = self.peak_kv = self.busy_s = 0.0

    @property
    def idle(self) -> bool:
        """Whether the replica has nothing to do."""
        return not (self._batch or self._prefilling or self.waiting or self._unseen_done)

    @property
    def blocked(self) -> bool:
        """Whether all that it could do waits for caches that others have yet to fetch."""
        if self._batch or self._prefilling or self._unseen or self._unseen_done:
            return False
        return bool(self.waiting) and not self._has_room(self.waiting[0])

    @property
    def decoding(self) -> int:
        """Requests that decode."""
        return self._batch

    @property
    def decode_steps(self) -> int:
        """Steps in which requests decoded, so far."""
        return self._step

    @property
    def load(self) -> int:
        """Requests the replica has, waiting or running."""
        return self._running + len(self.waiting)

    def receive(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> int:
        """Queue a request that no load told of, such as one that a client sent; its number."""
        self._left.append(input_tokens - cached_tokens)
        self._context.append(input_tokens)
        self._steps_left.append(1 + ceil((output_tokens - 1) / self._times.tokens_per_step))
        self._finish_step.append(-1)
        self._start_step.append(0)
        self._held.append(self._rounded(input_tokens))
        for times_s in (self.first_token_s, self.finish_s, self.admitted_s):
            times_s.append(NEVER)
        self.waiting.append(len(self._left) - 1)
        return len(self._left) - 1

    def steps_left(self, i: int) -> int:
        """Steps that request i still takes part in for its output, that of its first token among them."""
        if self.finish_s[i] < NEVER:
            return 0
        return max(self._finish_step[i] - self._step, 0) or self._steps_left[i]

    def advance(self, horizon_s: float = NEVER, *, most_steps: int | None = None) -> None:
        """Perform the next step, or the decode steps up to the next event but not (much) past the horizon.

        Of decode steps at most `most_steps`, where given.
        """
        grown = self._batch * self._times.tokens_per_step
        if self._kv + grown > self._rules.kv_capacity_tokens and self._running > 1:
            self._preempt()
        elif self._prefilling or (self.waiting and not self._holds_back() and self._admit()):
            self._prefill_step()
        elif self._batch:
            self._decode_jump(horizon_s, most_steps)
        elif self._unseen or self._unseen_done:
            self._show(self.clock)
        elif horizon_s > self.clock:
            self.clock = horizon_s

    def next_s(self) -> float:
        """Admit what can be, and say when `advance` has more to tell.

        Now where prompts are to be computed, else after the decode steps up to a finish or a full cache.
        """
        grown, rules = self._times.tokens_per_step, self._rules
        while self._kv + self._batch * grown > rules.kv_capacity_tokens and self._running > 1:
            self._preempt()
        if self._prefilling or (self.waiting and not self._holds_back() and self._admit()) or not self._batch:
            return self.clock
        k, first, curve = self._ahead()
        return self.clock + k * first + curve * k * (k - 1)

    def may_admit(self) -> bool:
        """Whether a request that comes now could be admitted before another ends."""
        return not self.waiting and self._running < self._rules.max_batch

    def _holds_back(self) -> bool:
        """Whether the oldest prompt waits until every attention rank has one to compute in the same step.

        And, once every rank has, until more have come.
        """
        rules, ranks = self._rules, self._times.ranks
        if not (rules.balance_steps or rules.gather_steps) or ranks == 1:
            return False
        first, gathers = self.waiting[0], len(self.waiting) >= ranks
        if self._batch < ranks or not self._left[first] or not self._has_room(first):
            self._held_until = -1
            return False
        if self._held_until < 0 or gathers != self._gathers:
            self._gathers = gathers
            self._held_until = self._step + (rules.gather_steps if gathers else rules.balance_steps)
        if self._step >= self._held_until:
            self._held_until = -1
        return self._held_until >= 0

    def _admit(self) -> bool:
        """Move the oldest waiting request into prefill if a slot and the cache have room for it.

        A prompt that was computed elsewhere goes straight to decoding.
        """
        waiting = self.waiting
        while waiting and self._has_room(waiting[0]):
            i = waiting.popleft()
            self._admitted.append(i)
            self._kv += self._held[i]
            self.peak_kv = max(self.peak_kv, self._kv)
            self._running += 1
            self._remaining += self._steps_left[i]
            if self.admitted_s[i] == NEVER:
                self.admitted_s[i] = self.clock
                self.entered.append(i)
            if self._left[i]:
                self._prefilling.append(i)
                return True
            self._start_decoding(i, self.clock)
        return False

    def _has_room(self, i: int) -> bool:
        """Whether a slot is free.

        The cache holds request i besides what the running ones may still need: at least their tokens of this
        step, or of the next one where prompts have a step of their own.
        """
        rules = self._rules
        if (running := self._running) >= rules.max_batch:
            return False
        grown = self._times.tokens_per_step
        growth = rules.output_reserve * (self._remaining + self._steps_left[i]) * grown
        step = (self._batch if rules.mixed or not running else running + 1) * grown
        spare = rules.spare_blocks * rules.kv_block_tokens * running
        return self._kv + self._held[i] + max(step, growth, spare) <= rules.kv_capacity_tokens

    def _rounded(self, tokens: int) -> float:
        """Tokens of the cache blocks that hold `tokens`."""
        block = self._rules.kv_block_tokens
        return float(-(-tokens // block) * block)

    def _prefill_step(self) -> None:
        """Run one step that holds prompt tokens, with the decoding requests if the engine mixes them."""
        rules, times = self._rules, self._times
        riders = self._batch if rules.mixed else 0
        tokens, largest, attention, widest, done = self._fill(riders)
        mean, riding = -(-tokens // times.ranks), -(-riders // (times.ranks * times.stages))
        linear_s = times.linear_at(max(mean, largest) + riding, mean + riding)
        prompt_s = linear_s + max(attention / times.ranks, widest)
        rider_s = 0.0
        if riders:
            kv_s = (
                times.decode_attention_s[riders]
                + times.decode_attention_s_per_token[riders] * self._decoding_kv
            )
            rider_s = kv_s / times.stages + (1 - 1 / times.stages) * (times.graph_linear_s[riders] + kv_s)
        self.clock += prompt_s + rider_s
        self.busy_s += prompt_s + rider_s * self._stages_used(riders)
        if self._unseen or self._unseen_done:
            self._show(self.clock)
        self.prefilled_tokens += tokens
        if riders:
            self.steps.append((prompt_s + rider_s, 1, riders, self.clock))
            self._decoded(1)
        else:
            self._stall += prompt_s
        for i in done:
            self._start_decoding(i, self.clock + times.passing * prompt_s)

    def _fill(self, riders: int) -> tuple[int, int, float, float, list[int]]:
        """Prompt chunks of one step, beside so many decoding requests, which the ranks share.

        Every rank schedules by itself: one whose prompt is longer than its budget goes on with it in the next
        step, while the others compute theirs. Returns the chunks' tokens, the largest chunk, attention in all
        and of the widest, and who is done.
        """
        rules, ranks = self._rules, self._times.ranks
        budget, most = rules.token_budget * ranks - riders, rules.token_budget - -(-riders // ranks)
        tokens, largest, attention, widest, done = 0, 0, 0.0, 0.0, []
        prefilling, waiting, unfinished = self._prefilling, self.waiting, 0
        while (budget > 0 or not tokens) and (len(prefilling) > unfinished or (waiting and self._admit())):
            i = prefilling[unfinished]
            left = self._left[i]
            room = max(min(budget, most), 1) if rules.chunked else left
            if not rules.chunked and tokens and left > budget:
                break
            chunk = min(room, left)
            seconds = self._attention_s(chunk, self._context[i] - left)
            tokens, budget, attention = tokens + chunk, budget - chunk, attention + seconds
            largest = max(largest, chunk)
            widest = max(widest, seconds)
            self._left[i] = left - chunk
            if left > chunk:
                unfinished += 1
                continue
            done.append(i)
            del prefilling[unfinished]
        return tokens, largest, attention, widest, done

    def _attention_s(self, chunk: int, past: int) -> float:
        """Prefill attention of a chunk, remembered: simulations of one replica send it the same prompts."""
        seconds = self._chunks_s.get((chunk, past))
        if seconds is None:
            seconds = self._chunks_s[chunk, past] = self._times.prefill_attention.at(chunk, past)
        return seconds

    def _start_decoding(self, i: int, first_s: float) -> None:
        """A prompt is computed: emit its first token, and decode the rest."""
        if self.first_token_s[i] == NEVER:
            self.first_token_s[i] = first_s
            self._unseen.append(i)
        self._steps_left[i] -= 1
        self._remaining -= 1
        self._start_step[i] = self._step
        self._finish_step[i] = self._step + self._steps_left[i]
        if self._steps_left[i] == 0:
            if not self._keeps:
                self._release(i)
            elif not self._rules.holds_slot:
                self._running -= 1
            self._finish(i, first_s)
            return
        self._batch += 1
        self._decoding_kv += self._context[i]
        heappush(self._heap, (self._finish_step[i], i))

    def _decode_jump(self, horizon_s: float, most_steps: int | None) -> None:
        """Take decode steps until a request finishes, the cache is full.

        Or the horizon can bring an admission.
        """
        times, b = self._times, self._batch
        k, first, curve = self._ahead()
        if most_steps and k > most_steps:
            k = most_steps
        held = self._held_until >= 0
        if horizon_s < NEVER and (held or not self.waiting) and self._running < self._rules.max_batch:
            wait = horizon_s - self.clock
            if wait <= first:
                k = 1
            elif k > 1:
                k = min(k, ceil(2 * wait / (first + sqrt(first * first + 4 * curve * wait))))
        seconds = k * first + curve * k * (k - 1)
        if self._unseen or self._unseen_done:
            self._show(self.clock + first)
        self.clock += seconds
        self.busy_s += seconds if times.stages == 1 else seconds * self._stages_used(b)
        if self._stall:
            self.steps.append((first + self._stall, 1, b, self.clock))
            self._stall = 0.0
            if k > 1:
                self.steps.append(((seconds - first) / (k - 1), k - 1, b, self.clock))
        else:
            self.steps.append((seconds / k, k, b, self.clock))
        self._decoded(k)

    def _ahead(self) -> tuple[int, float, float]:
        """Decode steps until a request finishes, the cache is full or prompts are held back no longer.

        And the seconds of the first of them, and half of what each takes longer than the one before.
        """
        times, rules, b = self._times, self._rules, self._batch
        self._drop_stale()
        k = self._heap[0][0] - self._step
        grown = b * times.tokens_per_step
        k = min(k, int((rules.kv_capacity_tokens - self._kv) // grown))
        if self._held_until >= 0:
            k = min(k, self._held_until - self._step)
        if k < 1 or self._unseen_done:
            k = 1
        slope = times.decode_attention_s_per_token[b]
        first = times.graph_linear_s[b] + times.decode_attention_s[b] + slope * self._decoding_kv
        return k, first, slope * grown / 2

    def _stages_used(self, batch: int) -> float:
        """Share of the pipeline's stages that work at a time: fewer requests than stages leave some idle."""
        return min(batch, self._times.stages) / self._times.stages

    def _decoded(self, k: int) -> None:
        """Account for k decode steps of the whole batch, and finish the requests that are through."""
        grown = k * self._batch * self._times.tokens_per_step
        self._step += k
        self._kv += grown
        self._decoding_kv += grown
        self._remaining -= k * self._batch
        self.peak_kv = max(self.peak_kv, self._kv)
        heap = self._heap
        while heap and heap[0][0] <= self._step:
            step, i = heappop(heap)
            if step == self._finish_step[i]:
                self._stop_decoding(i)
                self._finish_step[i] = -1
                self._finish(i, self.clock)

    def _finish(self, i: int, at_s: float) -> None:
        """A request has its last token.

        The client sees it now, or with a lagged engine after the next step.
        """
        self.finish_s[i] = at_s
        (self._unseen_done if self._rules.lagged else self.finished).append(i)

    def _show(self, at_s: float) -> None:
        """Let the clients of a lagged engine see the tokens of the previous step."""
        if self._rules.lagged:
            first = self.first_token_s
            for i in self._unseen:
                first[i] = max(first[i], at_s)
            for i in self._unseen_done:
                self.finish_s[i] = max(self.finish_s[i], at_s)
                self.finished.append(i)
            self._unseen_done.clear()
        self._unseen.clear()

    def _stop_decoding(self, i: int) -> None:
        """Take a request out of the batch and its tokens out of the cache."""
        grown = (self._step - self._start_step[i]) * self._times.tokens_per_step
        self._batch -= 1
        self._decoding_kv -= self._context[i] + grown
        self._kv -= grown
        self._release(i)

    def _release(self, i: int) -> None:
        """Free the cache blocks of a prompt."""
        self._kv -= self._held[i]
        self._running -= 1
        if self._admitted[-1] == i:
            self._admitted.pop()

    def let_go(self, i: int, at_s: float) -> None:
        """Free the cache that request i kept, since it has moved; who waited for room has it from then on."""
        if self.blocked:
            self.clock = max(self.clock, at_s)
        self._kv -= self._held[i]
        self._running -= self._rules.holds_slot

    def _drop_stale(self) -> None:
        """Forget completions of requests that were preempted since."""
        heap = self._heap
        while heap[0][0] != self._finish_step[heap[0][1]]:
            heappop(heap)

    def _preempt(self) -> None:
        """Send the youngest running request back to the head of the queue.

        It recomputes its context later; one whose prompt is half computed starts again.
        """
        while not self._left[self._admitted[-1]] and self._finish_step[self._admitted[-1]] <= self._step:
            self._admitted.pop()
        i = self._admitted[-1]
        if self._left[i]:
            self._prefilling.remove(i)
            self._remaining -= self._steps_left[i]
            self._left[i] = self._context[i]
            self._release(i)
            self.waiting.appendleft(i)
            self.preemptions += 1
            self.restarts += 1
            return
        steps_left = self._finish_step[i] - self._step
        context = self._context[i] + ceil((self._step - self._start_step[i]) * self._times.tokens_per_step)
        self._stop_decoding(i)
        self._finish_step[i] = -1
        self._remaining -= steps_left
        self._left[i] = self._context[i] = context
        self._held[i] = self._rounded(context)
        self._steps_left[i] = steps_left
        self.waiting.appendleft(i)
        self.preemptions += 1
