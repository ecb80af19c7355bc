"""One rank made ready: its group, its part of the model, its data, the checkpoint that it goes on from."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist

from executor.comm.meeting import PATIENCE, await_ranks, store
from executor.comm.mesh import build_meshes
from executor.data.blend import TokenSource
from executor.data.held_out import HeldOut
from executor.model.hf_names import plain_names
from executor.model.pretrained import pretrained_state, published_part
from executor.model.products.formats import eight_bits_of, require_units
from executor.parallel.compiled import compile_layers
from executor.parallel.device import device_memory_bytes, device_name, require_nvlink
from executor.parallel.parallelize import COMPUTE_DTYPES
from executor.parallel.pipeline import Pipeline, build_pipeline
from executor.parallel.planned_device import is_device
from executor.parallel.weights import initialize, load_state_dict, materialize, untrained
from executor.torch_internals.groups import bound_groups, default_store, groups_here, open_groups
from executor.training import batches
from executor.training.checkpoint import Checkpointer
from executor.training.manifest import Manifest, read_key, require_one_whole
from executor.training.metrics import Reporter
from executor.training.muon import sharded_optimizer
from executor.training.optimizer import OptimizerSettings, ShardedAdamW
from executor.training.settings import (
    CHECKPOINTS,
    RunSettings,
    held_out,
    training_source,
)
from planner.plan import Plan
from topology.base.errors import InputError

COLLECTIVE_TIMEOUT = timedelta(minutes=5)
Program = Literal["step", "evaluation"]
"""What is compiled apart: an evaluation keeps no graph."""


@dataclass(slots=True, kw_only=True)
class Trainer:
    """Everything one rank trains with; `behind` says whether any rank has not read the next text yet.

    `uncompiled` are the programs whose first run compiles kernels, `groups` wait for it with patience.
    """

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
    behind: bool = field(default=False)
    groups: tuple[Any, ...] = ()
    uncompiled: set[Program] = field(default_factory=set)

    @contextlib.contextmanager
    def patience(self, program: Program) -> Iterator[None]:
        """While a program compiles in its first run ranks wait for each other as at the start.

        Otherwise one that is late by `COLLECTIVE_TIMEOUT` has hung.
        """
        if program not in self.uncompiled:
            yield
            return
        bound_groups(PATIENCE, self.groups)
        yield
        self.uncompiled.discard(program)
        bound_groups(COLLECTIVE_TIMEOUT, self.groups)

    @property
    def global_batch_size(self) -> int:
        """Sequences of one step."""
        return self.plan.request.job.global_batch_size

    def say(self, message: str) -> None:
        """Tell the user, once."""
        if self.reporter is not None:
            self.reporter.say(message)


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
    await_ranks(options.get("store") or default_store(), rank, ranks)


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
    All ranks leave together: from then on one that is late by `COLLECTIVE_TIMEOUT` has hung. Where kernels
    are compiled, each rank its own and some from a cache, the first step and evaluation may take longer.
    """
    spec, layout, job = plan.request.model, plan.layout, plan.request.job
    eight_bits = eight_bits_of(job.precision)
    if eight_bits is not None:
        require_units(device, eight_bits, experts=spec.is_moe)
    meshes = build_meshes(layout, device.type, experts=spec.is_moe)
    groups = groups_here()
    bound_groups(PATIENCE, groups)
    open_groups(groups, device)
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
    schedule = optimizer_settings(settings)
    optimizer = sharded_optimizer(job.optimizer, pipeline, schedule)
    folder = Path(settings.folder)
    source = training_source(settings, plan)
    adapts = job.adapter is not None  # whose checkpoints hold its matrices alone
    checkpointer = Checkpointer(
        folder / CHECKPOINTS,
        optimizer,
        keep=settings.keep_checkpoints,
        key=read_key(settings.run_key),
        replica=pipeline.replica,
        untrained={} if adapts else _untrained(pipeline, state),
    )
    if adapts:
        _begin(pipeline, state, seed=settings.seed)
    resumed, damaged = checkpointer.load_latest()
    require_one_whole(checkpointer.root, resumed, damaged)
    if resumed is None and not adapts:
        _begin(pipeline, state, seed=settings.seed)
    source, unplaced = batches.read_ahead(pipeline, source, job.global_batch_size, resumed)
    dist.barrier(group=checkpointer.control)  # whose patience outlasts a rank that is slow to get ready
    bound_groups(COLLECTIVE_TIMEOUT, groups)
    return Trainer(
        settings=settings,
        plan=plan,
        pipeline=pipeline,
        optimizer=optimizer,
        schedule=schedule,
        source=source,
        checkpointer=checkpointer,
        reporter=_reporter(settings, plan, device) if dist.get_rank() == 0 else None,
        resumed=resumed,
        unplaced=unplaced,
        damaged=damaged,
        held_out=held_out(settings, plan),
        groups=tuple(groups),
        uncompiled=set(get_args(Program)) if compiles_at_first(settings, device) else set(),
    )


def compiles_at_first(settings: RunSettings, device: torch.device) -> bool:
    """Whether a rank's first step and evaluation compile kernels: layers, or masked attention on a GPU."""
    return settings.compiles or device.type == "cuda"


def optimizer_settings(settings: RunSettings) -> OptimizerSettings:
    """What the run's settings say of its optimizer."""
    least = settings.min_lr
    return OptimizerSettings(
        learning_rate=settings.learning_rate,
        betas=(settings.adam_beta1, settings.adam_beta2),
        epsilon=settings.adam_eps,
        weight_decay=settings.weight_decay,
        warmup_steps=settings.warmup_steps,
        total_steps=settings.steps,
        shape=settings.rate_shape,
        decay_steps=settings.decay_steps,
        **({} if least is None else {"final_fraction": least / settings.learning_rate}),
        clip_norm=settings.clip_norm,
        products=COMPUTE_DTYPES[settings.precision],
    )


def _reporter(settings: RunSettings, plan: Plan, device: torch.device) -> Reporter:
    """What tells of the run, beside the plan's times where it is on the plan's GPU."""
    compared = is_device(plan, device_name(device), device_memory_bytes(device))
    return Reporter(Path(settings.folder), settings.steps, compared=compared, wandb=settings.wandb)


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


def _untrained(pipeline: Pipeline, state: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    """Parameters that are saved though no optimizer moves them, with their first values."""
    result = {name: value for stage in pipeline.stages for name, value in untrained(stage.module).items()}
    spec, plain = pipeline.stages[0].module.spec, None if state is None else plain_names(state)
    for name, value in result.items():
        if plain is None:
            value.zero_()
        else:
            value.copy_(published_part(plain, name, value.shape, (), spec))
    return result
