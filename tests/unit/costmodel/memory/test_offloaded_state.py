"""What is left of a parameter on a GPU whose optimizer's state waits in host memory."""

import numpy as np
import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.memory.state import bytes_per_parameter
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.updates.offload import parse_offload


@pytest.mark.parametrize(
    ("engine", "zero_stage", "weights", "gradients"),
    [
        ("deepspeed", 2, 2.0, 0.0),  # ZeRO-Offload (arXiv 2101.06840) section 3: 2 of 16 bytes stay
        ("deepspeed", 3, 2.0 / 4, 0.0),
        ("prime-rl", 3, 2.0 / 4, 0.0),  # PrimeIntellect-ai/prime-rl pull request 3234: bf16 weights alone
        ("torchtitan", 3, 2.0 / 4, 4.0 / 4),  # what its gathers read is left of the master weights
        ("megatron-core", 1, 2.0, 4.0),  # its hybrid optimizer reads main gradients from the GPU
    ],
)
def test_weights_stay_and_gradients_by_engine(
    engine: str, zero_stage: int, weights: float, gradients: float
) -> None:
    """Four replicas."""
    layout = ParallelLayout(dp=4, zero_stage=zero_stage, shard_degree=4)
    job = TrainingJob(sequence_length=1024, global_batch_size=4, offload=parse_offload("optimizer:1")[0])
    work = Workload(model=model("llama-2-7b"), job=job, stack=stack(engine))
    each = bytes_per_parameter(work, LayoutTable.from_rows([layout])).dense
    found = [
        float(np.ravel(part)[0]) for part in (each.weights_bytes, each.gradients_bytes, each.optimizer_bytes)
    ]
    assert found == [weights, gradients, 0.0]
