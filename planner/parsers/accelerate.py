"""Accelerate: its loader, the plugins that `accelerate launch` makes of the file, the Trainer's arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.parsers.hollow import pretend

pretend()
SHARDED, _BUCKET = "FSDP", "ddp_bucket_cap_mb"
_MIB = 1024**2  # here again: an engine's interpreter has nothing of the house


def launched(path: str) -> dict[str, str]:
    """The environment that `accelerate launch` hands to every process."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    args = launch_command_parser().parse_args(["--config_file", path, "train.py"])
    args, _, _ = _validate_launch_command(args)
    return {name: str(value) for name, value in prepare_multi_gpu_env(args).items()}


def derive(case: Mapping[str, Any]) -> dict[str, Any]:
    """What it derives."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin

    path, arguments = list(case["files"])[:2]
    config = load_config_from_file(path)
    sharded = config.distributed_type == SHARDED
    before = dict(os.environ)
    try:
        os.environ.update(launched(path))
        degrees = ParallelismConfig()
        plugin = FullyShardedDataParallelPlugin() if sharded else None
    finally:
        os.environ.clear()
        os.environ.update(before)
    replicas = degrees.dp_replicate_size * degrees.dp_shard_size
    cp, sp = degrees.cp_size, degrees.sp_size
    if replicas * cp * sp * degrees.tp_size != config.num_processes or config.num_processes != case["gpus"]:
        raise ValueError(f"{degrees} on {config.num_processes} processes, {case['gpus']} GPUs")
    trainer = json.loads(Path(arguments).read_text(encoding="utf-8"))
    steps = trainer["gradient_accumulation_steps"]
    return {
        "layout.tp": degrees.tp_size,
        "layout.cp": cp * sp,
        **({"layout.cp_kind": exchange(degrees)} if cp * sp > 1 else {}),
        "layout.dp": replicas,
        "layout.zero_stage": (3 if plugin.reshard_after_forward else 2) if plugin else 0,
        **(
            {"layout.shard_degree": degrees.dp_shard_size * cp * sp}
            if sharded and degrees.dp_replicate_size > 1
            else {}
        ),
        "layout.recompute": "full" if recomputes(plugin, trainer) else "none",
        "layout.microbatch_size": trainer["per_device_train_batch_size"],
        "job.global_batch_size": trainer["per_device_train_batch_size"] * steps * replicas,
        "job.precision": config.mixed_precision,
        **({"job.bucket_bytes": trainer[_BUCKET] * _MIB} if _BUCKET in trainer else {}),
    }


def exchange(degrees: Any) -> str:
    """How keys and values come together: its ring is an all-to-all, one chunk at a time."""
    if degrees.sp_size > 1:
        return "ulysses"
    return "ring" if degrees.cp_handler.cp_comm_strategy == "alltoall" else "allgather"


def recomputes(plugin: Any, trainer: Mapping[str, Any]) -> bool:
    """Whether layers are recomputed, by FSDP or by the model."""
    return bool(plugin.activation_checkpointing if plugin else trainer["gradient_checkpointing"])
