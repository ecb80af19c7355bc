"""One process that plays one rank of any plan: a fake process group, and fake tensors that take no memory.

The rank is built and run by the same code as a real one; only the tensors have no values and the collectives
no peers. `executor.validation.memory_trace` measures its memory, `executor.validation.counts` what it
computes and sends.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from costmodel.pipeline.derived import order_needs_per_rank
from costmodel.updates.adapters import Adapter
from executor.comm.mesh import build_meshes, rank_grid
from executor.model.moe import Router
from executor.model.products.formats import EightBits
from executor.parallel.parallelize import COMPUTE_DTYPES, ComputeDtype
from executor.parallel.pipeline import Pipeline, build_pipeline, run_step
from executor.parallel.programs import programs
from executor.parallel.weights import materialize
from executor.torch_internals.fakes import fake_tensors
from executor.torch_internals.groups import end_fake_group, start_fake_group
from executor.torch_internals.quiet import quiet_known_warnings
from executor.training.batches import mean_loss
from executor.training.gradients import clip, finish_gradients, total_norm
from executor.training.muon import sharded_optimizer
from executor.training.optimizer import OptimizerSettings, ShardedAdamW

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """Which rank of which job to play: the arguments of `build_pipeline`, and the pipeline rank."""

    spec: ModelSpec
    layout: ParallelLayout
    sequence_length: int
    num_microbatches: int
    layers_of_stage: tuple[int, ...]
    recompute_of_stage: tuple[int, ...]
    stage: int
    precision: ComputeDtype = "bf16"
    eight_bits: EightBits | None = None
    optimizer: str = "adamw"
    adapter: Adapter | None = None
    compression: str | None = None


@contextlib.contextmanager
def fake_group(num_ranks: int, rank: int) -> Iterator[None]:
    """Be rank `rank` of `num_ranks` whose collectives return at once, moving nothing."""
    start_fake_group(num_ranks, rank)
    try:
        yield
    finally:
        end_fake_group()


def settings_of(task: RankTask) -> OptimizerSettings:
    """An optimizer's settings that compute as the task does."""
    return OptimizerSettings(products=COMPUTE_DTYPES[task.precision])


def build_rank(task: RankTask, device: torch.device) -> Pipeline:
    """Build the first rank of a stage inside a fake group; routing is balanced, values are undefined."""
    meshes = build_meshes(task.layout, device.type, experts=task.spec.is_moe)
    pipeline = build_pipeline(
        task.spec,
        task.layout,
        meshes,
        sequence_length=task.sequence_length,
        num_microbatches=task.num_microbatches,
        layers_of_stage=task.layers_of_stage,
        recompute_of_stage=task.recompute_of_stage,
        precision=task.precision,
        eight_bits=task.eight_bits,
        adapter=task.adapter,
        compression=task.compression,
        device=device,
    )
    for stage in pipeline.stages:
        for module in stage.module.modules():
            if isinstance(module, Router):
                module.balanced = True
    return pipeline


def first_rank_of_stage(layout: ParallelLayout, stage: int) -> int:
    """Global rank of the first of the ranks that hold a stage."""
    return int(rank_grid(layout)[stage].min())


@dataclass(slots=True, kw_only=True)
class FakeRank:
    """A rank ready to run steps; its tokens are all zero, or drawn from `vocabulary` of them."""

    task: RankTask
    pipeline: Pipeline
    optimizer: ShardedAdamW
    vocabulary: int = 1

    def run_microbatches(self) -> None:
        """Run a step's microbatches."""
        shape = (self.task.num_microbatches, self.task.layout.microbatch_size, self.task.sequence_length)
        tokens = torch.zeros(shape, dtype=torch.long, device=self.pipeline.device)
        if self.vocabulary > 1:
            tokens.random_(self.vocabulary)
        tokens = tokens[..., : self.task.sequence_length // self.task.layout.cp]
        tokens_per_step = self.task.num_microbatches * self.task.sequence_length * self.task.layout.dp
        run_step(self.pipeline, tokens, tokens, mean_loss(self.pipeline, tokens_per_step))

    def forward_backward(self) -> None:
        """Run a step's microbatches and finish their gradients, as training does."""
        self.run_microbatches()
        finish_gradients(self.pipeline)
        clip(self.pipeline, total_norm(self.pipeline), self.optimizer.settings.clip_norm)

    def short_step(self) -> None:
        """Run a step of two microbatches: a backward that keeps gradients and one that reduces them."""
        task, pipeline, layout = self.task, self.pipeline, self.task.layout
        needed = max(2, order_needs_per_rank(layout.schedule) * layout.pp)
        fewest = min(task.num_microbatches, needed)
        program = pipeline.program
        self.task = replace(task, num_microbatches=fewest)
        pipeline.program = programs(layout.schedule, layout.pp, layout.virtual_stages, fewest)[task.stage]
        self.forward_backward()
        self.update()
        self.task, pipeline.program = task, program

    def update(self) -> None:
        """Update the parameters, as training does."""
        self.optimizer.step(self.optimizer.settings.learning_rate)


@contextlib.contextmanager
def fake_rank(task: RankTask, device: torch.device = CPU) -> Iterator[FakeRank]:
    """Play a rank with fake tensors of a device, whatever its size."""
    with fake_group(task.layout.num_gpus, first_rank_of_stage(task.layout, task.stage)):
        pipeline = build_rank(task, device)
        with fake_tensors(), warnings.catch_warnings():
            quiet_known_warnings()
            for stage in pipeline.stages:
                materialize(stage.module, device)
            optimizer = sharded_optimizer(task.optimizer, pipeline, settings_of(task))
            yield FakeRank(task=task, pipeline=pipeline, optimizer=optimizer)
