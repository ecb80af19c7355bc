"""A plan as a DeepSpeed JSON configuration, or as Accelerate's YAML."""

from __future__ import annotations

import json
from typing import Any

from costmodel.kernels.precisions import TRAINING
from planner.engines.facts import Exported, accumulation, machines_of, refuse, refuse_axes
from planner.engines.quoting import yaml
from planner.plan import Plan


def deepspeed_config(plan: Plan) -> dict[str, Any]:
    """ZeRO, the batch triple (micro · accumulation · dp = global), AutoTP and pipeline stages."""
    layout, job = plan.layout, plan.request.job
    if layout.cp > 1:
        raise refuse("deepspeed", "context parallelism", f"cp = {layout.cp}", "plan with layout.cp=1")
    refuse_axes("deepspeed", layout, ("tp", "pp", "dp", "ep"))
    if layout.pp > 1 and layout.zero_stage > 1:
        raise refuse("deepspeed", f"ZeRO-{layout.zero_stage} in a pipeline", f"pp = {layout.pp}",
                     "plan with layout.zero_stage=1")  # fmt: skip
    config: dict[str, Any] = {
        "train_batch_size": job.global_batch_size,
        "train_micro_batch_size_per_gpu": layout.microbatch_size,
        "gradient_accumulation_steps": accumulation(plan),
        "zero_optimization": {"stage": layout.zero_stage, "overlap_comm": True},
        TRAINING[job.precision].half: {"enabled": True},
        "gradient_clipping": 1.0,
    }
    if layout.tp > 1:
        config["tensor_parallel"] = {"autotp_size": layout.tp}
    if layout.pp > 1:
        config["pipeline"] = {"stages": layout.pp}
    return config


def export_deepspeed(plan: Plan) -> Exported:
    """Write ds_config.json."""
    notes = []
    if plan.layout.pp > 1:
        notes.append("pipeline stages and their layers are set in code (PipelineModule), not by this file")
    if plan.layout.ep > 1:
        notes.append("expert parallelism is set in code: MoE(ep_size=…)")
    return Exported(
        target="deepspeed",
        file_name="ds_config.json",
        text=json.dumps(deepspeed_config(plan), indent=2) + "\n",
        notes=tuple(notes),
    )


def accelerate_config(plan: Plan) -> dict[str, Any]:
    """FSDP2 and the degrees Accelerate knows: replicas, shards, tp, cp; neither PP nor EP."""
    layout = plan.layout
    refuse_axes("accelerate", layout, ("tp", "cp", "dp"))
    where = machines_of(plan)
    shards = max(1, min(layout.effective_shard_degree, layout.replicas) // layout.cp)
    shards = shards if layout.zero_stage else 1
    ulysses = layout.cp > 1 and layout.cp_kind == "ulysses"
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": TRAINING[plan.request.job.precision].half,
        "num_machines": where.nodes,
        "machine_rank": 0,
        "num_processes": layout.num_gpus,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": layout.zero_stage >= 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": layout.recompute == "full",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": layout.dp // shards,
            "parallelism_config_dp_shard_size": shards,
            "parallelism_config_tp_size": layout.tp,
            "parallelism_config_cp_size": 1 if ulysses else layout.cp,
            "parallelism_config_sp_size": layout.cp if ulysses else 1,
        },
        "use_cpu": False,
    }


def export_accelerate(plan: Plan) -> Exported:
    """Write accelerate.yaml."""
    notes = (f"set gradient_accumulation_steps={accumulation(plan)} in Accelerator()",)
    text = yaml(accelerate_config(plan))
    return Exported(target="accelerate", file_name="accelerate.yaml", text=text, notes=notes)
