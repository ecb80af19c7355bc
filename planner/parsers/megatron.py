"""Megatron-LM: its parser, `validate_args`, the configuration it makes of them, and the layers of each stage.

The words and the environment are those that bash has after reading the file, and no other.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from planner.parsers.hollow import Hollow, pretend, pretend_gpu

KERNELS = ("triton",)
SOURCED = 'set -eu; source "./$1"; printf "%s\\0" "${MEGATRON_ARGS[@]}"; printf "\\0"; env -0'
STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
KINDS = {"p2p": "ring", "a2a": "ulysses", "all_gather": "allgather"}

TRANSFORMER_ENGINE = "2.14.0"
"""The version that is taken to be there."""

pretend()
sys.meta_path.insert(0, Hollow(KERNELS))


def with_transformer_engine() -> None:
    """Answer for Transformer Engine, which is kernels: its version, and that it fuses rotary positions."""
    from megatron.core import utils
    from megatron.core.models.common.embeddings import rope_utils
    from packaging.version import Version

    utils._te_version = Version(TRANSFORMER_ENGINE)  # noqa: SLF001  # nothing else sets it
    rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb_thd = object()


@functools.cache
def parser() -> argparse.ArgumentParser:
    """Its own."""
    from megatron.training import arguments

    made = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    arguments.add_megatron_arguments(made)
    return made


def sourced(file_name: str) -> tuple[list[str], dict[str, str]]:
    """The words of the array, and the environment that is exported beside them."""
    command = ["bash", "-c", SOURCED, "bash", file_name]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, env={"PATH": os.defpath})
    words, _, variables = finished.stdout.partition("\0\0")
    result = dict(pair.partition("=")[::2] for pair in variables.split("\0") if pair)
    return words.split("\0"), {
        name: value for name, value in result.items() if name.isupper() and "_" in name
    }


def derive(case: Mapping[str, Any]) -> dict[str, Any]:
    """What it derives."""
    from megatron.training import arguments

    with_transformer_engine()
    pretend_gpu(case["gpu"], case["capability"])
    words, environment = sourced(next(iter(case["files"])))
    for name in case["environment"]:
        os.environ.pop(name, None)
    os.environ.update(environment)
    args, unknown = parser().parse_known_args(words)
    if unknown:
        raise ValueError(f"unknown: {' '.join(unknown)}")
    args.rank, args.world_size, args.local_rank = 0, case["gpus"], 0
    args.tokenizer_type = args.tokenizer_type or "NullTokenizer"
    args.train_iters, args.lr, args.min_lr = args.train_iters or 10, 1e-4, 1e-5
    arguments.validate_args(args)
    config = arguments.core_transformer_config_from_args(args)
    return {
        "layout.tp": args.tensor_model_parallel_size,
        "layout.pp": args.pipeline_model_parallel_size,
        "layout.cp": args.context_parallel_size,
        "layout.dp": args.data_parallel_size,
        "layout.ep": args.expert_model_parallel_size,
        **({"layout.expert_tp": args.expert_tensor_parallel_size} if args.num_experts else {}),
        "layout.microbatch_size": args.micro_batch_size,
        "layout.sequence_parallel": args.sequence_parallel,
        "layout.zero_stage": zero_stage(args),
        **shards(args),
        **({"layout.cp_kind": cp_kind(args)} if args.context_parallel_size > 1 else {}),
        "job.global_batch_size": args.global_batch_size,
        "job.sequence_length": args.seq_length,
        "job.mtp_layers": args.mtp_num_layers or 0,
        "model.num_layers": args.num_layers,
        **stages(config),
        **buckets(args),
        **kernels(config),
    }


def kernels(config: Any) -> dict[str, Any]:
    """Whether attention keeps no scores, and what is replayed from graphs."""
    whole = config.cuda_graph_impl == "full_iteration" and not config.moe_paged_stash
    return {
        "stack.flash_attention": config.attention_backend.name not in ("unfused", "local"),
        "stack.cuda_graphs": whole,
        "stack.graphed_modules": [module.name for module in config.cuda_graph_modules]
        if config.cuda_graph_impl in ("local", "transformer_engine")
        else [],
    }


def buckets(args: argparse.Namespace) -> dict[str, Any]:
    """Bytes of a gradient bucket, where a size is given and `DistributedDataParallel` cuts by it."""
    if args.ddp_bucket_size is None or not args.overlap_grad_reduce:
        return {}
    return {"job.bucket_bytes": args.ddp_bucket_size * (4 if args.accumulate_allreduce_grads_in_fp32 else 2)}


def zero_stage(args: argparse.Namespace) -> int:
    """What is sharded over the replicas."""
    if args.use_megatron_fsdp:
        return STAGES[args.data_parallel_sharding_strategy]
    return int(args.use_distributed_optimizer)


def shards(args: argparse.Namespace) -> dict[str, Any]:
    """Ranks that share one copy, where there are several copies."""
    copies = args.num_distributed_optimizer_instances
    ranks = args.data_parallel_size * args.context_parallel_size
    return {"layout.shard_degree": ranks // copies} if copies > 1 else {}


def cp_kind(args: argparse.Namespace) -> str:
    """How context is exchanged, one kind for all layers."""
    (kind,) = set(args.cp_comm_type)
    return KINDS[kind]


def stages(config: Any) -> dict[str, Any]:
    """Layers of every virtual stage in model order, and recomputed layers of every rank.

    Modules that predict further tokens elsewhere than on the last stage would be another plan.
    """
    pp, chunks = config.pipeline_model_parallel_size, config.virtual_pipeline_model_parallel_size
    order = [(chunk, rank) for chunk in range(chunks or 1) for rank in range(pp)]
    layers = [layers_of(config, None if chunks is None else chunk, rank) for chunk, rank in order]
    if (value := config.pipeline_model_parallel_layout) is not None:
        modules = [sum(kind.name == "mtp" for kind in value.layout[rank][chunk]) for chunk, rank in order]
        if any(modules[:-1]) or modules[-1] != (config.mtp_num_layers or 0):
            raise ValueError(f"modules of {modules} on stages")
    result = [0] * pp
    for (_, rank), held in zip(order, layers, strict=True):
        result[rank] += recomputed(config, held)
    return {
        "layout.virtual_stages": chunks or 1,
        "layout.recompute": config.recompute_granularity or "none",
        "split.layers": layers,
        "split.recompute": result,
    }


def layers_of(config: Any, chunk: int | None, rank: int) -> int:
    """Layers of a chunk, as `get_num_layers_to_build` counts them on that rank."""
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.transformer_block import (
        get_num_layers_to_build,
    )

    if (layers := config.pipeline_model_parallel_layout) is not None:
        return sum(kind is LayerType.decoder for kind in layers.layout[rank][chunk or 0])
    return int(get_num_layers_to_build(config, vp_stage=chunk, pp_rank=rank))


def recomputed(config: Any, held: int) -> int:
    """Recomputed layers of a chunk, as `TransformerBlock` does it."""
    if config.recompute_granularity != "full":
        return 0
    return held if config.recompute_method == "uniform" else min(held, config.recompute_num_layers)
