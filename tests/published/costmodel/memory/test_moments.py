"""Peaks of full fine-tuning and of adapters, which are of one of three moments of a step.

Figures of foundation-model-stack/fms-acceleration scripts/benchmarks/refs (2024-12): one A100 of 80 GB or several,
4,096 tokens, every layer recomputed, torch's maximum of allocated memory, in GiB.
"""

import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.memory.stage import memory_by_stage
from costmodel.models.catalog import model
from costmodel.models.parameters import parameter_count
from costmodel.models.spec import layer_runs
from costmodel.stack import stack
from costmodel.switches.profile import with_switches
from costmodel.updates.adapters import parse_adapter
from topology.base.units import GIB

PURE = {"weight_dtype": "bf16", "gradient_dtype": "bf16", "master_dtype": "none", "moment_dtype": "bf16"}
SHARDS = {"weight_dtype": "fp32_shards", "gradient_dtype": "fp32", "update_kernel": "foreach"}
LOSS = {"loss": "fused_cross_entropy"}


def peak_gib(name: str, gpus: int, batch: int, switches: dict[str, str], adapter: str = "") -> float:
    """What is allocated at most."""
    spec = model(name)
    layout = ParallelLayout(
        dp=gpus, microbatch_size=batch, recompute="full", zero_stage=3 if gpus > 1 else 0, shard_degree=gpus
    )
    job = TrainingJob(
        sequence_length=4096,
        global_batch_size=batch * gpus,
        adapter=parse_adapter(adapter) if adapter else None,
    )
    layers = tuple(run.count for run in layer_runs(spec))
    profile = with_switches(stack("pytorch"), switches)
    (stage,) = memory_by_stage(Workload(model=spec, job=job, stack=profile), layout, [layers], [layers])
    return stage.allocated_bytes / GIB


@pytest.mark.parametrize(
    ("name", "gpus", "batch", "switches", "measured"),
    [
        ("mistral-7b", 1, 4, PURE, 67.458),
        ("mistral-7b", 1, 8, PURE, 67.459),
        ("mistral-7b", 2, 4, PURE, 33.738),
        ("mistral-7b", 2, 4, SHARDS, 67.46),
        ("mistral-7b", 2, 8, SHARDS, 67.461),
        ("llama-3-8b", 1, 4, PURE, 74.802),
        ("llama-3-8b", 2, 4, SHARDS, 74.804),
    ],
)
def test_an_update_in_a_chain_of_kernels_is_the_peak(
    name: str, gpus: int, batch: int, switches: dict[str, str], measured: float
) -> None:
    """Ten bytes a parameter in sixteen bits, twenty in fp32 over its shards, whatever the batch."""
    predicted = peak_gib(name, gpus, batch, {**switches, **LOSS})
    assert predicted == pytest.approx(measured, rel=0.005)
    each = 10 if switches is PURE else 20
    assert predicted == pytest.approx(each * parameter_count(model(name)) / gpus / GIB, rel=0.005)


@pytest.mark.parametrize(
    ("name", "gpus", "batch", "adapter", "loss", "measured"),
    [
        ("llama-3-8b", 1, 4, "lora", "fused_cross_entropy", 35.059),
        ("llama-3-8b", 1, 8, "lora", "fused_cross_entropy", 54.964),
        ("llama-3-8b", 1, 8, "qlora", "fused_cross_entropy", 45.293),
        ("mistral-7b", 1, 4, "lora", "whole", 24.871),
        ("mistral-7b", 1, 8, "lora", "whole", 36.082),
        ("mistral-7b", 1, 16, "lora", "fused_linear", 46.677),
        ("mistral-7b", 2, 8, "lora", "fused_linear", 31.767),
        ("mistral-7b", 2, 16, "lora", "fused_cross_entropy", 55.775),
        ("mistral-7b", 4, 16, "qlora", "fused_cross_entropy", 49.306),
    ],
)
def test_the_loss_or_a_layer_is_the_peak_of_adapters(
    name: str, gpus: int, batch: int, adapter: str, loss: str, measured: float
) -> None:
    """The larger of both, not their sum; sharded, the inputs of frozen layers count twice."""
    predicted = peak_gib(name, gpus, batch, {"loss": loss}, f"{adapter}:r=16,targets=attention")
    assert predicted == pytest.approx(measured, rel=0.12)
