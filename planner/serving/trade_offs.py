"""What stands beside a serving plan where it was asked: limits relaxed, and replicas that no other beats."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.serving.deployment import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRelaxed:
    """The answer to the same question with one limit relaxed by a step.

    `limit` is ttft, tpot, end_to_end or percentile, `asked` and `relaxed` its values in seconds (the
    percentile in per cent). Of `lengths`, requests that are all alike, they are tokens: the 99th percentile
    of prompts and their mean. What is saved is against the plan it stands beside, and negative where the
    other fleet needs more of it. A fleet of a given size saves nothing and serves `more_requests_per_s`
    instead.
    """

    limit: str
    asked: float
    relaxed: float
    gpu: str
    weights: Weights
    label: str
    num_gpus: int
    usd_per_hour: float | None
    saved_gpus: int = 0
    saved_usd_per_hour: float | None = None
    more_requests_per_s: float = 0.0

    @property
    def changes(self) -> bool:
        """Whether the answer is another one: fewer GPUs, fewer dollars, or more requests."""
        saved = (self.saved_gpus, self.saved_usd_per_hour or 0.0, self.more_requests_per_s)
        return any(saved)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """A replica with so many requests in flight that no other serves both a user and a GPU faster.

    Output tokens a second: of the replica by its GPUs, and of one user, 1/median time per output token.
    `token_budget` are the tokens of a step. Latencies are at the job's percentile; the limit on the first
    token holds, `kept` says whether the others do. Dollars are those of the GPUs' time that outputs take;
    prompts have the rest, as in a plan.
    """

    label: str
    num_gpus: int
    token_budget: int
    concurrency: int
    tokens_per_s_per_user: float
    tokens_per_s_per_gpu: float
    ttft_s: float
    tpot_s: float
    usd_per_million_output_tokens: float | None
    kept: bool
