"""DeepSpeed: its `DeepSpeedConfig`, which multiplies the batch out and builds the configuration of ZeRO."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.parsers.hollow import pretend

pretend()


def derive(case: Mapping[str, Any]) -> dict[str, Any]:
    """What it derives."""
    from deepspeed.runtime import config as runtime

    path = next(iter(case["files"]))
    tp = json.loads(Path(path).read_text(encoding="utf-8")).get("tensor_parallel", {}).get("autotp_size", 1)
    runtime.dist.get_rank = lambda: 0
    runtime.dist.get_world_size = lambda: case["gpus"]
    replicas = case["gpus"] // tp
    config = runtime.DeepSpeedConfig(
        path, types.SimpleNamespace(get_data_parallel_world_size=lambda: replicas)
    )
    return {
        "layout.tp": config.tensor_parallel_config.autotp_size or 1,
        "layout.dp": replicas,
        "layout.zero_stage": int(config.zero_config.stage),
        "layout.microbatch_size": config.train_micro_batch_size_per_gpu,
        "job.global_batch_size": config.train_batch_size,
        "job.precision": precision(config),
    }


def precision(config: Any) -> str:
    """Sixteen bits of one kind or the other."""
    return "bf16" if config.bfloat16_config.enabled else "fp16" if config.float16_config.enabled else "fp32"
