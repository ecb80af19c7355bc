"""torchtitan: its `Trainer.Config`, filled as the file says, its meshes and its pipeline schedule."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

from planner.parsers.hollow import Hollow, pretend

pretend()
sys.meta_path.insert(
    0,
    Hollow(
        (
            "triton",
            "datasets",
            "torchdata",
            "torch_checkpointing",
            "wandb",
            "tensorboard",
            "torch.utils.tensorboard",
        )
    ),
)


def checked(config: Any) -> Any:
    """The same configuration made anew with the values it has, so that every class checks its own."""
    parts = {
        field.name: replace(part)
        for field in fields(config)
        if hasattr(part := getattr(config, field.name), "__dataclass_fields__")
    }
    return replace(config, **parts)


def derive(case: Mapping[str, Any]) -> dict[str, Any]:
    """What it derives."""
    from torchtitan.config import Configurable
    from torchtitan.distributed import ParallelDims
    from torchtitan.trainer import Trainer

    # Converters of low precision are made, so that their classes check what they hear; building needs a GPU.
    Configurable.Config.build = lambda _: SimpleNamespace(convert=lambda model: model)
    start = Trainer.Config()
    start.model_spec = SimpleNamespace(model=None)
    config = checked(runpy.run_path(next(iter(case["files"])))["apply_plan"](start))
    parallel, training = config.parallelism, config.training
    dims = ParallelDims.from_config(parallel, case["gpus"])
    divisor = (dims.tp if parallel.enable_sequence_parallel else 1) * (2 * dims.cp if dims.cp > 1 else 1)
    if training.seq_len % divisor:
        raise ValueError(f"seq_len {training.seq_len} % {divisor}")  # Trainer.__init__
    rank_batch = training.local_batch_size * dims.dp_replicate * dims.dp_shard
    if training.global_batch_size % rank_batch:
        raise ValueError(f"global_batch_size {training.global_batch_size} % {rank_batch}")  # Trainer.__init__
    if dims.ep > 1 and (dims.dp_shard * dims.cp * dims.tp) % dims.ep:
        raise ValueError(f"dp_shard * cp * tp % ep, {dims}")  # ParallelDims.build_mesh
    sharded = dims.dp_shard * dims.cp > 1
    value = parallel.fsdp_reshard_after_forward
    policy = type(config.activation_checkpoint).__qualname__.partition(".")[0]
    derived = {
        "layout.tp": dims.tp,
        "layout.pp": dims.pp,
        "layout.cp": dims.cp,
        "layout.ep": dims.ep,
        "layout.dp": dims.dp_replicate * dims.dp_shard,
        "layout.zero_stage": (3 if value == "always" or (value == "default" and dims.pp == 1) else 2)
        * sharded,
        **({"layout.shard_degree": dims.dp_shard * dims.cp} if sharded and dims.dp_replicate > 1 else {}),
        **({"layout.sequence_parallel": parallel.enable_sequence_parallel} if dims.tp > 1 else {}),
        "layout.microbatch_size": training.local_batch_size,
        "layout.recompute": {"FullAC": "full", "SelectiveAC": "selective-op"}.get(policy, "none"),
        "job.global_batch_size": training.global_batch_size,
        "job.sequence_length": training.seq_len,
        "stack.loss_chunks": getattr(config.loss, "num_chunks", 1),
    }
    return derived | (pipeline(parallel) if dims.pp > 1 else {})


def pipeline(parallel: Any) -> dict[str, Any]:
    """Microbatches and stages of a pipeline, judged by torch's own schedule."""
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

    parts = parallel.module_fqns_per_model_part
    chunks, left = divmod(len(parts), parallel.pipeline_parallel_degree)
    single = issubclass(get_schedule_class(parallel.pipeline_parallel_schedule), PipelineScheduleSingle)
    if left or single != (chunks == 1):
        raise ValueError(f"{len(parts)} stages with {parallel.pipeline_parallel_schedule}")  # pipeline_llm
    return {
        "layout.microbatch_size": parallel.pipeline_parallel_microbatch_size,
        "layout.virtual_stages": chunks,
        "split.layers": [sum(name.startswith("layers.") for name in part) for part in parts],
    }
