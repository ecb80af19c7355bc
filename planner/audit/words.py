"""Words of every kind of launch file, and the canonical fields that they state.

A `Family` is one kind of file: the words that it is known by, and what its words mean. A word is the end of a
setting's dotted name in one spelling (small letters, underscores); the longest that fits counts. Fields are
those of `planner.engines.fields`; ``said.NAME`` are facts that decide others together (`planner.audit.facts`).
A word that states a field by standing there has the value too: ``field=value``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.audit.words_models import LAYERS_OF_MODELS

MACHINES: Mapping[str, str] = {
    "nproc_per_node": "said.gpus_per_node", "gpus_per_node": "said.gpus_per_node", "n_gpus_per_node": "said.gpus_per_node",
    "num_gpus_per_node": "said.gpus_per_node", "actor_num_gpus_per_node": "said.gpus_per_node", "devices": "said.gpus_per_node",
    "ntasks_per_node": "said.tasks_per_node", "gres": "said.gres", "gpus_per_task": "said.gpus_per_task",
    "nnodes": "said.nodes", "num_nodes": "said.nodes", "actor_num_nodes": "said.nodes", "nodes": "said.nodes",
    "num_machines": "said.machines", "num_processes": "said.num_gpus", "num_gpus": "said.num_gpus",
    "world_size": "said.num_gpus", "ngpu": "said.num_gpus", "workload.gpus": "said.num_gpus", "job.gpus": "said.num_gpus",
    "request_gpu": "said.replica_gpus", "gpu": "said.gpu", "gpu_type": "said.gpu",
}  # fmt: skip
PRECISIONS: Mapping[str, str] = {
    "bf16": "said.bf16", "fp16": "said.fp16", "fp16.enabled": "said.fp16", "bf16.enabled": "said.bf16",
    "bfloat16": "said.bf16", "half": "said.fp16", "fp8": "said.fp8", "fp8_format": "said.fp8", "fp8_hybrid": "said.fp8",
    "fp8_e4m3": "said.fp8", "fp8_recipe": "said.fp8_recipe", "fp4": "said.fp4", "fp4_format": "said.fp4",
    "precision": "said.precision", "mixed_precision": "said.precision", "compute_dtype": "said.precision",
    "torch_dtype": "said.precision", "dtype": "said.precision",
}  # fmt: skip
RECOMPUTATION: Mapping[str, str] = {
    "recompute_granularity": "said.recompute", "activations_checkpoint_granularity": "said.recompute",
    "recompute_activations": "said.recompute_selective", "recompute_modules": "said.recompute_modules",
    "checkpoint_activations": "said.recompute_full", "activations_checkpoint_method": "said.recompute_method",
    "recompute_method": "said.recompute_method", "recompute_num_layers": "said.recompute_layers",
    "activations_checkpoint_num_layers": "said.recompute_layers", "activation_checkpointing": "said.recompute_full",
    "gradient_checkpointing": "said.recompute_full", "fsdp_activation_checkpointing": "said.recompute_full",
    "deepspeed_activation_checkpointing": "said.recompute_deepspeed", "offload_activations": "said.offload_activations",
    "activation_offloading": "said.offload_activations", "recompute_layer": "said.recompute_full",
}  # fmt: skip
DEEPSPEED: Mapping[str, str] = {
    "zero_stage": "said.zero_stage", "zero_optimization.stage": "said.zero_stage",
    "offload_optimizer.device": "said.offload_optimizer", "offload_param.device": "said.offload_param",
    "train_batch_size": "job.global_batch_size", "train_micro_batch_size_per_gpu": "layout.microbatch_size",
    "gradient_accumulation_steps": "said.accumulation", "tensor_parallel.autotp_size": "layout.tp",
    "autotp_size": "layout.tp", "zero_hpz_partition_size": "layout.shard_degree", "mics_shard_size": "layout.shard_degree",
    "deepspeed": "said.deepspeed", "deepspeed_config": "said.deepspeed", "deepspeed_config_file": "said.deepspeed",
    "ds_config": "said.deepspeed", "deepspeed_multinode_launcher": "said.ignored",
}  # fmt: skip
_MEGATRON_LAYOUT: Mapping[str, str] = {
    "tensor_model_parallel_size": "layout.tp", "model_parallel_size": "layout.tp", "intra_layer_model_parallel_size": "layout.tp",
    "pipeline_model_parallel_size": "layout.pp", "pipe_parallel_size": "layout.pp", "inter_layer_model_parallel_size": "layout.pp",
    "context_parallel_size": "layout.cp", "expert_model_parallel_size": "layout.ep", "moe_expert_parallel_size": "layout.ep",
    "ep_world_size": "layout.ep", "expert_tensor_parallel_size": "layout.expert_tp",
    "virtual_pipeline_model_parallel_size": "layout.virtual_stages", "num_virtual_stages_per_pipeline_rank": "layout.virtual_stages",
    "num_layers_per_virtual_pipeline_stage": "said.layers_per_virtual_stage", "ds_sequence_parallel_size": "layout.cp",
    "sequence_parallel": "layout.sequence_parallel", "use_distributed_optimizer": "said.distributed_optimizer",
    "optim.name": "said.optimizer", "use_megatron_fsdp": "said.megatron_fsdp", "use_custom_fsdp": "said.megatron_fsdp",
    "data_parallel_sharding_strategy": "said.sharding", "use_torch_fsdp2": "said.torch_fsdp2",
    "data_parallel_size": "layout.dp", "pipeline_model_parallel_layout": "said.stage_layout",
    "num_layers_in_first_pipeline_stage": "said.first_stage_layers", "num_layers_in_last_pipeline_stage": "said.last_stage_layers",
    "decoder_first_pipeline_num_layers": "said.first_stage_layers", "decoder_last_pipeline_num_layers": "said.last_stage_layers",
    "tp_comm_overlap": "said.tp_overlap", "ub_tp_comm_overlap": "said.tp_overlap", "no_pipeline_parallel": "said.no_pipeline",
    "overlap_grad_reduce": "said.overlap_gradients", "overlap_param_gather": "said.overlap_parameters",
    "optimizer_cpu_offload": "said.offload_optimizer", "rampup_batch_size": "said.rampup",
}  # fmt: skip
_MEGATRON_JOB: Mapping[str, str] = {
    "micro_batch_size": "layout.microbatch_size", "global_batch_size": "job.global_batch_size",
    "seq_length": "job.sequence_length", "encoder_seq_length": "job.sequence_length", "train_iters": "said.steps",
    "batch_size": "layout.microbatch_size", "train_micro_batch_size": "layout.microbatch_size",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One kind of launch file.

    Attributes:
        name: What its engine is called.
        stack: The profile that prices it; empty where none does.
        marks: Any of these ends of names makes a file one of this family, together with one of `programs`, if
            those are not empty.
        programs: Parts of a command's words.
        words: Its words.
        defaults: Fields that its engine fills itself, where the files states that engine's parallelism.
        serves: Whether it serves.
    """

    name: str
    stack: str
    marks: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    words: Mapping[str, str]
    defaults: Mapping[str, object] = field(default_factory=dict)
    serves: bool = False


MEGATRON_WORDS: Mapping[str, str] = {
    **MACHINES, **PRECISIONS, **RECOMPUTATION, **DEEPSPEED, **LAYERS_OF_MODELS, **_MEGATRON_LAYOUT, **_MEGATRON_JOB,
}  # fmt: skip
_RL: Mapping[str, str] = {
    "policy.train_global_batch_size": "job.global_batch_size", "policy.max_total_sequence_length": "job.sequence_length",
    "policy.model_name": "said.model", "defaults": "said.parent", "policy.precision": "said.precision", "dtensor_cfg.tensor_parallel_size": "layout.tp",
    "cluster.num_nodes": "said.nodes", "cluster.gpus_per_node": "said.gpus_per_node", "fp8_cfg.enabled": "said.fp8",
}  # fmt: skip
_VERL: Mapping[str, str] = {
    "actor.ppo_micro_batch_size_per_gpu": "layout.microbatch_size", "actor.ulysses_sequence_parallel_size": "layout.cp",
    "actor.fsdp_config.fsdp_size": "said.fsdp_size", "actor.strategy": "said.strategy", "model.path": "said.model",
    "trainer.nnodes": "said.nodes", "trainer.n_gpus_per_node": "said.gpus_per_node",
    "data.max_prompt_length": "said.prompt_length", "data.max_response_length": "said.response_length",
    "batch_size": "said.ignored", "train_batch_size": "said.ignored", "micro_batch_size": "said.ignored",
    "global_batch_size": "said.ignored", "dtype": "said.ignored",
}  # fmt: skip
_TITAN: Mapping[str, str] = {
    **MACHINES,
    "tensor_parallel_degree": "layout.tp", "pipeline_parallel_degree": "layout.pp", "context_parallel_degree": "layout.cp",
    "expert_parallel_degree": "layout.ep", "expert_tensor_parallel_degree": "layout.expert_tp",
    "data_parallel_shard_degree": "said.dp_shard", "data_parallel_replicate_degree": "said.dp_replicate",
    "data_parallel_degree": "said.dp_shard", "local_batch_size": "layout.microbatch_size",
    "training.batch_size": "layout.microbatch_size", "global_batch_size": "job.global_batch_size",
    "num_tokens_per_microbatch_per_dp_rank": "said.microbatch_tokens", "training.seq_len": "job.sequence_length",
    "seq_len": "job.sequence_length", "pipeline_parallel_schedule": "layout.schedule",
    "pipeline_parallel_microbatch_size": "said.pipeline_microbatch", "activation_checkpoint.mode": "said.recompute",
    "selective_ac_option": "said.recompute_option", "model.flavor": "said.flavor", "model.name": "said.model_family",
    "model.converters": "said.converters", "converters": "said.converters", "enable_float8_linear": "said.fp8",
    "compile.enable": "said.compile", "training.compile": "said.compile", "enable_async_tensor_parallel": "said.async_tp",
    "model_registry": "said.flavor", "model_spec.model_registry": "said.flavor", "model_spec": "said.flavor",
    "fsdp_reshard_after_forward": "said.reshard",
    "config_file": "said.config_file", "hf_assets_path": "said.model_path",
}  # fmt: skip
_HF: Mapping[str, str] = {
    **MACHINES, **PRECISIONS, **RECOMPUTATION, **DEEPSPEED,
    "per_device_train_batch_size": "layout.microbatch_size", "train_batch_size": "job.global_batch_size",
    "max_seq_length": "job.sequence_length", "max_seq_len": "job.sequence_length", "max_length": "job.sequence_length",
    "cutoff_len": "job.sequence_length", "block_size": "job.sequence_length", "model_max_length": "job.sequence_length",
    "model_name_or_path": "said.model", "model_id": "said.model", "finetuning_type": "said.adapter", "adapter": "said.adapter",
    "use_peft": "said.adapter", "load_in_4bit": "said.four_bit", "load_in_8bit": "said.eight_bit", "config_overrides": "said.overrides",
    "fsdp": "said.fsdp", "tensor_parallel_size": "layout.tp", "fsdp_config.sharding_strategy": "said.sharding",
    "fsdp_sharding_strategy": "said.sharding", "reshard_after_forward": "said.reshard", "fsdp_reshard_after_forward": "said.reshard",
    "fsdp_version": "said.fsdp_version", "fsdp_offload_params": "said.offload_param", "offload_params": "said.offload_param",
    "distributed_type": "said.distributed_type", "deepspeed_config.zero_stage": "said.zero_stage",
    "parallelism_config_tp_size": "layout.tp", "parallelism_config_cp_size": "layout.cp",
    "parallelism_config_dp_shard_size": "said.dp_shard", "parallelism_config_dp_replicate_size": "said.dp_replicate",
    "gpu_ids": "said.ignored", "fsdp_activation_checkpointing": "said.recompute_full",
}  # fmt: skip
_AXOLOTL: Mapping[str, str] = {
    **_HF,
    "micro_batch_size": "layout.microbatch_size", "sequence_len": "job.sequence_length", "base_model": "said.model",
    "dp_shard_size": "said.dp_shard", "dp_replicate_size": "said.dp_replicate", "context_parallel_size": "layout.cp",
    "sequence_parallel_degree": "layout.cp", "expert_parallel_size": "said.extra_ep",
}  # fmt: skip
_NANOTRON: Mapping[str, str] = {
    "parallelism.tp": "layout.tp", "parallelism.pp": "layout.pp", "parallelism.dp": "layout.dp", "parallelism.cp": "layout.cp",
    "parallelism.context_parallel_size": "layout.cp", "parallelism.expert_parallel_size": "layout.ep",
    "pp_engine": "layout.schedule", "tp_mode": "said.tp_mode", "micro_batch_size": "layout.microbatch_size",
    "batch_accumulation_per_replica": "said.accumulation", "sequence_length": "job.sequence_length",
    "model.dtype": "said.precision", "optimizer.zero_stage": "said.zero_stage", "recompute_layer": "said.recompute_full",
    **{f"model_config.{word}": field for word, field in LAYERS_OF_MODELS.items()},
}  # fmt: skip
_LEVANTER: Mapping[str, str] = {
    "model.hidden_dim": "model.hidden_size", "model.num_heads": "model.num_attention_heads", "model.num_layers": "model.num_layers",
    "model.seq_len": "job.sequence_length", "model.max_seq_len": "job.sequence_length", "trainer.train_seq_len": "job.sequence_length",
    "model.intermediate_dim": "model.intermediate_size", "model.num_kv_heads": "model.num_key_value_heads",
    "model.gradient_checkpointing": "said.recompute_full", "trainer.train_batch_size": "job.global_batch_size",
    "trainer.per_device_parallelism": "layout.microbatch_size", "trainer.mp": "said.precision", "fsdp_axis": "said.fsdp_axis",
    "model_axis_size": "layout.tp", "model.type": "said.model_family", "replica_dcn_axis_size": "said.dp_replicate",
}  # fmt: skip
_MAXTEXT: Mapping[str, str] = {
    "ici_tensor_parallelism": "layout.tp", "ici_pipeline_parallelism": "layout.pp", "ici_context_parallelism": "layout.cp",
    "ici_expert_parallelism": "layout.ep", "ici_fsdp_parallelism": "said.dp_shard", "dcn_data_parallelism": "said.dp_replicate",
    "per_device_batch_size": "layout.microbatch_size", "max_target_length": "job.sequence_length", "model_name": "said.model",
    "base_num_decoder_layers": "model.num_layers", "base_emb_dim": "model.hidden_size", "base_mlp_dim": "model.intermediate_size",
    "base_num_query_heads": "model.num_attention_heads", "base_num_kv_heads": "model.num_key_value_heads",
    "remat_policy": "said.remat", "quantization": "said.precision", "dtype": "said.precision",
}  # fmt: skip
_PLAIN_FSDP: Mapping[str, str] = {
    **MACHINES, **PRECISIONS, **RECOMPUTATION,
    "max_context_width": "job.sequence_length", "hidden_width": "model.hidden_size", "num_layers": "model.num_layers",
    "num_heads": "model.num_attention_heads", "num_key_value_heads": "model.num_key_value_heads",
    "intermediate_size": "model.intermediate_size", "vocab_size": "model.vocab_size", "train_batch_size": "layout.microbatch_size",
    "sharding_strategy": "said.sharding", "model_type": "said.model_family",
}  # fmt: skip
_SERVING: Mapping[str, str] = {
    "tensor_parallel_size": "layout.tp", "tp_size": "layout.tp", "tp": "layout.tp", "tensor_parallel": "layout.tp",
    "pipeline_parallel_size": "layout.pp", "pp_size": "layout.pp", "pp": "layout.pp", "data_parallel_size": "layout.dp",
    "dp_size": "layout.dp", "dp": "layout.dp", "ep_size": "layout.ep", "ep": "layout.ep", "moe_expert_parallel_size": "layout.ep",
    "expert_parallel_size": "layout.ep", "moe_tensor_parallel_size": "layout.expert_tp", "context_parallel_size": "layout.cp",
    "enable_expert_parallel": "said.expert_parallel", "enable_attention_dp": "said.attention_dp", "enable_dp_attention": "said.attention_dp",
    "max_model_len": "said.max_length", "max_seq_len": "said.max_length", "context_length": "said.max_length",
    "max_num_seqs": "said.max_sequences", "max_batch_size": "said.max_sequences", "quantization": "said.precision",
    "kv_cache_dtype": "said.kv_dtype", "kv_cache_config.dtype": "said.kv_dtype", "gpu_memory_utilization": "said.memory_share",
    "free_gpu_memory_fraction": "said.memory_share", "model_url": "said.model", "model.name": "said.model", "model_path": "said.model",
    "model": "said.model", "serve": "said.model", "request_gpu": "said.replica_gpus", "job.gpus": "said.num_gpus",
    "nnodes": "said.nodes", "enforce_eager": "said.eager", "dtype": "said.dtype",
}  # fmt: skip
_VARIABLES: Mapping[str, str] = {
    **MACHINES, **LAYERS_OF_MODELS,
    "tp": "layout.tp", "tp_size": "layout.tp", "tensor_model_parallel": "layout.tp", "tensor_model_parallel_size": "layout.tp",
    "pp": "layout.pp", "pp_size": "layout.pp", "pipeline_model_parallel": "layout.pp", "pipeline_model_parallel_size": "layout.pp",
    "cp": "layout.cp", "cp_size": "layout.cp", "context_parallel": "layout.cp", "context_parallel_size": "layout.cp",
    "ep": "layout.ep", "expert_parallel": "layout.ep", "expert_model_parallel": "layout.ep", "etp": "layout.expert_tp",
    "vp": "layout.virtual_stages", "vpp": "layout.virtual_stages", "interleaved_pipeline": "layout.virtual_stages",
    "virtual_pipeline_model_parallel": "layout.virtual_stages", "mbs": "layout.microbatch_size",
    "micro_batch_size": "layout.microbatch_size", "gbs": "job.global_batch_size", "global_batch_size": "job.global_batch_size",
    "minibs": "said.replica_batch", "seq_len": "job.sequence_length", "seq_length": "job.sequence_length",
    "encoder_seq_length": "job.sequence_length", "sp": "layout.sequence_parallel", "seq_parallel": "layout.sequence_parallel",
    "sequence_parallel": "layout.sequence_parallel", "nls": "model.num_layers", "hs": "model.hidden_size",
    "nah": "model.num_attention_heads", "fp8": "said.fp8", "fp8_hybrid": "said.fp8", "fp4": "said.fp4",
    "use_dist_optimizer": "said.distributed_optimizer", "dgxnnodes": "said.nodes", "dgxngpu": "said.gpus_per_node",
    "num_gpus": "said.num_gpus", "zero_stage": "said.zero_stage", "tp_comm_overlap": "said.tp_overlap",
}  # fmt: skip

FAMILIES: tuple[Family, ...] = (
    Family(name="verl", stack="", marks=("actor.ppo_micro_batch_size_per_gpu", "actor.ppo_mini_batch_size", "actor.strategy"), words={**MEGATRON_WORDS, **_VERL}),
    Family(name="NeMo-RL", stack="", marks=("policy.megatron_cfg.enabled", "policy.dtensor_cfg.enabled", "grpo.num_prompts_per_step"), words={**MEGATRON_WORDS, **_RL}),
    Family(name="torchtitan", stack="torchtitan", marks=("tensor_parallel_degree", "data_parallel_shard_degree", "expert_parallel_degree", "local_batch_size", "job.config_file", "training.seq_len", "data_parallel_degree"), words=_TITAN),
    Family(name="nanotron", stack="", marks=("parallelism.dp", "batch_accumulation_per_replica"), words=_NANOTRON),
    Family(name="levanter", stack="", marks=("trainer.train_batch_size", "trainer.per_device_parallelism"), words=_LEVANTER),
    Family(name="MaxText", stack="", marks=("ici_fsdp_parallelism", "ici_tensor_parallelism", "per_device_batch_size"), words=_MAXTEXT),
    Family(name="Axolotl", stack="pytorch", marks=("base_model",), words=_AXOLOTL),
    Family(name="vLLM", stack="", programs=("vllm", "vllm.entrypoints"), words=_SERVING, serves=True),
    Family(name="SGLang", stack="", programs=("sglang",), marks=("sglang.replica_count",), words=_SERVING, serves=True),
    Family(name="TensorRT-LLM", stack="", programs=("trtllm-serve",), marks=("enable_attention_dp", "cuda_graph_config.max_batch_size", "kv_cache_config.free_gpu_memory_fraction", "print_iter_log"), words=_SERVING, serves=True),
    Family(name="vLLM", stack="", marks=("vllm_config.tensor_parallel_size", "serving_engine_spec.model_spec.name"), words=_SERVING, serves=True),
    Family(name="PyTorch FSDP", stack="pytorch", marks=("max_context_width", "hidden_width"), words=_PLAIN_FSDP),
    Family(name="Megatron-DeepSpeed", stack="megatron-deepspeed", marks=("deepspeed_config", "moe_expert_parallel_size", "zero_stage"), programs=("pretrain_gpt", "pretrain_llama", "pretrain_bert"), words=MEGATRON_WORDS),
    Family(name="NeMo", stack="megatron-core", marks=("cfg.tensor_model_parallel_size", "model.encoder_seq_length", "trainer.num_nodes", "model.megatron_amp_o2"), words=MEGATRON_WORDS),
    Family(name="Primus", stack="megatron-core", marks=("modules.pre_trainer.framework", "modules.pre_trainer.model"), words=MEGATRON_WORDS, defaults={"job.precision": "bf16"}),
    Family(name="Megatron-LM", stack="megatron-core", marks=("tensor_model_parallel_size", "model_parallel_size", "pipeline_model_parallel_size", "num_attention_heads", "use_megatron_fsdp", "context_parallel_size", "seq_length"), words=MEGATRON_WORDS, defaults={"layout.tp": 1, "layout.pp": 1}),
    Family(name="LLaMA-Factory", stack="pytorch", marks=("cutoff_len", "finetuning_type"), words=_HF),
    Family(name="DeepSpeed", stack="pytorch", marks=("zero_optimization.stage", "train_micro_batch_size_per_gpu"), words={**PRECISIONS, **DEEPSPEED}),
    Family(name="Accelerate", stack="pytorch", marks=("distributed_type", "mixed_precision", "num_processes"), words=_HF),
    Family(name="HF Trainer", stack="pytorch", marks=("per_device_train_batch_size", "gradient_checkpointing", "model_name_or_path"), words=_HF),
    Family(name="vLLM", stack="", marks=("tensor_parallel_size", "max_model_len", "gpu_memory_utilization"), words=_SERVING, serves=True),
    Family(name="shell variables", stack="", words=_VARIABLES),
)  # fmt: skip
"""In the order in which they are tried."""
