"""One GPU plays one rank of a full-size plan: real kernels, and a process group whose messages go nowhere.

Weights and tokens are drawn, but what other ranks would send is not there, so routing is balanced and the
loss means nothing; memory and the time of each chunk of computation are real. Communication, overlap and
bubbles cannot be seen this way.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

import torch

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
from executor.validation.memory_trace import few_microbatches
from executor.validation.report import RankMeasurement

STEPS = 3  # the first two allocate and warm up


def measure_rank(task: RankTask) -> RankMeasurement:
    """Run a rank on the first GPU of this machine, in a process that does nothing else."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    task = few_microbatches(task)
    with fake_group(task.layout.num_gpus, first_rank_of_stage(task.layout, task.stage)):
        rank = drawn_rank(task, device)
        pipeline = rank.pipeline
        pipeline.after_compute = torch.cuda.synchronize
        for step in range(STEPS):
            pipeline.spans = [] if step == STEPS - 1 else None
            rank.forward_backward()
            rank.update()
            torch.cuda.synchronize()
        memory_bytes = float(torch.cuda.get_device_properties(device).total_memory)
        return replace(_summary(rank), gpu=torch.cuda.get_device_name(device), gpu_memory_bytes=memory_bytes)


def drawn_rank(task: RankTask, device: torch.device) -> FakeRank:
    """A rank inside a fake group whose weights are drawn as training draws them, and its tokens at random.

    Products of zeros draw less power, and a GPU then clocks higher than it does in training.
    """
    pipeline = build_rank(task, device)
    for stage in pipeline.stages:
        initialize(stage.module, pipeline.meshes, seed=0, device=device)
    optimizer = sharded_optimizer(task.optimizer, pipeline, settings_of(task))
    return FakeRank(task=task, pipeline=pipeline, optimizer=optimizer, vocabulary=task.spec.vocab_size)


def _summary(rank: FakeRank) -> RankMeasurement:
    """Median chunks and the peak."""
    spans = rank.pipeline.spans or []
    forward = [span.end_s - span.start_s for span in spans if span.action.kind == "F"]
    backward = [span.end_s - span.start_s for span in spans if span.action.kind in ("B", "I")]
    return RankMeasurement(
        stage=rank.task.stage,
        gpu="",
        peak_bytes=float(torch.cuda.max_memory_allocated()),
        estimated_bytes=0.0,
        forward_s=statistics.median(forward),
        backward_s=statistics.median(backward),
    )
