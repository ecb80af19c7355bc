"""Recipes in the form of Megatron-Bridge."""

from megatron.bridge.recipes import ConfigContainer, _benchmark_common, _perf_precision, pretrain_config


def llama_pretrain_1024gpu_h100_bf16_config() -> ConfigContainer:
    """Llama pretrain."""
    cfg = pretrain_config()
    cfg.mixed_precision = _perf_precision("bf16")
    cfg.model.seq_length = 8192
    cfg.model.tensor_model_parallel_size = 8
    cfg.model.pipeline_model_parallel_size = 8
    cfg.model.context_parallel_size = 2
    cfg.model.virtual_pipeline_model_parallel_size = 8
    cfg.model.sequence_parallel = True
    cfg.train.global_batch_size = 1536
    cfg.train.micro_batch_size = 1
    _benchmark_common(cfg)
    return cfg


def llama_pretrain_1024gpu_h100_fp8_config() -> ConfigContainer:
    """The same in eight bits."""
    cfg = llama_pretrain_1024gpu_h100_bf16_config()
    cfg.mixed_precision = _perf_precision("fp8_cs")
    return cfg
