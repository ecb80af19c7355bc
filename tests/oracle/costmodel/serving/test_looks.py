"""Engines that look for requests every n decode steps, against a loop that takes one step at a time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from costmodel.serving.simulation.load import Load
from costmodel.serving.simulation.scheduler import Scheduler
from costmodel.serving.simulation.simulator import simulate
from costmodel.serving.step_table import AttentionGrid, StepTimes

PROMPT_S, LAUNCHED_S = 0.001, 0.05
"""Of a prompt token, and of a step with prompts beside them."""
STEP_S, EACH_S = 0.01, 0.001
"""Of a decode step, and of each request in it."""
MOST = 64


def times() -> StepTimes:
    """Steps whose seconds are known by heart, without attention."""
    return StepTimes(
        linear_s=tuple(LAUNCHED_S + PROMPT_S * m for m in range(20_000)),
        graph_linear_s=tuple(STEP_S + EACH_S * b for b in range(MOST + 1)),
        decode_attention_s=(0.0,) * (MOST + 1),
        decode_attention_s_per_token=(0.0,) * (MOST + 1),
        prefill_attention=AttentionGrid(
            query_tokens=(0, 10**6), past_tokens=(0, 10**6), seconds=((0, 0), (0, 0))
        ),
    )


def step_by_step(
    inputs: NDArray[np.int64], outputs: NDArray[np.int64], concurrency: int, steps: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """First and last tokens of a closed loop, one step after the other: prompts first, all that were seen.

    The engine looks when it is idle, after a step with prompts, and every so many decode steps.
    """
    count = len(inputs)
    first, last = np.zeros(count), np.zeros(count)
    sent = [(0.0, i) for i in range(concurrency)]
    left: dict[int, int] = {}
    clock, since, after_prompts, upcoming = 0.0, 0, False, concurrency
    while sent or left:
        looks = not left or after_prompts or since >= steps
        seen = [i for ready, i in sent if ready <= clock] if looks else []
        if looks:
            since, after_prompts = 0, False
        if seen:
            sent = [each for each in sent if each[1] not in seen]
            clock += LAUNCHED_S + PROMPT_S * int(inputs[seen].sum())
            after_prompts = True
            for i in seen:
                first[i], left[i] = clock, int(outputs[i]) - 1
        else:
            clock += STEP_S + EACH_S * len(left)
            since += 1
            left = {i: rest - 1 for i, rest in left.items()}
        for i in [i for i, rest in left.items() if rest == 0]:
            del left[i]
            last[i] = clock
            if upcoming < count:
                sent.append((clock, upcoming))
                upcoming += 1
    return first, last


@pytest.mark.parametrize("steps", [1, 2, 7, 30])
@pytest.mark.parametrize("concurrency", [1, 5, 16])
def test_requests_are_found_together(concurrency: int, steps: int) -> None:
    """Every first and last token of a hundred requests of all lengths, to the last bit but rounding."""
    rng = np.random.default_rng(steps)
    inputs, outputs = rng.integers(1, 200, 100), rng.integers(2, 90, 100)
    load = Load(
        input_tokens=inputs,
        output_tokens=outputs,
        cached_tokens=np.zeros(100, dtype=np.int64),
        arrival_s=np.empty(0),
        concurrency=concurrency,
    )
    rules = Scheduler(
        token_budget=10_000,
        max_batch=MOST,
        kv_capacity_tokens=10**7,
        mixed=False,
        chunked=True,
        polling_steps=steps,
    )
    found = simulate(times(), rules, load)
    first, last = step_by_step(inputs, outputs, concurrency, steps)
    np.testing.assert_allclose(found.first_token_s, first, rtol=1e-9)
    np.testing.assert_allclose(found.finish_s, last, rtol=1e-9)
