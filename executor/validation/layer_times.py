"""How long the layers of a rank take, forward and backward, and what the cost model says of one.

A layer's forward begins once its weights are gathered and ends before they are let go; its backward, with
what it recomputes, lasts from the gradient of its output to that of its input. Of messages only what a rank
alone does is in it: copies.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from costmodel.case import Case
from costmodel.layout import PLAIN_SCHEDULE, num_microbatches
from costmodel.models.spec import is_sliding
from costmodel.pipeline.schedules import RECORDS
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from executor.model.moe import MoE
from executor.model.transformer import CausalLM
from executor.parallel.programs import stages_of_rank
from executor.parallel.stages import recompute_counts
from executor.validation.expected_counts import STACK
from executor.validation.fake_rank import RankTask
from executor.validation.report import Check, RankMeasurement
from planner.plan import Plan, tables_of
from topology.base.units import format_seconds
from topology.builders import build

TOLERANCE = 0.10
NAME = "layer time"


class LayerTimes:
    """Beginnings and ends of passes through layers, by events of a GPU or by this machine's clock."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.forward: list[tuple[Any, Any]] = []
        self.backward: list[tuple[Any, Any]] = []

    @contextmanager
    def watching(self, model: CausalLM) -> Iterator[None]:
        """Take the times of a stage's layers, of those with routed experts where the model has any."""
        layers = list(model.model.layers.values())
        watched = [layer for layer in layers if isinstance(layer.mlp, MoE)] or layers
        handles = []
        for layer in watched:
            begun: list[Any] = []
            handles.append(layer.register_forward_pre_hook(functools.partial(self._before, begun)))
            handles.append(layer.register_forward_hook(functools.partial(self._after, begun)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def mean_s(self) -> tuple[float, float]:
        """Seconds of a layer's forward and of its backward pass; what was watched has ended."""
        return self._mean(self.forward), self._mean(self.backward)

    def _before(self, begun: list[Any], _module: Any, args: Any) -> None:
        if args[0].requires_grad:
            args[0].register_hook(lambda _: self.backward.append((begun.pop(), self._now())))
        self.forward.append((self._now(), None))

    def _after(self, begun: list[Any], _module: Any, _args: Any, output: torch.Tensor) -> None:
        self.forward[-1] = (self.forward[-1][0], self._now())
        if output.requires_grad:
            output.register_hook(lambda _: begun.append(self._now()))

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _mean(self, spans: list[tuple[Any, Any]]) -> float:
        if not spans:
            return 0.0
        if self.device.type == "cuda":
            return sum(start.elapsed_time(end) / 1e3 for start, end in spans) / len(spans)
        return sum(end - start for start, end in spans) / len(spans)


def layer_time(plan: Plan, task: RankTask, there: Sequence[RankMeasurement]) -> Check:
    """Whether a layer's forward and backward take what is estimated of one, on the plan's GPU.

    Args:
        plan: Of this executor.
        task: A rank of it.
        there: Ranks that ran on such a GPU.
    """
    request, schedule = plan.request, plan.layout.schedule
    if not there or RECORDS[schedule].splits_backward:
        reason = "no rank of the plan ran on its GPU here" if not there else f"{schedule} splits the backward"
        return Check(name=NAME, verdict="not checked here", detail=reason)
    case = Case(
        model=task.spec,
        cluster=build(request.cluster),
        job=request.job,
        stack=stack(STACK),
        cal=tables_of(plan),
    )
    errors = []
    for measured in there:
        measured_s = measured.layer_forward_s + measured.layer_backward_s
        estimated_s = estimated_layer_s(replace(task, stage=measured.stage), case)
        errors.append((estimated_s / measured_s - 1, estimated_s, measured_s, measured.stage))
    error, estimated_s, measured_s, stage = max(errors, key=lambda each: abs(each[0]))
    return Check(
        name=NAME,
        verdict="holds" if abs(error) <= TOLERANCE else "does not hold",
        detail=(
            f"forward and backward of a layer of stage {stage} estimated {format_seconds(estimated_s)}, "
            f"measured {format_seconds(measured_s)}, {error:+.1%}"
        ),
        value=error,
        unit="relative difference",
    )


def watched_layers(task: RankTask) -> tuple[list[int], list[int]]:
    """Layers of a rank that are timed, by their number in the model, and those of them that recompute."""
    layout, split, spec = task.layout, task.layers_of_stage, task.spec
    ends = list(itertools.accumulate(split))
    mine = stages_of_rank(layout.schedule, layout.pp, layout.virtual_stages, task.stage)
    recomputed = recompute_counts(
        layout, [split[index] for index in mine], task.recompute_of_stage, task.stage
    )
    watched: list[int] = []
    result: list[int] = []
    for index, count in zip(mine, recomputed, strict=True):
        held = range(ends[index] - split[index], ends[index])
        chosen = [layer for layer in held if spec.is_moe and layer >= spec.num_dense_layers] or list(held)
        watched += chosen
        result += [layer for layer in chosen if layer < held.start + count]
    return watched, result


def estimated_layer_s(task: RankTask, case: Case) -> float:
    """Seconds of a layer of a microbatch, forward and backward with what it recomputes.

    The mean over the layers that are timed, windows and dense ones in the numbers in which the rank has them.

    Args:
        task: The rank.
        case: What its layer is estimated against.
    """
    watched, result = watched_layers(task)
    plain_s, _ = _mean_layer_s(task, watched, case)
    if not result:
        return plain_s
    _, again_s = _mean_layer_s(task, result, case)
    return plain_s + again_s * len(result) / len(watched)


def _mean_layer_s(task: RankTask, layers: Sequence[int], case: Case) -> tuple[float, float]:
    """Seconds of one of these layers, forward and backward, and of what recomputing it adds.

    What these layers once more add to a step, over its microbatches; without a pipeline, as a layer is cut
    alike in all stages.
    """
    layout = replace(task.layout, pp=1, virtual_stages=1, schedule=PLAIN_SCHEDULE)
    spec = task.spec
    dense = sum(layer < spec.num_dense_layers for layer in layers)
    sliding = sum(is_sliding(spec, layer) for layer in layers)
    steps = []
    for times in (2, 1):
        some = replace(
            spec,
            num_layers=times * len(layers),
            num_dense_layers=times * dense,
            num_sliding_layers=times * sliding,
        )
        steps.append(estimate(replace(case, model=some), layout).time)
    more, less = steps
    M = num_microbatches(layout, case.job) * len(layers)
    return (more.compute_s - less.compute_s) / M, (more.recompute_s - less.recompute_s) / M
