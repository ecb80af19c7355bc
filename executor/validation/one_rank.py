"""One GPU plays one rank of a full-size plan: real kernels, and a process group whose messages go nowhere.

Weights and tokens are drawn, but what other ranks would send is not there, so routing is balanced and the
loss means nothing; memory and the time of each chunk of computation are real. Communication, overlap and
bubbles cannot be seen this way.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile

from executor.parallel.pipeline import Pipeline
from executor.parallel.weights import initialize
from executor.training.muon import sharded_optimizer
from executor.validation.fake_rank import (
    FakeRank,
    RankTask,
    build_rank,
    fake_group,
    first_rank_of_stage,
    settings_of,
)
from executor.validation.layer_times import LayerTimes
from executor.validation.memory_trace import few_microbatches
from executor.validation.report import RankMeasurement
from topology.base.units import US

WARM_STEPS = 2  # allocate, choose kernels, and show the peak
KERNELS = 12  # that are named
FIRST_GPU = torch.device("cuda", 0)


def measure_rank(
    task: RankTask, device: torch.device = FIRST_GPU, most_kernels: int = KERNELS
) -> RankMeasurement:
    """Run a rank on the first GPU of this machine, in a process that does nothing else.

    What is timed begins with weights as they were drawn: sums of gradients that nobody sends are whatever was
    in memory (torch 2.11), and what an update makes of them need not be a number. A CPU has no peak.
    """
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    finish = torch.cuda.synchronize if on_gpu else _nothing
    task = few_microbatches(task)
    with fake_group(task.layout.num_gpus, first_rank_of_stage(task.layout, task.stage)):
        rank = drawn_rank(task, device)
        pipeline = rank.pipeline
        pipeline.after_compute = finish
        for _ in range(WARM_STEPS):
            rank.forward_backward()
            rank.update()
            finish()
        peak_bytes = float(torch.cuda.max_memory_allocated()) if on_gpu else 0.0
        _draw(pipeline)
        pipeline.spans, times = [], LayerTimes(device)
        with contextlib.ExitStack() as watched:
            for stage in pipeline.stages:
                watched.enter_context(times.watching(stage.module))
            rank.forward_backward()
            finish()
        summary = _summary(rank, peak_bytes)
        pipeline.spans = None
        kernels = longest_kernels(rank.forward_backward, device, most_kernels)
        forward_s, backward_s = times.mean_s()
        return replace(
            summary,
            gpu=torch.cuda.get_device_name(device) if on_gpu else device.type,
            gpu_memory_bytes=float(torch.cuda.get_device_properties(device).total_memory) if on_gpu else 0.0,
            layer_forward_s=forward_s,
            layer_backward_s=backward_s,
            kernels=kernels,
        )


def longest_kernels(
    run: Callable[[], object], device: torch.device, most: int
) -> tuple[tuple[str, float], ...]:
    """Names and seconds of what takes longest in a run: kernels of a GPU, operators of a CPU."""
    on_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiled:
        run()
        if on_gpu:
            torch.cuda.synchronize()
    seconds = {
        event.key: (event.self_device_time_total if on_gpu else event.self_cpu_time_total) * US
        for event in profiled.key_averages()
    }
    return tuple(sorted(seconds.items(), key=lambda item: -item[1])[:most])


def _nothing() -> None:
    """A CPU has finished already."""


def drawn_rank(task: RankTask, device: torch.device) -> FakeRank:
    """A rank inside a fake group whose weights are drawn as training draws them, and its tokens at random.

    Products of zeros draw less power, and a GPU then clocks higher than it does in training.
    """
    pipeline = build_rank(task, device)
    _draw(pipeline)
    optimizer = sharded_optimizer(task.optimizer, pipeline, settings_of(task))
    return FakeRank(task=task, pipeline=pipeline, optimizer=optimizer, vocabulary=task.spec.vocab_size)


def _draw(pipeline: Pipeline) -> None:
    """Draw the weights of all stages, N(0, 0.02²)."""
    for stage in pipeline.stages:
        initialize(stage.module, pipeline.meshes, seed=0, device=pipeline.device)


def _summary(rank: FakeRank, peak_bytes: float) -> RankMeasurement:
    """Median chunks."""
    spans = rank.pipeline.spans or []
    forward = [span.end_s - span.start_s for span in spans if span.action.kind == "F"]
    backward = [span.end_s - span.start_s for span in spans if span.action.kind in ("B", "I")]
    return RankMeasurement(
        stage=rank.task.stage,
        gpu="",
        peak_bytes=peak_bytes,
        estimated_bytes=0.0,
        forward_s=statistics.median(forward),
        backward_s=statistics.median(backward),
    )
