"""Why no replica can serve a job: the model does not fit, or a limit is below what an empty engine needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from costmodel.models.spec import ModelSpec
from costmodel.serving.deployment import Deployment, Weights, weight_bytes
from costmodel.serving.engine import ServingStack, serving_stack
from costmodel.serving.formats import format_of, is_sure, serves_format
from costmodel.serving.held import HeldCache, held_cache
from costmodel.serving.mixers import splits_recurrence
from planner.serving.plan import ServingInfeasible, ServingRequest
from planner.serving.replica import (
    OUT_OF_MEMORY,
    WHOLE,
    Rejected,
    holds_requests,
    longest_drawn,
    token_budgets,
)
from planner.serving.space import deployment_of, layouts_of
from topology.base.units import format_bytes, format_seconds
from topology.fabric.hierarchy import Hierarchy
from topology.hardware.gpu import Gpu

NARROWER: tuple[Weights, ...] = ("fp8", "int8", "int4", "fp4")
_FLAGS = {"time to first token": "--ttft", "time per output token": "--tpot", "end-to-end time": "--e2e"}


def infeasible_fleet(
    request: ServingRequest, hierarchy: Hierarchy, rejected: Sequence[Rejected]
) -> ServingInfeasible:
    """The nearest miss when no layout is left, by what removed the layouts.

    Pins that no layout has; limits that an empty engine breaks; memory, where more would serve; else what the
    engine cannot do.
    """
    if not layouts_of(request, hierarchy):
        return _not_offered(request, hierarchy)
    slow = [
        option for option in rejected if option.best_ttft_s is not None and option.best_tpot_s is not None
    ]
    if slow:
        return _too_slow(request, hierarchy, slow)
    reasons = tuple(dict.fromkeys(option.reason for option in rejected))
    is_too_large = OUT_OF_MEMORY in reasons and (len(reasons) == 1 or not request.pins)
    return _too_large(request, hierarchy) if is_too_large else _cannot(request, reasons)


def _size(request: ServingRequest, hierarchy: Hierarchy) -> str:
    """The GPUs that may be used, in words."""
    return f"{request.num_gpus}" if request.num_gpus else f"up to {hierarchy.num_gpus}"


def _not_offered(request: ServingRequest, hierarchy: Hierarchy) -> ServingInfeasible:
    """No layout has what was pinned: the degrees that there are, and why there are no others."""
    pins = dict(request.pins or {})
    alone = {name: value for name, value in pins.items() if not layouts_of(request, hierarchy, {name: value})}
    offered = {}
    for name in alone or pins:
        others = {} if alone else {other: value for other, value in pins.items() if other != name}
        offered[name] = sorted({getattr(layout, name) for layout in layouts_of(request, hierarchy, others)})
    if alone:
        why = f"{request.model.name} on {_size(request, hierarchy)} GPUs has no such degree"
    else:
        why = "no layout has these degrees together"
    degrees = "; ".join(f"{name} may be {', '.join(map(str, values))}" for name, values in offered.items())
    words = " and ".join(f"layout.{name}={pins[name]}" for name in offered)
    return ServingInfeasible(
        what=f"no replica with {words} is searched on {request.gpu}",
        cause=f"{why}: {degrees}",
        fix=f"give one of these degrees, or leave out --set layout.{next(iter(offered))}",
    )


def _cannot(request: ServingRequest, reasons: Sequence[str]) -> ServingInfeasible:
    """Every layout was left out for what the engine cannot do, as far as it is modelled."""
    return ServingInfeasible(
        what=f"no {' or '.join(request.modes)} replica of {request.engine} serves {request.model.name}",
        cause=f"every layout {' or '.join(reasons)}",
        fix="leave out "
        + (
            " and ".join(f"--set layout.{name}={value}" for name, value in request.pins.items())
            if request.pins
            else "--mode, or name another engine or GPU"
        ),
    )


def _too_large(request: ServingRequest, hierarchy: Hierarchy) -> ServingInfeasible:
    """The model does not fit: what the layout with the most room holds, beside what one request needs."""
    job = request.job
    size = _size(request, hierarchy)
    inputs, outputs = job.input_tokens_p99 or job.input_tokens, job.output_tokens_p99 or job.output_tokens
    longest, drawn = f"{inputs:,} + {outputs:,}", longest_drawn(job)
    tail = drawn > job.input_tokens + job.output_tokens
    mean = f"{job.input_tokens:,} + {job.output_tokens:,}"
    means = f" (one in a hundred; the mean is {mean}, the longest {drawn:,})" if tail else ""
    layout, held = _roomiest(request, hierarchy)
    memory = format_bytes(hierarchy.gpu.memory_bytes)
    weights, room = format_bytes(held.weights_bytes), format_bytes(held.weights_bytes + held.cache_bytes)
    left = f"{held.cache_tokens:,} tokens of cache" if held.cache_bytes > 0 else "no cache"
    return ServingInfeasible(
        what=f"{request.model.name} in {'/'.join(request.weights)} does not fit on {size} × {request.gpu}",
        cause=f"{layout} has the most room: weights {weights} a GPU, where {request.engine} has {room} of "
        f"{memory} for them and the cache; {left}, where one request has {longest} tokens{means}",
        fix=f"use more or larger GPUs{_roomier(request, hierarchy)}",
        held=held,
        starts=held.longest_tokens >= inputs + outputs,
    )


def _roomiest(request: ServingRequest, hierarchy: Hierarchy) -> tuple[str, HeldCache]:
    """The layout whose attention ranks hold most when each runs one request, and what a GPU holds then."""

    def held(deployment: Deployment) -> HeldCache:
        return held_cache(
            deployment,
            token_budget=min(token_budgets(deployment, request.job, WHOLE)),
            max_batch=deployment.layout.attention_dp,
            longest=request.length_limit or request.model.max_sequence_length,
            shortens=request.length_limit is None,
        )

    each = [
        (f"{layout.label} {weights}" if len(request.weights) > 1 else layout.label, held(deployment))
        for layout in layouts_of(request, hierarchy)
        for weights in request.weights
        for deployment in [deployment_of(request, hierarchy, weights, layout)]
        if splits_recurrence(deployment)
    ]

    def room(layout: tuple[str, HeldCache]) -> tuple[float, ...]:
        held = layout[1]
        return held.longest_tokens, held.cache_tokens, held.cache_bytes

    return max(each, key=room)


ROOMIER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--kv fp8", {"kv_dtype": "fp8"}),
    ("--memory-fraction 0.95", {"memory_fraction": 0.95}),
    ("--kv fp8 --memory-fraction 0.97", {"kv_dtype": "fp8", "memory_fraction": 0.97}),
)
"""Flags that leave the cache more room, and what they change of a job."""


def _roomier(request: ServingRequest, hierarchy: Hierarchy) -> str:
    """The fewest flags with which some layout of the same weights holds a request; "" where none do."""
    for flags, changed in ROOMIER:
        job = request.job
        if changed.items() <= {"kv_dtype": job.kv_dtype, "memory_fraction": job.memory_fraction}.items():
            continue
        wider = replace(request, job=replace(job, **changed))
        for layout in layouts_of(wider, hierarchy):
            deployment = deployment_of(wider, hierarchy, request.weights[0], layout)
            budget = min(token_budgets(deployment, wider.job, WHOLE))
            if splits_recurrence(deployment) and holds_requests(deployment, wider.job, budget):
                return f", or {flags}"
    return ""


def fitting_weights(request: ServingRequest, hierarchy: Hierarchy) -> tuple[Weights, ...]:
    """Precisions narrower than those asked for that the GPU has and in which some layout fits."""
    layouts = layouts_of(request, hierarchy)
    least = min(weight_bytes(weights) for weights in request.weights)
    return tuple(
        weights
        for weights in NARROWER
        if weight_bytes(weights) < least
        and (weights != "fp4" or "fp4" in hierarchy.gpu.peak_flop_per_s)
        and serves_weights(serving_stack(request.engine), hierarchy.gpu, weights, request.model)
        and any(
            splits_recurrence(deployment)
            and holds_requests(deployment, request.job, min(token_budgets(deployment, request.job, WHOLE)))
            for deployment in (deployment_of(request, hierarchy, weights, layout) for layout in layouts)
        )
    )


def serves_weights(engine: ServingStack, gpu: Gpu, weights: Weights, model: ModelSpec | None = None) -> bool:
    """Whether an engine serves weights of this format on the GPU, of a model or of any without experts.

    Integers are weights alone; floats must be multiplied as such, or widened by the engine.
    """
    name, experts = format_of(weights, model, gpu), model is not None and model.is_moe
    return serves_format(engine.name, gpu, name, experts=experts) and is_sure(engine.name, gpu, name)


def _too_slow(request: ServingRequest, hierarchy: Hierarchy, slow: Sequence[Rejected]) -> ServingInfeasible:
    """Every layout that fits breaks a limit when empty; the limits they break are named."""
    size = _size(request, hierarchy)
    pairs = [(option.best_ttft_s or 0.0, option.best_tpot_s or 0.0) for option in slow]
    ttft, tpot = (min(values) for values in zip(*pairs, strict=True))
    broken = sorted({_FLAGS[option.reason] for option in slow})
    best = f"first token {format_seconds(ttft)}, output token {format_seconds(tpot)}"
    return ServingInfeasible(
        what=f"no layout of {size} × {request.gpu} meets the limits even when empty",
        cause=f"bounds that no layout is below: {best}",
        fix=f"relax {' or '.join(broken)}, shorten the prompt, or use faster GPUs or fewer bits",
        best_ttft_s=ttft,
        best_tpot_s=tpot,
    )
