"""Speed of a user against that of a GPU: the replicas of a question that no other beats in both.

Every layout, precision and chunk size of the plan's GPU kind is simulated with 1, 2, 3, 4, 6, … requests in
flight up to what its cache holds. A limit on the first token holds at every point; those on speed do not
choose, since what they cost is the question: points say whether they keep them. Replicas serve whole
requests and have pipeline stages only where none without fits, as no measured run has stages; pairs of
pools are no part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.serving.bands import unmeasured_axes
from planner.questions.serving.understand import Asked
from planner.serving.answer import prompt_time_share
from planner.serving.board import RESOLUTION, enumerate_options
from planner.serving.capacity import closed_run
from planner.serving.plan import ServingPlan, ServingRequest
from planner.serving.replica import Option, with_chunks
from planner.serving.trade_offs import FrontierPoint
from topology.base.errors import InputError
from topology.base.units import HOUR, MEGA
from topology.fabric.hierarchy import Hierarchy


def with_frontier(asked: Asked, plan: ServingPlan) -> ServingPlan:
    """The plan, and the frontier of its GPU kind over the precisions of the question."""
    cal = load_calibration()
    points = [
        point
        for request, hierarchy in asked.requests
        if request.gpu == plan.request.gpu
        for point in operating_points(cal, request, hierarchy)
    ]
    return replace(plan, frontier=non_dominated(points))


def check_outputs(asked: Asked) -> None:
    """Refuse requests of one token, which have no time per output token.

    Raises:
        InputError: a request's output is one token.
    """
    if asked.requests[0][0].job.output_tokens < 2:
        raise InputError(
            what="requests of one token have no speed for a user",
            cause="--pareto with --output 1",
            fix="give --output of at least 2",
        )


def non_dominated(points: Iterable[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """Points than which none faster for a user is within 2 % for a GPU; the fastest for a user first."""
    kept: list[FrontierPoint] = []
    for point in sorted(
        points,
        key=lambda frontier_point: (
            -frontier_point.tokens_per_s_per_user,
            -frontier_point.tokens_per_s_per_gpu,
        ),
    ):
        if not kept or point.tokens_per_s_per_gpu > (1 + RESOLUTION) * kept[-1].tokens_per_s_per_gpu:
            kept.append(point)
    return tuple(kept)


def operating_points(
    cal: Calibration, request: ServingRequest, hierarchy: Hierarchy
) -> Iterator[FrontierPoint]:
    """Every replica at every number of requests in flight that keeps the limit on first tokens."""
    job = request.job
    free = replace(
        request,
        modes=("aggregated",),
        job=replace(
            job, ttft_s=None, tpot_s=None, end_to_end_s=None, request_rate_per_s=None, concurrency=None
        ),
    )
    options = enumerate_options(cal, free, hierarchy).options
    plain = [option for option in options if not unmeasured_axes(option.deployment.layout)]
    for option in plain or options:
        for concurrency in loads_up_to(option.rules.max_batch):
            points = (_point(request, with_chunk, concurrency) for with_chunk in with_chunks(option))
            yield from (point for point in points if job.ttft_s is None or point.ttft_s <= job.ttft_s)


def loads_up_to(most: int) -> tuple[int, ...]:
    """Requests in flight to try: powers of two and half as many more, and the largest number.

    >>> loads_up_to(20), loads_up_to(1)
    ((1, 2, 3, 4, 6, 8, 12, 16, 20), (1,))
    """
    steps = (size for power in range(most.bit_length()) for size in (2**power, 3 * 2**power // 2))
    return (*sorted({size for size in steps if size < most}), most)


def _point(request: ServingRequest, option: Option, concurrency: int) -> FrontierPoint:
    """One replica in a closed loop, its first round of requests, which all come at once, not counted."""
    job, run = request.job, closed_run(option, concurrency)
    steady = slice(concurrency, None)
    ttft, tpot, whole = run.ttft_s[steady], run.tpot_s[steady], run.end_to_end_s[steady]
    rate = concurrency / float(whole.mean())
    per_gpu = rate * float(run.output_tokens[steady].mean()) / option.num_gpus
    at = {
        name: float(np.nanpercentile(values, job.percentile))
        for name, values in (("ttft", ttft), ("tpot", tpot), ("end_to_end", whole))
    }
    limits = {"ttft": job.ttft_s, "tpot": job.tpot_s, "end_to_end": job.end_to_end_s}
    price, outputs = request.usd_per_gpu_hour, 1 - prompt_time_share(option, run.mean_batch)
    return FrontierPoint(
        label=option.label,
        num_gpus=option.num_gpus,
        token_budget=option.rules.token_budget,
        concurrency=concurrency,
        tokens_per_s_per_user=1 / float(np.nanmedian(tpot)),
        tokens_per_s_per_gpu=per_gpu,
        ttft_s=at["ttft"],
        tpot_s=at["tpot"],
        usd_per_million_output_tokens=None if price is None else outputs * price / HOUR / per_gpu * MEGA,
        kept=all(limit is None or at[name] <= limit for name, limit in limits.items()),
    )
