"""Properties of a stack, a GPU and a model that scale times: plain numbers that runs can be compared in."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.precisions import PRECISIONS, TRAINING
from costmodel.ops.op import HALF_BYTES
from costmodel.ops.passes import FUSED_SCORE_BYTES, score_bytes
from costmodel.stack import SoftwareStack, StackTiming
from costmodel.switches.profile import master_bytes
from costmodel.updates.adapters import Adapter
from costmodel.updates.offload import HOST_EFFICIENCY, UPDATE_BYTES, host_path
from costmodel.updates.optimizers import ADAM_STATE_BYTES, MASTER_BYTES, optimizer
from topology.base.arrays import Quantity
from topology.hardware.datasheets import Generation, generation_of

PEER_TO_PEER = (
    "nvswitch",
    "nvlink-mesh",
)  # links over which one GPU writes another's memory beside its kernels
ATTENTION_LAUNCHES = 9
"""Kernels of attention in a layer's forward: norm, projection of three, two rotations, the core, the output's
projection, and dropout, bias and residual in one; two messages or their parts."""
FEED_FORWARD_LAUNCHES = 6
"""Of a dense feed-forward: norm, two products, activation, residual; a message."""
CHAINED_LAUNCHES = 26
"""Kernels more of a layer whose modules are chains: of two norms seven each, of two rotations four each, two
projections, one product of a gated feed-forward, and the product with its gate."""
UNFUSED_LAUNCHES = 4
"""Of these the last four, which stay where norms and rotations are one kernel each."""
ADAPTER_LAUNCHES = 6
"""Kernels of an adapter beside a product: two casts, two thin products, the factor, the sum (peft, LoRA)."""
ADAPTED_PRODUCTS = {"attention": 4, "mlp": 3}
"""Products with an adapter in a block of a layer: queries, keys, values and output; gate, up and down."""
HEAD_STEP = 8  # rows in multiples of this, 16 bytes, are loaded whole by tensor cores' kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Numbers of one (model, GPU, job, stack); flags are 0 or 1. Fields of the stack mean the same here.

    Attributes:
        design_power_w: Of the GPU.
        product_energy: Energy of an operation of linear layers over one in sixteen bits: width of operands.
        wide_over_narrow: Time of a product in sixteen bits over one in four, less one, if linear layers
            multiply in four; else 0.
        splits_accumulation: 1 if products for gradients keep partial sums in wider registers.
        chained_scores: 1 if the S² scores of unfused attention pass through a chain of kernels, each over the
            whole square; one fused kernel passes over the half that the mask leaves.
        head_misaligned: 1 if the head size is not a multiple of 8.
        logits_misaligned: 1 if the vocabulary is not either, and the stack does not pad it.
        product_time_ratio: Matrix products of the stack on this GPU over the tables'.
        attention_slowdown: Attention of the stack on this GPU over the measured fused kernel.
        graphed_layers: Share of the launches of a layer, outside its experts, that captured graphs replay
            where not the whole step does.
        graphed_routing: The same of the launches that route tokens to experts and order them.
        memory_bandwidth_bytes_per_s: Of the GPU.
        static_experts: 1 if the shapes of expert products are known without asking the GPU.
        update_bytes: What an update moves per parameter beyond AdamW in fp32.
        host_updated: Share of the parameters that the host updates.
        host_update_s: Of a parameter that the host updates, gradient and weight moved and all.
        inputs_away: Share of the inputs of recomputed layers that wait in host memory.
        host_link_bytes_per_s: What copies between a GPU and its host reach, per direction.
        level: Factor on every time of a step, from the user's own runs of the stack.
        products, attention, passes, host, exchange: Factors of the same runs on each of these parts
            (`costmodel.kernels.level.StackLevel`).
    """

    tp_overlap_share: Quantity
    expert_overlap_share: Quantity
    cp_overlap: Quantity
    gradient_overlap: Quantity
    parameter_overlap: Quantity
    fsdp_prefetch: Quantity
    regathers_recomputed: Quantity
    fsdp_exposed_share: Quantity
    p2p_overlap: Quantity
    p2p_sharded: Quantity
    early_stop_recompute: Quantity
    accumulation_fused: Quantity
    cuda_graphs: Quantity
    launch_blocking: Quantity
    overlaps_gradient_sum: Quantity
    host_s_per_layer: Quantity
    adapters_host_s: Quantity
    host_s_per_collective: Quantity
    host_s_per_microbatch: Quantity
    product_time_ratio: Quantity
    tp_slowdown: Quantity
    attention_slowdown: Quantity
    graphed_layers: Quantity
    graphed_routing: Quantity
    design_power_w: Quantity
    product_energy: Quantity
    wide_over_narrow: Quantity
    splits_accumulation: Quantity
    chained_scores: Quantity
    head_misaligned: Quantity
    logits_misaligned: Quantity
    memory_bandwidth_bytes_per_s: Quantity
    static_experts: Quantity
    launches_experts_singly: Quantity
    pairs_expert_passes: Quantity
    dispatches_once_per_node: Quantity
    fused_permutation: Quantity
    narrow_head: Quantity
    loss_forward_bytes: Quantity
    loss_backward_bytes: Quantity
    update_bytes: Quantity = 0.0
    host_updated: Quantity = 0.0
    host_update_s: Quantity = 0.0
    inputs_away: Quantity = 0.0
    host_link_bytes_per_s: Quantity = math.inf
    level: Quantity = 1.0
    products: Quantity = 1.0
    attention: Quantity = 1.0
    passes: Quantity = 1.0
    host: Quantity = 1.0
    exchange: Quantity = 1.0


def attention_slowdown(timing: StackTiming, generation: Generation) -> float:
    """Time of the stack's attention kernel on a generation over that of the generation's own."""
    if generation.tensor_memory:
        return timing.attention_slowdown_blackwell
    if generation.asynchronous_matmul:
        return timing.attention_slowdown_hopper
    return max(timing.attention_slowdown, generation.fused_attention_slowdown)


def graphed_routing(timing: StackTiming) -> float:
    """Share of the launches of routing that graphs of modules replay: of router, preprocessing, or both.

    None of them where the host is asked how many tokens each expert gets: it waits for the GPU there, however
    early it launched what comes before.

    >>> graphed_routing(StackTiming(graphed_modules=("attn", "moe_router"), fused_permutation=True))
    0.5
    """
    parts = {"moe_router", "moe_preprocess"}
    captured = 1.0 if "moe" in timing.graphed_modules else len(parts & {*timing.graphed_modules}) / len(parts)
    return captured * timing.fused_permutation


PLAIN_LAUNCHES = ATTENTION_LAUNCHES + FEED_FORWARD_LAUNCHES


def host_s_per_layer(timing: StackTiming) -> float:
    """Host time to launch one layer's forward: that of a plain layer, by the kernels that chains have more.

    >>> from costmodel.stack import stack
    >>> [round(host_s_per_layer(stack(name).timing) * 1e6) for name in ("pytorch-fsdp1", "pytorch")]
    [150, 410]
    """
    more = CHAINED_LAUNCHES * timing.chained_modules + UNFUSED_LAUNCHES * timing.fused_norms
    return timing.host_s_per_layer * (1 + more / PLAIN_LAUNCHES)


def adapters_host_s(timing: StackTiming, adapter: Adapter | None) -> float:
    """Host time to launch the adapters of one layer's forward."""
    if adapter is None:
        return 0.0
    each = ADAPTER_LAUNCHES + (adapter.dropout > 0)
    launches = each * sum(ADAPTED_PRODUCTS[target] for target in adapter.targets)
    return timing.host_s_per_layer * launches / PLAIN_LAUNCHES


def graphed_layers(timing: StackTiming) -> float:
    """Share of the launches of a layer outside its experts that graphs of modules replay."""
    launches = {"attn": ATTENTION_LAUNCHES, "mlp": FEED_FORWARD_LAUNCHES}
    captured = sum(count for module, count in launches.items() if module in timing.graphed_modules)
    return captured / sum(launches.values())


def job_environment(case: Case) -> Environment:
    """Numbers that scale the times of this job: what the stack says under the same name, and what is here."""
    job, stack = case.job, case.stack
    gpu, timing = case.cluster.gpu, stack.timing
    named = {field.name for field in fields(Environment)} & {field.name for field in fields(timing)}
    record = TRAINING[job.precision]
    generation = generation_of(gpu)
    here = {
        "tp_overlap_share": timing.tp_overlap_share * (case.cluster.hierarchy.scaleup.kind in PEER_TO_PEER),
        "attention_slowdown": attention_slowdown(timing, generation),
        "graphed_layers": graphed_layers(timing),
        "host_s_per_layer": host_s_per_layer(timing),
        "adapters_host_s": adapters_host_s(timing, job.adapter),
        "graphed_routing": graphed_routing(timing),
    }
    return Environment(
        **({name: float(getattr(timing, name)) for name in named} | here),
        level=stack.level,
        **({} if stack.measured is None else stack.measured.parts),
        update_bytes=_update_bytes(job, stack),
        splits_accumulation=float(generation.splits_accumulation and job.is_low_precision),
        design_power_w=gpu.tdp_w,
        product_energy=PRECISIONS[record.linear].activation_bytes / HALF_BYTES,
        wide_over_narrow=gpu.peak("fp4") / gpu.peak("bf16") - 1 if job.precision == "nvfp4" else 0.0,
        chained_scores=float(score_bytes(stack) > FUSED_SCORE_BYTES),
        head_misaligned=float(case.model.qk_head_dim % HEAD_STEP != 0),
        logits_misaligned=float(not timing.pads_vocabulary and case.model.vocab_size % HEAD_STEP != 0),
        memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        static_experts=float(
            timing.drops_tokens or (timing.static_experts_blackwell and generation.device_sized_experts)
        ),
        **_offloaded(case),
    )


def _offloaded(case: Case) -> dict[str, float]:
    """What waits in host memory, and the seconds of its path; nothing of a job that offloads nothing.

        host update = g/B + UPDATE_BYTES/(efficiency·D) + w/B, one after the other

    g and w are the bytes of a gradient and a weight as they travel, D a GPU's share of the memory's rate.
    With parameters offloaded both have been there since the backward.
    """
    job = case.job
    if job.offload is None:
        return {}
    path = host_path(case.cluster.spec)
    moved = case.stack.memory.gradient_bytes + case.stack.memory.weight_bytes
    travels = 0.0 if job.offload.parameters else moved / path.link_bytes_per_s
    rate = math.inf if path.memory_bytes_per_s is None else HOST_EFFICIENCY * path.memory_bytes_per_s
    return {
        "host_updated": job.offload.updated,
        "host_update_s": travels + UPDATE_BYTES / rate,
        "inputs_away": job.offload.activations,
        "host_link_bytes_per_s": path.link_bytes_per_s,
    }


def from_host_seconds(case: Case) -> tuple[float, float, float]:
    """Seconds of an offloaded parameter's weight on its way to the GPU, and of its gradient on the way back.

    A stack that gathers from its master weights brings those, in fp32. Last those of a frozen byte.
    """
    stack = case.stack
    if case.job.offload is None or not case.job.offload.parameters:
        return 0.0, 0.0, 0.0
    weight = MASTER_BYTES if stack.memory.gathers_from_master else stack.memory.weight_bytes
    link = host_path(case.cluster.spec).link_bytes_per_s
    return weight / link, stack.memory.gradient_bytes / link, 1 / link


def _update_bytes(job: TrainingJob, stack: SoftwareStack) -> float:
    """2·(state − AdamW's): bytes that an update reads and writes of a parameter beyond those of AdamW.

    Compressing gradients moves bytes too, of every parameter, since only replicas that share no state do it.
    """
    state = optimizer(job.optimizer).state_bytes
    moved = _chained_bytes(job, stack) if state is None else 2 * (state - ADAM_STATE_BYTES)
    moved += job.apart.moved_bytes if job.apart else 0.0
    return moved + (job.compression.moved_bytes(stack.memory.gradient_bytes) if job.compression else 0.0)


def _chained_bytes(job: TrainingJob, stack: SoftwareStack) -> float:
    """2·w + 10·u + g: bytes that a chain of kernels moves of a parameter beyond one kernel of AdamW.

    w, u and g are the widths of what is updated, of a moment and of a gradient. One kernel moves
    2·w + 4·u + g; the chain decays w, interpolates one moment, scales the other and adds g² to it, takes its
    root into a temporary, scales that, adds to it, and divides: 4·w + 14·u + 2·g. Gradients in fp16 are also
    divided by the loss scale, 2·g.

    Source: torch/optim/adam.py, _multi_tensor_adam; torch/amp/grad_scaler.py, unscale_.
    """
    if not stack.timing.foreach_update:
        return 0.0
    updated = max(stack.memory.weight_bytes, master_bytes(stack))
    gradient = stack.memory.gradient_bytes
    unscaled = 2 * gradient * (TRAINING[job.precision].half == "fp16")
    return 2 * updated + 5 * stack.memory.moment_bytes + gradient + unscaled
