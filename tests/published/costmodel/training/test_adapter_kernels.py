"""Kernels around adapters: what peft casts, and norms and rotary positions as one kernel each.

Truth: fms-acceleration's published seconds of a step of Mistral-7B with adapters of rank 16 on one A100, four
sequences of 4,096 tokens, recomputed in full (its refs/a100_80gb.csv, February 2025). None of them is fitted.
"""

import itertools

import pytest

from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.ops.cuts import ops_of_parts
from costmodel.ops.op import OpKind, ShardShape
from costmodel.stack import stack
from costmodel.switches.profile import with_switches
from costmodel.training.estimate import estimate
from costmodel.updates.adapters import parse_adapter
from topology.builders import default_cluster

LORA, QLORA = "lora:r=16,targets=attention", "qlora:r=16,targets=attention"
CHAINED: dict[str, str] = {}
FUSED = {"module_kernels": "fused", "loss": "fused_cross_entropy"}
PUBLISHED = [(QLORA, FUSED, 3.969), (LORA, FUSED, 4.334), (QLORA, CHAINED, 4.557), (LORA, CHAINED, 4.929)]
TOKENS = 16384


def predicted(adapter: str, switches: dict[str, str]) -> float:
    """Seconds of the published job."""
    job = TrainingJob(sequence_length=4096, global_batch_size=4, adapter=parse_adapter(adapter))
    case = Case(
        model=model("mistral-7b"), cluster=default_cluster("a100-sxm-80gb", 1), job=job,
        stack=with_switches(stack("pytorch"), switches), cal=load_calibration(),
    )  # fmt: skip
    return estimate(case, ParallelLayout(microbatch_size=4, recompute="full")).step_time_s


def cast_bytes(adapter: str, profile: str, **switches: str) -> float:
    """Bytes that casts of a layer move, forward and backward."""
    job = TrainingJob(sequence_length=4096, global_batch_size=4, adapter=parse_adapter(adapter))
    work = Workload(model=model("mistral-7b"), job=job, stack=with_switches(stack(profile), switches))
    shard = ShardShape(sequence_length=4096.0, microbatch_size=4.0)
    return sum(float(op.bytes) for op in ops_of_parts(work, shard)[0] if op.kind is OpKind.CAST)


def test_published_steps_keep_their_order_and_are_met_within_a_tenth() -> None:
    """A quantised base is faster than one in sixteen bits, whose adapters' inputs are cast; fused norms are too."""
    times = [predicted(adapter, switches) for adapter, switches, _ in PUBLISHED]
    assert times == sorted(times)
    assert times == pytest.approx([measured for _, _, measured in PUBLISHED], rel=0.1)
    for (a, x), (b, y) in itertools.pairwise(zip(times, (row[2] for row in PUBLISHED), strict=True)):
        assert b / a == pytest.approx(y / x, rel=0.06)


def test_peft_casts_the_input_of_every_adapter_beside_weights_in_sixteen_bits() -> None:
    """Four inputs of 4,096 numbers go to fp32 and back, 12 bytes each way; dropout of fp32 moves 4 more."""
    each = 2 * 4 * 4096 * TOKENS
    assert cast_bytes(LORA, "pytorch") == 12 * each
    assert cast_bytes(f"{LORA},dropout=0.1", "pytorch") == 16 * each
    assert cast_bytes(QLORA, "pytorch") == 0
    assert cast_bytes(LORA, "pytorch", compile="on") == 0
    assert cast_bytes(LORA, "prime-rl") == 0
