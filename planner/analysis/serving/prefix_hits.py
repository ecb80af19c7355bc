"""What the prefix caches of a plan would find in its trace, by the policy of the router in front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from costmodel.serving.simulation.load import Load, Policy
from costmodel.serving.simulation.prefix_cache import POLICIES, prefix_hits
from planner.serving.plan import ServingPlan

MOST_LOOKED_UP = 1_000_000
"""Lookups of a prompt in a cache that a trace is followed for, about a second: its first requests."""


def followed_requests(plan: ServingPlan, trace: Load) -> int:
    """Requests of the trace, from its first, that are followed."""
    return min(len(trace), max(MOST_LOOKED_UP // (plan.prefill or plan.decode).workers, 1))


def hit_rates(plan: ServingPlan, trace: Load) -> Mapping[Policy, float]:
    """Share of the trace's prompt tokens that are found, by policy; none of a trace without hashes.

    In the pool that computes prompts, each worker with the whole of its cache.
    """
    if not trace.block_hashes:
        return {}
    pool, count = plan.prefill or plan.decode, followed_requests(plan, trace)
    head = replace(
        trace, input_tokens=trace.input_tokens[:count], block_hashes=trace.block_hashes[:count],
    )  # fmt: skip
    return {
        policy: prefix_hits(
            head, replicas=pool.workers, capacity_tokens=pool.kv_capacity_tokens, policy=policy
        ).rate
        for policy in POLICIES
    }


def hits_in_words(plan: ServingPlan, trace: Load) -> str:
    """The same in a line, nothing of a trace without hashes."""
    rates = ", ".join(f"{policy} {rate:.0%}" for policy, rate in hit_rates(plan, trace).items())
    if not rates:
        return ""
    pool = plan.prefill or plan.decode
    return (
        f"prefix caches of {pool.workers} × {pool.kv_capacity_tokens:,} tokens would find of "
        f"{followed_requests(plan, trace):,} prompts, by router: {rates}; {_counted(plan)}"
    )


def _counted(plan: ServingPlan) -> str:
    """Whether the plan counts what is found."""
    router = plan.request.router
    return (
        f"the plan counts {router}" if router else "the plan computes every prompt in full (--router POLICY)"
    )
