"""Properties of a stack, a GPU and a model that scale times: plain numbers that runs can be compared in."""

from __future__ import annotations

from dataclasses import dataclass, fields

from costmodel.job import TrainingJob
from costmodel.kernels.stand_ins import stand_in
from costmodel.kernels.tables import Calibration
from costmodel.layout import Quantity
from costmodel.models.spec import ModelSpec
from costmodel.stack import SoftwareStack
from topology.cluster import Cluster
from topology.hardware.datasheets import generation_of
from topology.hardware.gpu import Gpu

FULL_HEAD = 128  # head size at which matrix units are filled
PEER_TO_PEER = (
    "nvswitch",
    "nvlink-mesh",
)  # links over which one GPU writes another's memory beside its kernels
HEAD_STEP = 8  # head sizes in multiples of this use tensor cores for every operand


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Numbers of one (model, GPU, job, stack); flags are 0 or 1. Fields of the stack mean the same here.

    Attributes:
        watts_per_flop_per_s: Design power over bf16 peak of this part, at least that of the part whose tables
            are used.
        power_cap: This part's design power per peak over that of the part whose tables are used, at most 1;
            1 where this part's own sustained rate was measured, which has the cap in it.
        blackwell: 1 where products are slower within a step than alone, as on Blackwell.
        fp8: 1 if linear layers multiply in eight bits or four.
        fp4_over_fp8: Peak in four bits over that in eight if they multiply in four, else 0.
        head_share: min(head size, 128)/128.
        head_misaligned: 1 if the head size is not a multiple of 8.
        product_time_ratio: Matrix products of the stack on this GPU over the tables'.
        attention_slowdown: Attention of the stack on this GPU over the measured fused kernel.
        memory_bandwidth_bytes_per_s: Of the GPU.
        static_experts: 1 if the shapes of expert products are known without asking the GPU.
        level: Factor on every time of a step, from the user's own runs of the stack.
    """

    tp_overlap_share: Quantity
    expert_overlap_share: Quantity
    cp_overlap: Quantity
    gradient_overlap: Quantity
    parameter_overlap: Quantity
    fsdp_prefetch: Quantity
    fsdp_exposed_share: Quantity
    p2p_overlap: Quantity
    p2p_sharded: Quantity
    early_stop_recompute: Quantity
    accumulation_fused: Quantity
    cuda_graphs: Quantity
    launch_blocking: Quantity
    overlaps_gradient_sum: Quantity
    host_s_per_layer: Quantity
    host_s_per_collective: Quantity
    host_s_per_microbatch: Quantity
    product_time_ratio: Quantity
    tp_slowdown: Quantity
    attention_slowdown: Quantity
    watts_per_flop_per_s: Quantity
    power_cap: Quantity
    blackwell: Quantity
    fp8: Quantity
    fp4_over_fp8: Quantity
    head_share: Quantity
    head_misaligned: Quantity
    memory_bandwidth_bytes_per_s: Quantity
    static_experts: Quantity
    level: Quantity = 1.0


def environment_of(
    model: ModelSpec, cluster: Cluster, job: TrainingJob, stack: SoftwareStack, cal: Calibration
) -> Environment:
    """Numbers that scale the times of this job: what the stack says under the same name, and what is here."""
    gpu, timing = cluster.gpu, stack.timing
    named = {field.name for field in fields(Environment)} & {field.name for field in fields(timing)}
    table_part = _table_part(cal, gpu)
    intensity, gpu_intensity = table_part.tdp_w / table_part.peak("bf16"), gpu.tdp_w / gpu.peak("bf16")
    generation = generation_of(gpu)
    newer = generation.faster_bf16_gemm and not job.is_low_precision
    here = {
        "tp_overlap_share": timing.tp_overlap_share * (cluster.hierarchy.scaleup.kind in PEER_TO_PEER),
        "product_time_ratio": timing.product_time_ratio * (timing.hopper_bf16_products if newer else 1.0),
        "attention_slowdown": timing.attention_slowdown_hopper
        if generation.asynchronous_matmul
        else timing.attention_slowdown,
    }
    return Environment(
        **({name: float(getattr(timing, name)) for name in named} | here),
        level=stack.level,
        watts_per_flop_per_s=max(intensity, gpu_intensity),
        power_cap=1.0 if gpu.name in cal.fits()["achievable_share"] else min(1.0, gpu_intensity / intensity),
        blackwell=float(generation.slower_gemm_in_step),
        fp8=float(job.is_low_precision),
        fp4_over_fp8=gpu.peak("fp4") / gpu.peak("fp8") * (job.precision == "nvfp4"),
        head_share=min(model.qk_head_dim, FULL_HEAD) / FULL_HEAD,
        head_misaligned=float(model.qk_head_dim % HEAD_STEP != 0),
        memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        static_experts=float(
            timing.drops_tokens or (timing.static_experts_blackwell and generation.device_sized_experts)
        ),
    )


def _table_part(cal: Calibration, gpu: Gpu) -> Gpu:
    """GPU whose measured tables stand for this one."""
    from topology.catalog import gpu as catalogued

    name = stand_in(cal, gpu)
    return gpu if name == gpu.name else catalogued(name)
