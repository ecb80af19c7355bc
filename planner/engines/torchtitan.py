"""A plan as a torchtitan configuration function (0.3: Python returning a `Trainer.Config`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from planner.engines.facts import Exported, refuse, refuse_axes, schedule_name
from planner.engines.quoting import one_line
from planner.plan import Plan

TARGET = "torchtitan"
_RECOMPUTE = {"full": "FullAC", "selective": "SelectiveAC", "selective-op": "SelectiveAC"}


def parallelism(plan: Plan) -> dict[str, Any]:
    """Fields of `parallelism`: replicas of shards, and the degrees."""
    layout = plan.layout
    if layout.cp > 1 and layout.cp_kind == "ulysses":
        raise refuse(TARGET, "Ulysses", "it has ring and all-gather", "set layout.cp_kind=ring")
    refuse_axes(TARGET, layout, ("tp", "cp", "pp", "dp", "ep"))
    copies = layout.replicas
    shard = min(layout.effective_shard_degree, copies) if layout.zero_stage else layout.cp
    shards = max(1, shard // layout.cp)
    fields: dict[str, Any] = {
        "data_parallel_replicate_degree": layout.dp // shards,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "always" if layout.zero_stage >= 3 else "never",
        "tensor_parallel_degree": layout.tp,
        "enable_sequence_parallel": layout.sequence_parallel,
        "pipeline_parallel_degree": layout.pp,
        "context_parallel_degree": layout.cp,
        "expert_parallel_degree": layout.ep,
    }
    if layout.pp > 1:
        fields["pipeline_parallel_schedule"] = schedule_name(TARGET, layout)
        fields["module_fqns_per_model_part"] = model_parts(plan.layers_of_stage)
    return fields


def model_parts(layers_of_stage: Sequence[int]) -> list[list[str]]:
    """Modules of each stage in model order, by torchtitan's names.

    >>> model_parts((1, 2))
    [['tok_embeddings', 'layers.0'], ['layers.1', 'layers.2', 'norm', 'lm_head']]
    """
    layers = itertools.count()
    parts = [[f"layers.{next(layers)}" for _ in range(count)] for count in layers_of_stage]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def export(plan: Plan) -> Exported:
    """Write a function that fills a configuration; the model flavour is the user's to name."""
    layout, job = plan.layout, plan.request.job
    lines = [f"    config.parallelism.{name} = {value!r}" for name, value in parallelism(plan).items()]
    local = job.global_batch_size // layout.dp if layout.pp > 1 else layout.microbatch_size
    lines += [
        f"    config.training.local_batch_size = {local}",
        f"    config.training.global_batch_size = {job.global_batch_size}",
        f"    config.training.seq_len = {job.sequence_length}",
    ]
    policy = _RECOMPUTE.get(layout.recompute)
    before = (
        "" if policy is None else f"    from torchtitan.distributed.activation_checkpoint import {policy}\n\n"
    )
    lines.append(f"    config.activation_checkpoint = {f'{policy}.Config()' if policy else None}")
    if layout.pp > 1:
        size = layout.microbatch_size
        lines.append(f"    config.parallelism.pipeline_parallel_microbatch_size = {size}")
    title = f"{one_line(plan.request.model.name)} on {layout.num_gpus} GPUs"
    text = (
        f"# torchtitan configuration: {title}\n\n\n"
        "def apply_plan(config):\n"
        '    """Fill a Trainer.Config with the plan\'s parallelism and batch."""\n'
        + before
        + "\n".join(lines)
        + "\n    return config\n"
    )
    layers, recomputed = plan.request.model.num_layers, sum(plan.recompute_of_stage)
    partly = layout.recompute == "full" and recomputed < layers
    notes = [f"torchtitan recomputes all {layers} layers, the plan {recomputed}"] if partly else []
    notes.append(f"name the flavour of the model: {_mathematics(plan)}")
    return Exported(target=TARGET, file_name="torchtitan_plan.py", text=text, notes=tuple(notes))


def _mathematics(plan: Plan) -> str:
    """What a flavour must compute with to be the plan's model."""
    model = plan.request.model
    scaling = model.rotary.scaling
    words = [f"norm_eps {model.norm_epsilon:g}"]
    if not model.learned_positions:
        words.append(f"rope_theta {model.rotary.theta:g}")
        words.append(f"rope scaling {f'{scaling.kind} {scaling.factor:g}' if scaling else 'none'}")
    return ", ".join([*words, *model.unmodelled])
