"""Megatron-Bridge: its `ConfigContainer` with the plan's overrides, through `runtime_config_update`.

Only what configures is imported: bridges to Hugging Face models, data and kernels are empty.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.parsers.hollow import Hollow, pretend, pretend_gpu
from planner.parsers.megatron import STAGES, kernels, stages, with_transformer_engine

UNUSED = (
    "datasets", "diffusers", "hydra", "megatron.energon", "nvidia_resiliency_ext", "peft", "rich",
    "transformers", "wandb",
    "megatron.bridge.data.builders", "megatron.bridge.data.energon", "megatron.bridge.data.sources",
    "megatron.bridge.models.conversion", "megatron.bridge.models.hf_pretrained",
    "megatron.bridge.models.megatron_mimo",
)  # fmt: skip
SEQUENCE = 4096
"""Tokens of a sequence in the recipe, before the plan's."""
MODELS = {"GPTModelProvider": "gpt_provider", "T5ModelProvider": "t5_provider"}


def without_registry() -> None:
    """Name the packages whose own files would register a bridge to every model there is."""
    homes = [Path(path) for path in importlib.import_module("megatron").__path__]
    home = next(path for path in homes if (path / "bridge").is_dir())
    for name in ("megatron.bridge", "megatron.bridge.models"):
        package = types.ModuleType(name)
        package.__path__ = [str(home.parent / name.replace(".", "/"))]
        sys.modules[name] = package

    def later(name: str) -> Any:
        if name not in MODELS:
            raise AttributeError(name)
        return getattr(importlib.import_module(f"megatron.bridge.models.{MODELS[name]}"), name)

    sys.modules["megatron.bridge.models"].__getattr__ = later  # type: ignore[method-assign]


pretend()
sys.meta_path.insert(0, Hollow(UNUSED))
without_registry()


def shape(model: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of a model by the names that recipes give them."""
    moe = {
        "num_moe_experts": model["num_experts"],
        "moe_router_topk": model["num_experts_per_token"],
        "moe_ffn_hidden_size": model["moe_intermediate_size"],
        "add_bias_linear": False,
    }
    return (moe if model["num_experts"] else {}) | {
        "num_layers": model["num_layers"],
        "hidden_size": model["hidden_size"],
        "ffn_hidden_size": model["intermediate_size"],
        "num_attention_heads": model["num_attention_heads"],
        "num_query_groups": model["num_key_value_heads"],
        "multi_latent_attention": model["kv_lora_rank"] > 0,
    }


def recipe(model: Mapping[str, Any]) -> Any:
    """The container of a recipe of a model of this shape."""
    from megatron.bridge.models.gpt_provider import GPTModelProvider
    from megatron.bridge.training import config as bridge
    from megatron.bridge.training.tokenizers.config import TokenizerConfig

    return bridge.ConfigContainer(
        train=bridge.TrainingConfig(train_iters=10, micro_batch_size=1, global_batch_size=1),
        model=GPTModelProvider(**shape(model), seq_length=SEQUENCE, vocab_size=32000),
        optimizer=bridge.OptimizerConfig(lr=1e-4, min_lr=1e-5),
        scheduler=bridge.SchedulerConfig(),
        dataset=bridge.GPTDatasetConfig(
            random_seed=1, seq_length=SEQUENCE, reset_position_ids=False, reset_attention_mask=False,
            eod_mask_loss=False,
        ),
        logger=bridge.LoggerConfig(),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=32000),
        checkpoint=bridge.CheckpointConfig(),
        ddp=bridge.DistributedDataParallelConfig(),
    )  # fmt: skip


def derive(case: Mapping[str, Any]) -> dict[str, Any]:
    """What it derives."""
    from megatron.bridge.training.config import runtime_config_update

    with_transformer_engine()
    pretend_gpu(case["gpu"], case["capability"])
    os.environ["WORLD_SIZE"] = str(case["gpus"])
    config = runpy.run_path(next(iter(case["files"])))["apply_plan"](recipe(case["model"]))
    runtime_config_update(config)
    model, train, ddp = config.model, config.train, config.ddp
    copies, ranks = (
        ddp.num_distributed_optimizer_instances,
        config.data_parallel_size * model.context_parallel_size,
    )
    return {
        "layout.tp": model.tensor_model_parallel_size,
        "layout.pp": model.pipeline_model_parallel_size,
        "layout.cp": model.context_parallel_size,
        "layout.dp": config.data_parallel_size,
        "layout.ep": model.expert_model_parallel_size,
        **({"layout.expert_tp": model.expert_tensor_parallel_size} if model.num_moe_experts else {}),
        "layout.microbatch_size": train.micro_batch_size,
        "layout.sequence_parallel": model.sequence_parallel,
        **kernels(model),
        "layout.zero_stage": (
            STAGES[ddp.data_parallel_sharding_strategy]
            if ddp.use_megatron_fsdp
            else int(ddp.use_distributed_optimizer)
        ),
        **({"layout.shard_degree": ranks // copies} if copies > 1 else {}),
        "job.global_batch_size": train.global_batch_size,
        "job.sequence_length": model.seq_length,
        "job.mtp_layers": model.mtp_num_layers or 0,
        **stages(model),
    }
