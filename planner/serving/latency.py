"""Least latencies of a replica: what no request can beat, however empty the engine is.

A limit below them rejects a layout without a simulation, and a closed loop is bound by them, so every term
leaves out what some request may be spared (`docs/notes/serving.md`, "What the certificate rests on").

Legend: ``B`` tokens of a full step, ``n`` steps a prompt takes, ``b`` decoding requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, sqrt
from statistics import NormalDist

import numpy as np

from costmodel.job import ServingJob
from costmodel.serving.simulation.load import lognormal_parameters
from costmodel.serving.step_table import StepTimes

FEWEST_COUNTED = 200  # requests behind the percentile of the shortest simulation
OUTSIDE_SLACK = 0.1  # how far the spread of few requests' times outside the engine is from even


@dataclass(frozen=True, kw_only=True)
class LeastLatency:
    """Lower bounds on the latencies of a job on one replica, over token `budgets` of a step.

    `share` is that of the requests that may be faster than a bound on the rest: the job's percentile for its
    limits, 0 for a mean. `most_riders` decoding requests may take part in a step.
    """

    times: StepTimes
    job: ServingJob
    budgets: tuple[int, ...]
    chunked: bool
    lagged: bool
    most_riders: int
    share: float

    @property
    def ttft_s(self) -> float:
        """Least time to first token: at the last stage and the client, unless the last token is earlier."""
        job = self.job
        if job.output_tokens == 1 and not _spread(job):
            return self.prompts_ttft_s
        spared = 0.0 if _spread(job) else self._decode_s(job.output_tokens, lag=1)
        after = min(self._stages_s + self.times.response_s, spared)
        return self._outside_s + self.prompt_s(self._input) + after

    @property
    def prompts_ttft_s(self) -> float:
        """Least time to first token of a prefill worker, whose requests end with it."""
        return self._outside_s + self.prompt_s(self._input) + self._stages_s

    @property
    def tpot_s(self) -> float:
        """Least time per output token: from a first token seen late to a last one seen at once.

        Late by a step, by the answer's way to the client, and by the stages that follow the first.
        """
        times, outputs = self.times, self._output
        slowest = float(times.linear.max()) + max(max(row) for row in times.prefill_attention.seconds)
        late = times.response_s + times.passing * slowest
        return max(self._decode_s(outputs, lag=int(self.lagged)) - late, 0.0) / max(outputs - 1, 1)

    @property
    def end_to_end_s(self) -> float:
        """Least time from sending a request to its last token; the slow end of one length at a time."""
        short_in, short_out = (
            _shortest(self.job.input_tokens, self.job.input_tokens_p99),
            _shortest(self.job.output_tokens, self.job.output_tokens_p99),
        )
        pairs = ((self._input, short_out), (short_in, self._output))
        last = self._stages_s if self.job.output_tokens == 1 and not _spread(self.job) else 0.0
        return self._outside_s + last + max(self.prompt_s(p) + self._decode_s(o, lag=0) for p, o in pairs)

    @property
    def any_prompt_s(self) -> float:
        """Least seconds that any request stays with a prefill worker."""
        return self.prompt_s(_shortest(self.job.input_tokens, self.job.input_tokens_p99))

    @property
    def any_outputs_s(self) -> float:
        """Least seconds that any request stays with a decode worker."""
        return self._decode_s(_shortest(self.job.output_tokens, self.job.output_tokens_p99), lag=1)

    @property
    def outputs_s(self) -> float:
        """Least seconds with a decode worker of the requests at this share."""
        return self._decode_s(self._output, lag=1)

    def prompt_s(self, tokens: float) -> float:
        """Least seconds until the first stage has computed a prompt, whatever shares its steps."""
        new = max(int(tokens - tokens * self.job.cached_share), 1)
        return min(self._chunks_s(new, budget) for budget in self.budgets)

    def _chunks_s(self, new: int, budget: int) -> float:
        """A prompt that is cut is cut where a step is full; its last chunk is no shorter than alone."""
        if not self.chunked:
            return self._linear_s(new) + least_attention_s(self.times, new)
        steps = ceil(new / budget)
        room = budget * self.times.ranks - self.most_riders
        full = budget if self.times.stages == 1 else max(min(budget, room), 1)
        rest = min(new - (steps - 1) * budget, full)
        linear = (steps - 1) * self._linear_s(full) + self._linear_s(rest)
        return linear + least_attention_s(self.times, new)

    def _linear_s(self, tokens: int) -> float:
        """Least linear seconds of a step of at least so many tokens."""
        return float(self.times.least_linear[min(tokens, len(self.times.least_linear) - 1)])

    @property
    def _stages_s(self) -> float:
        """Least seconds of a prompt's last chunk in the stages after the first."""
        return self.times.passing * float(self.times.least_linear[1])

    def _decode_s(self, outputs: float, *, lag: int) -> float:
        """Least seconds between first and last token, `lag` steps of them not seen."""
        steps = (outputs - 1) / self.times.tokens_per_step
        return max(steps - lag, 0.0) * self._step_s(outputs)

    def _step_s(self, outputs: float) -> float:
        """Least seconds of a step that decodes: alone, or with prompts in it."""
        times, top = self.times, self.most_riders + 1
        short = _shortest(self.job.input_tokens, self.job.input_tokens_p99)
        batch = np.arange(1, top)
        grown = 0.0 if _spread(self.job) else max(outputs - 1 - times.tokens_per_step, 0.0) / 2
        cache = np.asarray(times.decode_attention_s[1:top]) + np.asarray(
            times.decode_attention_s_per_token[1:top]
        ) * (batch * short + grown)
        graph = np.asarray(times.graph_linear_s[1:top])
        mixed = float(self.times.least_linear[1] + (1 - 1 / times.stages) * graph.min() + cache.min())
        return min(float((graph + cache).min()), mixed)

    @property
    def _outside_s(self) -> float:
        """Seconds outside the engine of the requests at this share; evenly from 0 to twice the mean."""
        slow = 0.0 if _spread(self.job) else min(2 * max(self.share - OUTSIDE_SLACK, 0.0), 1.0)
        return self.times.request_s * slow

    @property
    def _input(self) -> float:
        """Prompt that more than 1 − share of the requests have at least."""
        return length_at(self.job.input_tokens, self.job.input_tokens_p99, self.share)

    @property
    def _output(self) -> float:
        """Output that more than 1 − share of the requests have at least."""
        return length_at(self.job.output_tokens, self.job.output_tokens_p99, self.share)


def length_at(mean: int, p99: int | None, share: float) -> float:
    """Tokens that at most this share of some hundred drawn requests stay below; at most the mean.

    >>> length_at(1000, None, 0.5), length_at(1000, 1000, 0.0), length_at(1000, 4000, 0.0)
    (1000.0, 1000.0, 1.0)
    >>> 500 < length_at(1000, 4000, 0.5) < 1000 == length_at(1000, 4000, 0.99)
    True
    """
    if p99 is None or p99 <= mean:
        return float(mean)
    level = min(share - 4 * sqrt(share * (1 - share) / FEWEST_COUNTED), 1 - 1e-9)
    if level <= 0:
        return 1.0
    mu, sigma = lognormal_parameters(mean, p99)
    return max(min(exp(mu + sigma * NormalDist().inv_cdf(level)), float(mean)), 1.0)


def least_attention_s(times: StepTimes, new_tokens: float) -> float:
    """Least seconds of attention of a prompt, however it is cut: its chunks hold new_tokens²/2 pairs or more.

    Seconds per query–key pair are least at a grid point, because the interpolation of q·past + q²/2 lies
    above it.
    """
    return times.least_pair_s * new_tokens * new_tokens / 2


def _shortest(mean: int, p99: int | None) -> float:
    """Shortest length that can be drawn."""
    return length_at(mean, p99, 0.0)


def _spread(job: ServingJob) -> bool:
    """Whether requests differ in length."""
    return _shortest(job.input_tokens, job.input_tokens_p99) < job.input_tokens or (
        _shortest(job.output_tokens, job.output_tokens_p99) < job.output_tokens
    )
