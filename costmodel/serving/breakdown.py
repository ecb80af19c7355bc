"""Seconds of one decode step by what they are spent on, for saying what a deployment is bound by."""

from __future__ import annotations

import numpy as np

from costmodel.kernels.tables import Calibration
from costmodel.models.spec import layer_runs
from costmodel.serving.deployment import Deployment, draft_of, stages_alike, stages_of
from costmodel.serving.mixers import streams_s
from costmodel.serving.ops import (
    ACTIVATION_BYTES,
    all_reduce_s,
    decode_attention_s,
    dispatch_s,
    experts_s,
    feed_forward_s,
    head_s,
    launches_s,
    linear_s,
    projections_s,
    small_kernels,
)
from costmodel.serving.step import drafting_s, host_s, round_of
from topology.base.arrays import Floats


def decode_parts_s(cal: Calibration, deployment: Deployment, batch: int, context: float) -> dict[str, float]:
    """Seconds of one decode round of `batch` requests with `context` cached tokens each, by part.

    They sum to the round.

    Every stage of a pipeline works on its own microbatch, so a round is the sum over stages. Where they are
    not alike, the others wait for the longest one.
    """
    layout, stack = deployment.layout, deployment.stack
    rank = -(-batch // layout.attention_dp)
    m = np.array([float(max(-(-rank // layout.pp), 1))])
    parts = dict.fromkeys(
        ("weights", "experts", "attention", "communication", "head", "small kernels", "host"), 0.0
    )
    stages = stages_of(deployment)
    for stage in stages:
        share = 1.0 if len(stages) == 1 else 1 / stages_alike(stage)
        for name, seconds in _layers_s(cal, stage, m).items():
            parts[name] += share * seconds
    parts = {name: seconds * stack.kernel_level for name, seconds in parts.items()}
    cores = [decode_attention_s(cal, stage, m, context) for stage in stages]
    parts["attention"] = layout.pp / len(stages) * float(sum(core[0] for core in cores))
    if len(stages) > 1:
        busy = [
            linear_s(cal, stage, m, captured=True) + core for stage, core in zip(stages, cores, strict=True)
        ]
        batches = np.array([float(min(rank, layout.pp))])
        parts["longest stage"] = float(round_of(busy, batches)[0] - sum(each[0] for each in busy))
    parts["head"] = layout.pp * float(head_s(cal, stages[-1], m)[0]) / layout.pp
    drafted = drafting_s(cal, deployment, np.array([float(rank)]))
    draft = draft_of(deployment)
    if draft is not None:
        each = decode_attention_s(cal, draft, np.array([float(rank)]), context)
        parts["drafting"] = float((drafted + deployment.draft_tokens * each)[0])
    if stack.graph_batch is not None and rank > stack.graph_batch:
        launched_s = layout.pp * launches_s(deployment)
        launched_s += deployment.draft_tokens * launches_s(draft) if draft is not None else 0.0
        parts["launches"] = max(launched_s - sum(parts.values()), 0.0)
    parts["host"] = float(host_s(stack, np.array([float(rank)]), np.array([sum(parts.values())]))[0])
    return parts


def _layers_s(cal: Calibration, deployment: Deployment, m: Floats) -> dict[str, float]:
    """Seconds of all layers on the GPU of a stage, by part, before the level of its kernels."""
    parts = dict.fromkeys(("weights", "experts", "communication", "small kernels"), 0.0)
    row = m * deployment.model.hidden_size * ACTIVATION_BYTES
    reduce_s = float(all_reduce_s(cal, deployment, row)[0])
    for run in layer_runs(deployment.model):
        mixing_s = projections_s(cal, deployment, run.kind, m)
        block = float((mixing_s + feed_forward_s(cal, deployment, run.kind, m, captured=True))[0])
        routed = deployment.model.feed_forward(run.kind.mlp).copies > 0
        experts = float(experts_s(cal, deployment, m)[0]) if routed else 0.0
        moved = reduce_s * (run.kind.attention != "none")
        if run.kind.mlp != "none":
            moved += float(dispatch_s(cal, deployment, m)[0]) if routed else reduce_s
        small = small_kernels(deployment, run.kind) * deployment.stack.kernel_s
        parts["weights"] += run.count * (block - experts - moved)
        parts["experts"] += run.count * experts
        parts["communication"] += run.count * moved
        parts["small kernels"] += run.count * (small + float(streams_s(deployment, m)[0]))
    return parts
