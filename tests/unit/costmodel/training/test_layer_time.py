"""One layer in a step: what hides behind what, on one layout of Llama-3.1-8B under changed stacks."""

from dataclasses import replace

import pytest

from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.ops.feed_forward import expert_ops
from costmodel.ops.op import ShardShape
from costmodel.stack import SoftwareStack, stack
from costmodel.training.constants import default_constants
from costmodel.training.layer_time import LayerStep, layer_step
from costmodel.training.raw_times import features_of
from topology.builders import default_cluster

JOB = TrainingJob(sequence_length=4096, global_batch_size=8)
PLAIN = stack("megatron-lm-2022")


def step_of(engine: SoftwareStack, *, sequence_parallel: bool = False) -> LayerStep:
    """A layer of Llama-3.1-8B over four GPUs of a node."""
    layout = ParallelLayout(tp=4, dp=2, sequence_parallel=sequence_parallel)
    features = features_of(
        Case(
            model=model("llama-3.1-8b"),
            cluster=default_cluster("a100-sxm-80gb", 8),
            job=JOB,
            stack=engine,
            cal=load_calibration(),
        ),
        LayoutTable.from_rows([layout]),
    )
    return layer_step(features.runs[0], features, default_constants())


def test_blocking_launches_add_host_time_to_that_of_kernels() -> None:
    """Far from the host's pace it is hidden; where every launch waits for its kernel it adds up."""
    hidden = step_of(PLAIN)
    shown = step_of(replace(PLAIN, timing=replace(PLAIN.timing, launch_blocking=True)))
    waits = default_constants().blocking_host * hidden.host_s[0]
    added = shown.forward_s[0] + shown.backward_s[0, 0] - hidden.forward_s[0] - hidden.backward_s[0, 0]
    assert added == pytest.approx(waits, rel=1e-3)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_gradient_sum_hides_under_the_weight_gradient(sequence_parallel: bool) -> None:
    """Up to what contends: both all-reduces of a plain backward, half of its sharded transfers otherwise."""
    without = replace(PLAIN, timing=replace(PLAIN.timing, overlaps_gradient_sum=False))
    shown = step_of(without, sequence_parallel=sequence_parallel)
    hidden = step_of(PLAIN, sequence_parallel=sequence_parallel)
    assert 0.3 < hidden.tp_s[0] / shown.tp_s[0] < 0.85


@pytest.mark.parametrize(("once", "moves"), [(False, 2.0), (True, 2 / 3 * (1 + 8 * (1 - (7 / 8) ** 8) / 8))])
def test_tokens_sent_once_are_moved_less(once: bool, moves: float) -> None:
    """Eight of 128 experts over eight ranks: bytes to order tokens over those of all their copies."""
    spec = model("qwen3-30b-a3b")
    shard = ShardShape(sequence_length=4096.0, ep=8)
    shipped = stack("megatron-bridge")
    engine = replace(shipped, timing=replace(shipped.timing, dispatches_once_per_node=once))
    ops = {op.name: op for op in expert_ops(Workload(model=spec, job=JOB, stack=engine), shard)}
    copies = 2 * 4096 * spec.num_experts_per_token * spec.hidden_size
    assert ops["permute"].bytes / copies == pytest.approx(moves)
    assert ops["unpermute"].bytes == ops["permute"].bytes
