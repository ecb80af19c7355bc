"""Hit rates beside a plan: of the workers that compute prompts, with their own caches."""

from dataclasses import replace

import numpy as np

from costmodel.serving.simulation.prefix_cache import prefix_hits
from planner.analysis.serving.prefix_hits import hit_rates, hits_in_words
from planner.questions.serving.caches import caches_note
from tests.unit.costmodel.serving.test_prefix_cache import conversations
from tests.unit.planner.deployment.fleets import planned, resized


def test_rates_are_those_of_the_pool_that_computes_prompts() -> None:
    """Of two pools the prefill's; by policy, and told in a line with the size of the caches."""
    trace = conversations(9, 6)
    two, one = planned("vllm"), resized("vllm", None, (3, 2))
    for plan, pool in ((two, two.prefill), (one, one.decode)):
        assert pool is not None
        rates = hit_rates(plan, trace)
        assert (
            rates["round-robin"]
            == prefix_hits(
                trace, replicas=pool.workers, capacity_tokens=pool.kv_capacity_tokens, policy="round-robin"
            ).rate
        )
        words = hits_in_words(plan, trace)
        assert f"{pool.workers} × {pool.kv_capacity_tokens:,} tokens" in words
        assert f"prefix-aware {rates['prefix-aware']:.0%}" in words


def test_a_trace_without_hashes_says_nothing() -> None:
    """Lengths alone tell of no prefix."""
    trace = replace(conversations(2, 2), block_hashes=())
    assert np.all(trace.cached_tokens == 0)
    assert hits_in_words(planned("vllm"), trace) == ""
    assert caches_note(trace) == caches_note(None) == ()


def test_a_given_server_under_a_trace_with_hashes_says_that_no_cache_is_followed() -> None:
    """An engine keeps prefixes by default, so latencies without them are too long: the share is told."""
    trace = conversations(9, 6)
    (note,) = caches_note(trace)
    endless = prefix_hits(trace, replicas=1, capacity_tokens=float("inf"), policy="round-robin").rate
    assert "every prompt is computed in full" in note
    assert f"{endless:.0%} of the trace's prompt tokens" in note
