"""Seconds of one decode step by what they are spent on, for saying what a deployment is bound by."""

from __future__ import annotations

import numpy as np

from costmodel.kernels.tables import Calibration
from costmodel.models.spec import layer_runs
from costmodel.serving.deployment import Deployment, draft_of
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
    projections_s,
    small_kernels,
)
from costmodel.serving.step import drafting_s, host_s


def decode_parts_s(cal: Calibration, deployment: Deployment, batch: int, context: float) -> dict[str, float]:
    """Seconds of one decode round of `batch` requests with `context` cached tokens each, by part.

    They sum to the round.

    Every stage of a pipeline works on its own microbatch, so a round is the sum over stages.
    """
    layout, stack = deployment.layout, deployment.stack
    rank = -(-batch // layout.attention_dp)
    m = np.array([float(max(-(-rank // layout.pp), 1))])
    row = m * deployment.model.hidden_size * ACTIVATION_BYTES
    reduce_s = float(all_reduce_s(cal, deployment, row)[0])
    parts = dict.fromkeys(
        ("weights", "experts", "attention", "communication", "head", "small kernels", "host"), 0.0
    )
    for run in layer_runs(deployment.model):
        mixing_s = projections_s(cal, deployment, run.kind, m)
        block = float((mixing_s + feed_forward_s(cal, deployment, run.kind, m, captured=True))[0])
        routed = deployment.model.feed_forward(run.kind.mlp).copies > 0
        experts = float(experts_s(cal, deployment, m)[0]) if routed else 0.0
        moved = reduce_s * (run.kind.attention != "none")
        if run.kind.mlp != "none":
            moved += float(dispatch_s(cal, deployment, m)[0]) if routed else reduce_s
        small = small_kernels(deployment, run.kind) * stack.kernel_s + float(streams_s(deployment, m)[0])
        parts["weights"] += run.count * (block - experts - moved)
        parts["experts"] += run.count * experts
        parts["communication"] += run.count * moved
        parts["small kernels"] += run.count * small
    parts = {name: seconds * stack.kernel_level for name, seconds in parts.items()}
    parts["attention"] = layout.pp * float(decode_attention_s(cal, deployment, m, context)[0])
    parts["head"] = layout.pp * float(head_s(cal, deployment, m)[0]) / layout.pp
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
