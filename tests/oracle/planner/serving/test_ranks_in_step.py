"""What attention ranks lose to long prompts, against a plain simulation of ranks that never run dry.

Each rank has a queue of its own and fills its token budget from it; a step lasts as long as its products of
one rank's tokens and the attention of the rank that is furthest into a prompt. Nothing arrives, nothing
decodes, no scheduler is shared: prompts a second follow from the tokens of some thousand steps alone.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from costmodel.job import ServingJob
from costmodel.models.catalog import model
from costmodel.serving.simulation.load import Lengths
from planner.serving.capacity import capacity_per_s
from planner.serving.plan import ServingRequest
from planner.serving.replica import Option, build_option, rate_bound_per_s
from planner.serving.space import deployment_of
from tests.unit.planner.serving.test_backlog import CAL, KINDS, TAIL
from topology.builders import default_cluster

STEPS, PROMPTS = 1500, 4000
AGREES = 0.05
"""Of two rates: the heaviest tail moves the plain one by 3 % from seed to seed."""
TENSOR, RANKS = (next(k for k in KINDS if "deepseek" in k[0] and k[3].attention_dp == n) for n in (1, 8))


def prompts_alone(kind: tuple, tail: float) -> Option:  # type: ignore[type-arg]  # arguments of a replica
    """A replica whose requests end with their first token."""
    name, gpu, engine, layout, tokens = kind
    job = ServingJob(input_tokens=tokens, output_tokens=1, input_tokens_p99=round(tail * tokens))
    request = ServingRequest(model=model(name), job=job, gpu=gpu, engine=engine, weights=("fp8",))
    deployment = deployment_of(request, default_cluster(gpu, 8).hierarchy, "fp8", layout)
    option = build_option(CAL, deployment, job)
    assert isinstance(option, Option), option
    return option


def plain_rate_per_s(option: Option, tail: float, tokens: int) -> float:
    """Prompts a second of ranks that always have one."""
    times, budget = option.times, option.rules.token_budget
    rng = np.random.default_rng(7)
    lengths = Lengths(mean=tokens, p99=tail * tokens if tail > 1 else None).draw(PROMPTS, rng).tolist()
    prompts = itertools.cycle(lengths)
    ranks = [[length := next(prompts), int(rng.uniform(0, length))] for _ in range(times.ranks)]
    seconds = computed = 0.0
    for _ in range(STEPS):
        attention_s = []
        for rank in ranks:
            left, own_s = budget, 0.0
            while left:
                chunk = min(left, rank[0] - rank[1])
                own_s += times.prefill_attention.at(chunk, rank[1])
                rank[1] += chunk
                left -= chunk
                if rank[1] == rank[0]:
                    rank[:] = next(prompts), 0
            attention_s.append(own_s)
        seconds += times.linear_at(budget, budget) + max(attention_s)
        computed += budget * times.ranks
    return computed / seconds / float(np.mean(lengths))


@pytest.mark.parametrize("tail", [1, 2, TAIL])
@pytest.mark.parametrize("kind", [TENSOR, RANKS], ids=["tp 8", "dp 8"])
def test_a_capacity_is_that_of_ranks_that_wait_for_the_longest(kind: tuple, tail: float) -> None:  # type: ignore[type-arg]  # arguments
    """Alone, and eight together, which lose half of it to prompts of four means at the 99th percentile."""
    option = prompts_alone(kind, tail)
    capacity = capacity_per_s(option, most_per_s=rate_bound_per_s(option))
    assert capacity == pytest.approx(plain_rate_per_s(option, tail, kind[4]), rel=AGREES)


def test_a_long_tail_costs_ranks_that_step_together_more_than_one_that_is_alone() -> None:
    """One waits for nobody; of eight, the one that is furthest into a long prompt holds all up."""
    alone, together = (
        plain_rate_per_s(prompts_alone(kind, TAIL), TAIL, kind[4])
        / plain_rate_per_s(prompts_alone(kind, 1), 1, kind[4])
        for kind in (TENSOR, RANKS)
    )
    assert together < 0.6
    assert alone > 0.8
