"""Train a small LLM under any layout of the executor, timing every computation (shared by three examples)."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from examples.support import device, synchronize
from executor.comm.mesh import build_meshes
from executor.parallel.pipeline import Span, build_pipeline, run_step
from executor.parallel.weights import initialize
from executor.training.batches import mean_loss, my_microbatches
from executor.training.gradients import finish_gradients
from executor.training.optimizer import OptimizerSettings, ShardedAdamW
from executor.validation.reference import ReferenceJob, batch_of

SMALL = ModelSpec(
    name="small",
    num_layers=8,
    hidden_size=128,
    intermediate_size=352,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=16,
    vocab_size=512,
    max_sequence_length=256,
)
RATE = 3e-3
SETTINGS = OptimizerSettings(learning_rate=RATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """What one rank saw: its share of each loss, wall time of each step, computations of the last two."""

    losses: tuple[float, ...]
    step_s: tuple[float, ...]
    spans: tuple[tuple[Span, ...], ...]
    parameters: int
    pp_rank: int


def stretch(module: nn.Module, forward_s: float) -> None:
    """Make a stage take at least this long forward and twice as long backward, without using a core."""

    def before_backward(gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(2 * forward_s)
        return gradient

    def after_forward(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        time.sleep(forward_s)
        output.register_hook(before_backward)

    module.register_forward_hook(after_forward)


def train_rank(_rank: int, case: ReferenceJob, stretch_s: float = 0.0) -> RankRun:
    """One rank of a short run; the last step is the measured one, the one before it the calibration."""
    meshes = build_meshes(case.layout, device().type, experts=case.spec.is_moe)
    pipeline = build_pipeline(
        case.spec,
        case.layout,
        meshes,
        sequence_length=case.sequence_length,
        num_microbatches=case.num_microbatches,
        layers_of_stage=case.layers_of_stage,
        precision="fp32",
        device=device(),
    )
    for stage in pipeline.stages:
        initialize(stage.module, meshes, seed=case.seed, device=device())
        if stretch_s:
            stretch(stage.module, stretch_s)
    optimizer = ShardedAdamW(pipeline, SETTINGS)
    loss = mean_loss(pipeline, case.global_batch_size * case.sequence_length)
    losses, seconds, spans = [], [], []
    for step in range(case.steps):
        tokens, targets = my_microbatches(pipeline, *batch_of(case, step))
        pipeline.spans = []
        dist.barrier()
        begin = time.perf_counter()
        losses.append(run_step(pipeline, tokens, targets, loss).item())
        finish_gradients(pipeline)
        optimizer.step(RATE)
        synchronize()
        seconds.append(time.perf_counter() - begin)
        spans.append(tuple(pipeline.spans))
    return RankRun(
        losses=tuple(losses),
        step_s=tuple(seconds),
        spans=tuple(spans[-2:]),
        parameters=sum(slot.part.numel() for slot in optimizer.slots),
        pp_rank=meshes.coordinate("pp"),
    )


def losses_of(case: ReferenceJob, runs: list[RankRun]) -> list[float]:
    """Mean loss of every step, from the ranks' shares."""
    return [sum(run.losses[step] for run in runs) / case.layout.tp for step in range(case.steps)]


def layout(**fields: object) -> ParallelLayout:
    """A layout with sequence parallelism wherever there is tensor parallelism."""
    chosen = ParallelLayout(**fields)  # type: ignore[arg-type]
    return ParallelLayout(**{**fields, "sequence_parallel": chosen.tp > 1})  # type: ignore[arg-type]
