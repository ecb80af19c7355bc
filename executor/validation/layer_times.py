"""How long the layers of a rank take, forward and backward, and what the cost model says of one.

A layer's forward begins once its weights are gathered and ends before they are let go; its backward, with
what it recomputes, lasts from the gradient of its output to that of its input. Of messages only what a rank
alone does is in it: copies.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from costmodel.job import TrainingJob
from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.layout import PLAIN_SCHEDULE
from costmodel.models.spec import with_layers
from costmodel.pipeline.schedules import RECORDS
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from executor.model.moe import MoE
from executor.model.transformer import CausalLM
from executor.validation.expected_counts import STACK
from executor.validation.fake_rank import RankTask
from executor.validation.report import Check, RankMeasurement
from planner.plan import Plan
from topology.base.units import format_seconds
from topology.builders import build
from topology.cluster import Cluster

DEPTHS = (3, 2)  # layers of two models whose difference is one layer
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
    plain_s, again_s = estimated_layer_s(task, request.job, build(request.cluster), load_calibration())
    errors = []
    for found in there:
        measured_s = found.layer_forward_s + found.layer_backward_s
        estimated_s = plain_s + again_s * _share(plan, found.stage)
        errors.append((estimated_s / measured_s - 1, estimated_s, measured_s, found.stage))
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


def _share(plan: Plan, stage: int) -> float:
    """Share of a pipeline rank's layers that are recomputed whole."""
    if plan.layout.recompute != "full":
        return 0.0
    held = sum(plan.layers_of_stage) / plan.layout.pp
    return min(1.0, plan.recompute_of_stage[stage] / held)


def estimated_layer_s(
    task: RankTask, job: TrainingJob, cluster: Cluster, cal: Calibration
) -> tuple[float, float]:
    """Seconds of a layer of a microbatch, forward and backward, and of what full recomputation adds.

    The computation that one layer more adds to a step, over its microbatches; without a pipeline, as a layer
    is cut alike in all stages.

    Args:
        task: The rank.
        job: Its sequences.
        cluster: Its GPUs.
        cal: Tables of kernels.
    """
    alone = replace(task.layout, pp=1, virtual_stages=1, schedule=PLAIN_SCHEDULE, recompute="none")
    steps = []
    for depth in DEPTHS:
        spec = with_layers(task.spec, depth, min(task.spec.num_dense_layers, 1))
        again = replace(alone, recompute="full")
        plain, repeated = (
            estimate(spec, cluster, job, stack(STACK), layout, cal).time for layout in (alone, again)
        )
        steps.append((plain.compute_s, repeated.recompute_s))
    M = job.global_batch_size / (alone.dp * alone.microbatch_size)
    (more, more_again), (less, less_again) = steps
    return (more - less) / M, (more_again - less_again) / M
