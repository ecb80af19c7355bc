"""The training loop of one rank: from a plan and settings to finished steps, whatever happens on the way.

Everything that decides the numbers is a function of the step: data order, learning rate, initial values. A
run that was interrupted therefore continues as if it had not been, on the same layout or another.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from executor import torch_internals
from executor.comm.meeting import store
from executor.comm.mesh import build_meshes
from executor.data.ahead import places_before, reading
from executor.data.blend import TokenSource
from executor.data.held_out import HeldOut
from executor.model.pretrained import pretrained_state
from executor.model.products.formats import eight_bits_of, require_units
from executor.parallel.compiled import compile_layers
from executor.parallel.device import device_memory_bytes, device_name, peak_memory_bytes, require_nvlink
from executor.parallel.parallelize import COMPUTE_DTYPES
from executor.parallel.pipeline import Pipeline, build_pipeline, run_step
from executor.parallel.weights import initialize, load_state_dict, materialize
from executor.training import batches
from executor.training.checkpoint import Checkpointer, best_interval_steps
from executor.training.evaluation import evaluate
from executor.training.gradients import clip, finish_gradients, total_norm
from executor.training.manifest import Manifest, read_key
from executor.training.metrics import Reporter, StepMetrics
from executor.training.muon import sharded_optimizer
from executor.training.optimizer import OptimizerSettings, ShardedAdamW, learning_rate
from executor.training.settings import (
    CHECKPOINTS,
    STATUS_FILE,
    RunSettings,
    RunStatus,
    held_out,
    training_source,
    write_json,
)
from planner.plan import Plan
from topology.base.errors import InputError

COLLECTIVE_TIMEOUT = timedelta(minutes=5)
FIRST_CHECKPOINT_STEPS = 20  # until the cost of a checkpoint is measured
MOST_CHECKPOINT_STEPS = 1000


@dataclass(slots=True, kw_only=True)
class Trainer:
    """Everything one rank trains with."""

    settings: RunSettings
    plan: Plan
    pipeline: Pipeline
    optimizer: ShardedAdamW
    schedule: OptimizerSettings
    source: TokenSource
    checkpointer: Checkpointer
    reporter: Reporter | None
    resumed: Manifest | None
    damaged: tuple[int, ...]
    held_out: HeldOut | None = None
    unplaced: tuple[str, ...] = ()
    stop_requested: bool = field(default=False)

    @property
    def global_batch_size(self) -> int:
        """Sequences of one step."""
        return self.plan.request.job.global_batch_size

    def say(self, message: str) -> None:
        """Tell the user, once."""
        if self.reporter is not None:
            self.reporter.say(message)


class NotFiniteError(InputError):
    """The loss or its gradient stopped being a number."""


def check_world(plan: Plan, world_size: int) -> None:
    """Refuse to start a plan on another number of ranks than it was made for."""
    if world_size != plan.layout.num_gpus:
        raise InputError(
            what="the number of ranks is not that of the plan",
            cause=f"{world_size} ranks were started, dp·cp·tp·pp = {plan.layout.num_gpus}",
            fix=f"start {plan.layout.num_gpus} ranks, or plan again for {world_size} GPUs",
        )


def prepare(settings: RunSettings, plan: Plan, device: torch.device) -> Trainer:
    """Build this rank's part of the model, from its newest checkpoint where there is one, and its data.

    The process group exists already. Values that a checkpoint brings are neither drawn nor read before it.
    """
    spec, layout, job = plan.request.model, plan.layout, plan.request.job
    eight_bits = eight_bits_of(job.precision)
    if eight_bits is not None:
        require_units(device, eight_bits, experts=spec.is_moe)
    meshes = build_meshes(layout, device.type, experts=spec.is_moe)
    torch_internals.bound_groups(COLLECTIVE_TIMEOUT)
    if settings.async_tp:
        require_nvlink(device, _local_ranks(dist.get_process_group_ranks(meshes.group("tp"))))
    microbatches = job.global_batch_size // (layout.dp * layout.microbatch_size)
    pipeline = build_pipeline(
        spec,
        layout,
        meshes,
        sequence_length=job.sequence_length,
        num_microbatches=microbatches,
        layers_of_stage=plan.layers_of_stage,
        recompute_of_stage=plan.recompute_of_stage,
        precision=settings.precision,
        eight_bits=eight_bits,
        overlaps=settings.async_tp,
        router_loss=settings.router_loss,
        adapter=job.adapter,
        compression=job.gradient_compression,
        device=device,
    )
    if settings.compiles:
        compile_layers(pipeline)
    state = pretrained_state(Path(settings.pretrained), spec) if settings.pretrained else None
    for stage in pipeline.stages:
        materialize(stage.module, device)
    schedule = OptimizerSettings(
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        warmup_steps=settings.warmup_steps,
        total_steps=settings.steps,
        shape=settings.rate_shape,
        decay_steps=settings.decay_steps,
        clip_norm=settings.clip_norm,
        products=COMPUTE_DTYPES[settings.precision],
    )
    optimizer = sharded_optimizer(job.optimizer, pipeline, schedule)
    folder = Path(settings.folder)
    source = training_source(settings, plan)
    checkpointer = Checkpointer(
        folder / CHECKPOINTS,
        optimizer,
        keep=settings.keep_checkpoints,
        key=read_key(settings.run_key),
        replica=pipeline.replica,
    )
    adapts = job.adapter is not None  # whose checkpoints hold its matrices alone
    if adapts:
        _begin(pipeline, state, seed=settings.seed)
    resumed, damaged = checkpointer.load_latest()
    if resumed is None and not adapts:
        _begin(pipeline, state, seed=settings.seed)
    source, unplaced = batches.read_ahead(pipeline, source, job.global_batch_size, resumed)
    leads = dist.get_rank() == 0
    return Trainer(
        settings=settings,
        plan=plan,
        pipeline=pipeline,
        optimizer=optimizer,
        schedule=schedule,
        source=source,
        checkpointer=checkpointer,
        reporter=Reporter(folder, settings.steps, wandb=settings.wandb) if leads else None,
        resumed=resumed,
        unplaced=unplaced,
        damaged=damaged,
        held_out=held_out(settings, plan),
    )


def _local_ranks(ranks: list[int]) -> list[int]:
    """Places on this node of ranks of the run, -1 for those of other nodes: a node has consecutive ranks."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    first = dist.get_rank() - int(os.environ.get("LOCAL_RANK", "0"))
    return [rank - first if first <= rank < first + here else -1 for rank in ranks]


def _begin(pipeline: Pipeline, state: Mapping[str, torch.Tensor] | None, *, seed: int) -> None:
    """Give every stage its first values: of a state dict, or drawn."""
    for stage in pipeline.stages:
        if state is None:
            initialize(stage.module, pipeline.meshes, seed=seed, device=pipeline.device)
        else:
            load_state_dict(stage.module, pipeline.meshes, state, device=pipeline.device, seed=seed)


def train(trainer: Trainer) -> RunStatus:
    """Run the remaining steps; returns how the run ended."""
    manifest = trainer.resumed
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts != "0":
        trainer.say(f"a rank died: all are started again (time {restarts})")
    start = 0 if manifest is None else manifest.step
    for step in trainer.damaged:
        trainer.say(f"checkpoint of step {step} is damaged, using an older one")
    if manifest is not None:
        trainer.say(f"resuming after step {start}, {manifest.samples} samples seen")
        if trainer.checkpointer.told:
            trainer.say(trainer.checkpointer.told)
    for name in trainer.unplaced:
        trainer.say(f"the checkpoint has no place in {name}: it is tokenized from its beginning to find it")
    every = trainer.settings.checkpoint_every or FIRST_CHECKPOINT_STEPS
    next_checkpoint = start + every
    step = start
    with _stop_on_sigterm(trainer), reading(trainer.source):
        while step < trainer.settings.steps:
            with _profiled(trainer, step):
                metrics, stop = _train_step(trainer, step)
            step += 1
            if trainer.reporter is not None:
                trainer.reporter.step(metrics)
            if stop or not _evaluated(trainer, step):
                break
            _warn(trainer, trainer.checkpointer.poll())
            if step >= next_checkpoint and step < trainer.settings.steps:
                began_s = time.perf_counter()
                _warn(trainer, _save(trainer, step))
                if trainer.reporter is not None:
                    trainer.reporter.saved(step, time.perf_counter() - began_s)
                next_checkpoint = step + _interval(trainer, metrics.step_time_s)
        _final_checkpoint(trainer, step)
    if trainer.reporter is not None:
        trainer.reporter.close()
    finished = step == trainer.settings.steps
    device = trainer.pipeline.device
    return RunStatus(
        state="finished" if finished else "stopped",
        step=step,
        device=device_name(device),
        device_memory_bytes=device_memory_bytes(device),
    )


def _train_step(trainer: Trainer, step: int) -> tuple[StepMetrics, bool]:
    """One optimizer step; also whether any rank has been asked to stop."""
    pipeline, job = trainer.pipeline, trainer.plan.request.job
    begin = time.perf_counter()
    samples = range(step * trainer.global_batch_size, (step + 1) * trainer.global_batch_size)
    read = batches.read(
        pipeline,
        trainer.source,
        samples,
        sequence_length=job.sequence_length,
        document_end=trainer.settings.document_end,
    )
    mean = batches.mean_loss(pipeline, job.tokens_per_step)
    share = run_step(pipeline, read.tokens, read.targets, mean, read.documents)
    finish_gradients(pipeline)
    norm = total_norm(pipeline)
    router = sum(stage.balance.take() for stage in pipeline.stages if stage.balance is not None)
    others = torch.tensor((router, float(trainer.stop_requested))).to(share)
    shared = torch.cat(((share / pipeline.layout.tp).view(1), others))
    dist.all_reduce(shared)
    loss, router, stops = shared.tolist()
    rate = learning_rate(trainer.schedule, step)
    if not (math.isfinite(loss) and math.isfinite(float(norm))):
        raise NotFiniteError(
            what=f"training stopped at step {step + 1}: the loss is not finite",
            cause=f"loss {loss}, gradient norm {float(norm)}, learning rate {rate:g}",
            fix=f"lower --learning-rate or check the data; the checkpoint after step "
            f"{max(trainer.checkpointer.last_step, 0)} is intact",
        )
    clip(pipeline, norm, trainer.schedule.clip_norm)
    trainer.optimizer.step(rate)
    seconds = time.perf_counter() - begin
    estimate = trainer.plan.estimate
    metrics = StepMetrics(
        step=step + 1,
        loss=loss,
        router_loss=router,
        gradient_norm=float(norm),
        learning_rate=rate,
        step_time_s=seconds,
        predicted_step_time_s=estimate.step_time_s,
        tokens_per_s=job.tokens_per_step / seconds,
        mfu=estimate.mfu * estimate.step_time_s / seconds,
        peak_memory_bytes=peak_memory_bytes(pipeline.device),
        samples=samples.stop,
    )
    return metrics, stops > 0


def _evaluated(trainer: Trainer, step: int) -> bool:
    """Evaluate when it is time; False once any rank has been asked to stop meanwhile."""
    if trainer.held_out is None or not trainer.held_out.due(step, trainer.settings.steps):
        return True
    found = evaluate(
        trainer.pipeline,
        trainer.held_out,
        step=step,
        global_batch_size=trainer.global_batch_size,
        sequence_length=trainer.plan.request.job.sequence_length,
        document_end=trainer.settings.document_end,
        stop=lambda: trainer.stop_requested,
    )
    if found is not None and trainer.reporter is not None:
        trainer.reporter.evaluation(found)
    return found is not None


def _interval(trainer: Trainer, step_s: float) -> int:
    """Steps until the next checkpoint: as asked, or what Young and Daly suggest for the measured cost."""
    if trainer.settings.checkpoint_every:
        return trainer.settings.checkpoint_every
    cost = trainer.checkpointer.write_s
    steps = FIRST_CHECKPOINT_STEPS
    if cost:
        best = best_interval_steps(step_s, cost, trainer.plan.layout.num_gpus, _gpu_of(trainer))
        steps = min(MOST_CHECKPOINT_STEPS, best)
    agreed = torch.tensor([steps])
    dist.broadcast(agreed, src=0, group=trainer.checkpointer.control)
    return int(agreed)


def _gpu_of(trainer: Trainer) -> str:
    """The kind of GPU that the plan is for, whose failures are published or not."""
    return trainer.plan.request.cluster.nodes[0].gpu


def _final_checkpoint(trainer: Trainer, step: int) -> None:
    """Write the last checkpoint and wait for it; failing now would lose work, so it is an error."""
    _warn(trainer, trainer.checkpointer.finish())
    if trainer.checkpointer.last_step == step:
        return
    _warn(trainer, _save(trainer, step))
    failure = trainer.checkpointer.finish()
    if failure is not None:
        raise InputError(
            what=f"the checkpoint after step {step} could not be written",
            cause=failure,
            fix=f"see that {trainer.checkpointer.root} can be written, with space, and start again: "
            f"it resumes after step {max(trainer.checkpointer.last_step, 0)}",
        )


def _save(trainer: Trainer, step: int) -> str | None:
    """Start writing a checkpoint, and say where texts go on; why the one before failed, if it did."""
    places = places_before(trainer.source, step)
    return trainer.checkpointer.save(step, step * trainer.global_batch_size, places)


def _warn(trainer: Trainer, failure: str | None) -> None:
    """Say that a checkpoint failed; training goes on and tries again at the next interval."""
    if failure is not None:
        trainer.say(
            f"warning: a checkpoint could not be written ({failure}); the one after step "
            f"{max(trainer.checkpointer.last_step, 0)} is kept and the next will be tried on time"
        )


@contextlib.contextmanager
def _stop_on_sigterm(trainer: Trainer) -> Iterator[None]:
    """Turn SIGTERM and SIGUSR1 (Slurm's warning) into a request that all ranks agree on after the step."""

    def request(_signal: int, _frame: FrameType | None) -> None:
        trainer.stop_requested = True

    before = {name: signal.signal(name, request) for name in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextlib.contextmanager
def _profiled(trainer: Trainer, step: int) -> Iterator[None]:
    """Record a torch profiler trace of the step that was asked for, one file per rank."""
    if trainer.settings.profile_step != step + 1:
        yield
        return
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities) as recorded:
        yield
    recorded.export_chrome_trace(str(Path(trainer.settings.folder) / f"trace-rank{dist.get_rank()}.json"))


def start_process_group(
    device: torch.device, environment: dict[str, str], meeting: str | None, endpoint: str | None = None
) -> None:
    """Join the other ranks, with gloo beside NCCL so that checkpoints can talk while training does.

    They meet in a file, or at an endpoint; without either at the address that torchrun has given.
    """
    options: dict[str, Any] = {"timeout": COLLECTIVE_TIMEOUT}
    backend = "gloo"
    if device.type == "cuda":
        backend, options["device_id"] = "cpu:gloo,cuda:nccl", device
    rank, ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    if meeting is not None:
        options["store"] = store(meeting, rank, ranks, endpoint_text=endpoint)
    dist.init_process_group(backend, rank=rank, world_size=ranks, **options)


def record_status(settings: RunSettings, status: RunStatus) -> None:
    """Leave word of how the run stands for the launcher."""
    write_json(Path(settings.folder) / STATUS_FILE, status)
