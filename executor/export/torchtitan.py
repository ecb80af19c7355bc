"""A plan as a torchtitan configuration function (0.3: Python returning a `Trainer.Config`)."""

from __future__ import annotations

import json
from typing import Any

from executor.export.facts import Exported, refuse
from executor.export.quoting import one_line
from planner.plan import Plan

TARGET = "torchtitan"
_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zb-h1": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
_RECOMPUTE = {"none": "none", "full": "full", "selective": "selective", "selective-op": "selective"}


def parallelism(plan: Plan) -> dict[str, Any]:
    """Fields of `parallelism`: replicas of shards, and the degrees."""
    layout = plan.layout
    if layout.tp > 1 and not layout.sequence_parallel:
        raise refuse(TARGET, "tensor without sequence parallelism", "its TP always splits the sequence",
                     "set layout.sequence_parallel=true")  # fmt: skip
    if layout.cp > 1 and layout.cp_kind == "ulysses":
        raise refuse(TARGET, "Ulysses", "it has ring and all-gather", "set layout.cp_kind=ring")
    copies = layout.dp * layout.cp
    shard = min(layout.effective_shard_degree, copies) if layout.zero_stage else layout.cp
    shards = max(1, shard // layout.cp)
    fields: dict[str, Any] = {
        "data_parallel_replicate_degree": layout.dp // shards,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "always" if layout.zero_stage >= 3 else "never",
        "tensor_parallel_degree": layout.tp,
        "pipeline_parallel_degree": layout.pp,
        "context_parallel_degree": layout.cp,
        "expert_parallel_degree": layout.ep,
    }
    if layout.pp > 1:
        fields["pipeline_parallel_schedule"] = _SCHEDULES[layout.schedule]
    return fields


def export(plan: Plan) -> Exported:
    """Write a function that fills a configuration; the model flavour is the user's to name."""
    layout, job = plan.layout, plan.request.job
    lines = [
        f"    config.parallelism.{name} = {json.dumps(value)}" for name, value in parallelism(plan).items()
    ]
    local = job.global_batch_size // layout.dp if layout.pp > 1 else layout.microbatch_size
    lines += [
        f"    config.training.local_batch_size = {local}",
        f"    config.training.global_batch_size = {job.global_batch_size}",
        f"    config.training.seq_len = {job.sequence_length}",
        f"    config.activation_checkpoint.mode = {json.dumps(_RECOMPUTE[layout.recompute])}",
    ]
    if layout.pp > 1:
        size = layout.microbatch_size
        lines.append(f"    config.parallelism.pipeline_parallel_microbatch_size = {size}")
    title = f"{one_line(plan.request.model.name)} on {layout.num_gpus} GPUs"
    text = (
        f"# torchtitan configuration: {title}\n\n\n"
        "def apply_plan(config):\n"
        '    """Fill a Trainer.Config with the plan\'s parallelism and batch."""\n'
        + "\n".join(lines)
        + "\n    return config\n"
    )
    notes = ["stages are split as torchtitan does; layers_of_stage is not exported"] if layout.pp > 1 else []
    return Exported(target=TARGET, file_name="torchtitan_plan.py", text=text, notes=tuple(notes))
