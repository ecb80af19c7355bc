"""What the replicas of a fleet hold as they start."""

from __future__ import annotations

from costmodel.serving.held import HeldCache, held_cache
from planner.serving.plan import ServingRequest
from planner.serving.replica import Option


def held_by(request: ServingRequest, option: Option) -> HeldCache:
    """What one GPU of a replica holds, in requests as long as its cache takes or as the engine is told."""
    return held_cache(
        option.deployment,
        token_budget=option.rules.token_budget,
        max_batch=option.sampled,
        longest=request.length_limit or option.deployment.model.max_sequence_length,
        shortens=request.length_limit is None,
    )
