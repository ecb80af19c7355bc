"""Horovod: its contract, and a plan as what a training program asks of `DistributedOptimizer`.

``backward_passes_per_step`` is its argument (horovod/torch/optimizer.py of the 0.28.1 archive); batch, length
and precision are the program's own. `horovodrun` starts the ranks of all hosts, which the bundle writes.
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

HOROVOD = Contract(
    engine="horovod",
    title="Horovod",
    package="horovod",
    releases=("0.28", "0.28"),
    stacks=("pytorch",),
    settings=(
        batches("batch_size", "backward_passes_per_step"),
        precision("autocast", {"bf16": "bfloat16", "fp16": "float16"}),
        recomputes("gradient_checkpointing"),
        LENGTH,
        *PROGRAM,
        *REPLICAS_ALONE,
    ),
    limits=replicas_alone("Horovod"),
    recomputes="all",
    built_in={
        "gradient_overlap": "gradients are summed as soon as they are there, beside the backward pass",
        **NOTHING_GATHERED,
        **WITHOUT_A_WORD,
    },
    program=("gives backward_passes_per_step to hvd.DistributedOptimizer and autocast to torch.autocast"),
    source="horovod/torch/optimizer.py and runner/launch.py of the Horovod 0.28.1 archive",
)
