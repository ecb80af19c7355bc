"""What is left of each request of a load, and when what happened to it, as replicas note it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.serving.simulation.load import Load

NEVER = float("inf")


@dataclass(slots=True, kw_only=True)
class Requests:
    """Lists by request. Workers of a pool share them: a request is one worker's alone.

    Attributes:
        left: prompt tokens that are to be computed.
        context: tokens in its cache once they are.
        steps_left: steps that it takes part in for its output, that of its first token among them.
        held: tokens of the cache blocks of its prompt.
        finish_step: the step of its worker in which it ends, -1 unless it decodes.
        start_step: the step in which it began to.
        first_token_s: when its first token was seen; never so far.
        finish_s: the same of its last.
        admitted_s: when it began to run.
    """

    left: list[int]
    context: list[int]
    steps_left: list[int]
    held: list[float]
    finish_step: list[int]
    start_step: list[int]
    first_token_s: list[float]
    finish_s: list[float]
    admitted_s: list[float]

    @classmethod
    def of(cls, load: Load, *, tokens_per_step: float, block_tokens: int) -> Requests:
        """All that a load is to send, of which nothing has been sent."""
        count = len(load)
        steps = 1 + np.ceil((load.output_tokens - 1) / tokens_per_step)
        return cls(
            left=(load.input_tokens - load.cached_tokens).tolist(),
            context=load.input_tokens.tolist(),
            steps_left=steps.astype(int).tolist(),
            held=(-(-load.input_tokens // block_tokens) * block_tokens).astype(float).tolist(),
            finish_step=[-1] * count,
            start_step=[0] * count,
            first_token_s=[NEVER] * count,
            finish_s=[NEVER] * count,
            admitted_s=[NEVER] * count,
        )
