"""TensorFlow's `MultiWorkerMirroredStrategy`: its contract, and a plan as what a Keras program asks of it.

``gradient_accumulation_steps`` is an argument of Keras 3's optimizers, the policies are those of
`keras.mixed_precision`. `TF_CONFIG` tells each worker, a process a host, who the others are: the bundle sets
it.
"""

from __future__ import annotations

from planner.engines.contract import Contract
from planner.engines.program import PROGRAM
from planner.engines.wrappers.batches import (
    LENGTH,
    NOTHING_GATHERED,
    REPLICAS_ALONE,
    WITHOUT_A_WORD,
    batches,
    precision,
    recomputes,
    replicas_alone,
)
from planner.plan import Plan

TENSORFLOW = Contract(
    engine="tensorflow",
    title="tf.distribute",
    package="tensorflow",
    releases=("2.16", "2.20"),
    stacks=("tensorflow",),
    settings=(
        batches("per_replica_batch_size", "gradient_accumulation_steps"),
        precision("mixed_precision_policy", {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}),
        recomputes("recompute_grad"),
        LENGTH,
        *PROGRAM,
        *REPLICAS_ALONE,
    ),
    limits=replicas_alone("tf.distribute"),
    recomputes="all",
    built_in={
        "gradient_overlap": "collectives of the graph start when their gradients are there",
        **NOTHING_GATHERED,
        **WITHOUT_A_WORD,
        "early_stop_recompute": "priced as PyTorch's: nothing of it was measured",
    },
    program=("sets the policy of keras.mixed_precision, and batches of per_replica_batch_size · replicas"),
    source="tensorflow.org, Multi-worker training with Keras; keras.io/api/optimizers",
)


def notes(_: Plan) -> tuple[str, ...]:
    """What is behind the numbers."""
    return ("no run of TensorFlow is behind these numbers",)
