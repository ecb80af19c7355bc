"""Model FLOPs count nothing twice; hardware FLOPs count what is repeated."""

from dataclasses import replace

import pytest

from costmodel.case import Case, Workload
from costmodel.estimate import Estimate
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout, Recompute
from costmodel.models.catalog import model
from costmodel.models.spec import layer_runs
from costmodel.ops.layer import forward_flop, head_ops, layer_ops
from costmodel.ops.op import OpKind, ShardShape
from costmodel.pipeline.stage_costs import StageSplit
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from topology.builders import default_cluster

CAL = load_calibration()
MODEL = model("llama-3.1-70b")
JOB = TrainingJob(sequence_length=8192, global_batch_size=64)
LAYOUT = ParallelLayout(tp=8, pp=4, sequence_parallel=True)


def estimated(policy: Recompute, recomputed: tuple[int, ...]) -> Estimate:
    """70B on four pipeline ranks that recompute so many layers each."""
    split = StageSplit(layers_of_stage=((20,),) * 4, recompute_of_stage=recomputed)
    layout = replace(LAYOUT, recompute=policy)
    return estimate(
        Case(
            model=MODEL,
            cluster=default_cluster("h100-sxm", 32),
            job=JOB,
            stack=stack("megatron-core"),
            cal=CAL,
        ),
        layout,
        split,
    )


def layer_share(core_attention: bool = False) -> float:
    """FLOPs of all layers (or of their attention cores) over those of a forward pass with the head."""
    shard, ideal = ShardShape(sequence_length=8192.0), stack("ideal")
    (run,) = layer_runs(MODEL)
    ops = layer_ops(Workload(model=MODEL, job=JOB, stack=ideal), run.kind, shard)
    layers = run.count * float(forward_flop(ops))
    repeated = run.count * float(forward_flop([op for op in ops if op.kind is OpKind.ATTENTION]))
    return (repeated if core_attention else layers) / (
        layers + float(forward_flop(head_ops(MODEL, ideal, shard)))
    )


def test_without_recomputation_hardware_does_what_the_model_needs() -> None:
    """HFU is MFU."""
    found = estimated("none", (0, 0, 0, 0))
    assert found.hfu == found.mfu


@pytest.mark.parametrize("recomputed", [(20, 20, 20, 20), (5, 3, 0, 0)])
def test_recomputed_layers_add_their_forward_to_the_hardware_flop(recomputed: tuple[int, ...]) -> None:
    """A third of the model's FLOPs when all layers are repeated, less the head, which never is."""
    found = estimated("full", recomputed)
    assert found.hfu / found.mfu == pytest.approx(1 + sum(recomputed) / 80 * layer_share() / 3)


def test_selective_recomputation_repeats_the_core_of_attention() -> None:
    """Its FLOPs in every layer, and nothing else."""
    found = estimated("selective", (0, 0, 0, 0))
    assert found.hfu / found.mfu == pytest.approx(1 + layer_share(core_attention=True) / 3)
