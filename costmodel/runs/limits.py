"""Training runs that cannot have been: larger than their memory, or faster than their GPUs can multiply.

Both limits are far below anything a real run reaches, so what they refuse is a misread or mistyped row.
"""

from __future__ import annotations

import functools

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.kernels.precisions import PRECISIONS, TRAINING
from costmodel.layout import ParallelLayout
from costmodel.models.parameters import parameter_count
from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.ops.layer import model_flop_per_step
from costmodel.runs.cells import UnsupportedRunError
from topology.base.units import format_bytes, format_flop_per_s, format_seconds
from topology.hardware.gpu import Gpu


def refuse_larger_than_memory(work: Workload, gpu: Gpu, layout: ParallelLayout) -> None:
    """Refuse a run that fitted although its bare weights are larger than the memory of all its GPUs.

    weights = dense·dp·cp + experts·expert dp copies, each once per shard group at ZeRO-3, in the bytes of the
    training precision, or of the format that frozen ones are quantised to: no gradient, no optimizer, no
    activation. Weights that wait in host memory are on no GPU.
    """
    model, job = work.model, work.job
    if job.offload is not None and job.offload.parameters:
        return
    experts = sum(run.count * model.feed_forward(run.kind.mlp).expert_parameters for run in layer_runs(model))
    dense = parameter_count(model) - experts
    sharded = layout.zero_stage == 3
    copies = layout.replicas / (layout.effective_shard_degree if sharded else 1)
    expert_copies = layout.expert_dp / (layout.expert_shard_degree if sharded else 1)
    held = dense * copies + experts * expert_copies
    each = PRECISIONS[TRAINING[job.precision].linear].weight_bytes
    quantised = job.adapter.quantised_bytes if job.adapter else None
    each = each if quantised is None else min(each, quantised)
    memory = layout.num_gpus * gpu.memory_bytes
    if held * each > memory:
        raise UnsupportedRunError(
            f"{dense + experts:,} parameters × {held / (dense + experts):.3g} copies × {each:g} bytes = "
            f"{format_bytes(held * each)} of weights, yet {layout.num_gpus} × "
            f"{format_bytes(gpu.memory_bytes)} = {format_bytes(memory)}: it cannot have run"
        )


def refuse_faster_than_peak(work: Workload, gpu: Gpu, layout: ParallelLayout, step_time_s: float) -> None:
    """Refuse a step measured shorter than its model's FLOPs at the dense peak of all GPUs."""
    flop, peak = _flop(work.model, work.job), layout.num_gpus * gpu.peak(TRAINING[work.job.precision].peak)
    if step_time_s * peak < flop:
        raise UnsupportedRunError(
            f"step_time_s = {step_time_s:g}, yet {flop:.3g} FLOP / ({layout.num_gpus} × "
            f"{format_flop_per_s(peak / layout.num_gpus)}) = {format_seconds(flop / peak)}: "
            "no run is faster than the peak"
        )


@functools.lru_cache(maxsize=4096)
def _flop(model: ModelSpec, job: TrainingJob) -> float:
    return model_flop_per_step(model, job)
