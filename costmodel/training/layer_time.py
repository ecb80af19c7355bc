"""Time of one layer, and of the embedding and the head, inside a step: raw times joined by the constants.

The equations, for every placed cut:

    GPU forward   = products + attention + passes + exposed tp, cp, ep transfers
    GPU backward  = input and weight gradients + attention backward + passes + accumulation
                    + exposed tp, cp, ep transfers
    layer         = max(GPU, host) for each direction, rounded off where both are close, or GPU + host
                    where launches block; then waits that neither hides

Legend: ``c`` constants, ``e`` environment, ``k`` kernels, ``t`` transfers; arrays end in the placed-cut axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.kernels.clocks import slowdown
from costmodel.ops.passes import UNCOUNTED_LOSS_BACKWARD
from costmodel.training.constants import Constants
from costmodel.training.raw_times import Features, PartTimes
from costmodel.training.slowdowns import Environment
from topology.base.arrays import Quantity, Vector

SHARPNESS = 16
"""Exponent of the smooth maximum of GPU and host time: equal times cost 2^(1/16), 4 % more than either.

Chosen, not fitted and without a published source: a thousand launches fit into the queue of a GPU, those of
several layers, so the slower of the two sets the pace of a microbatch and hardly ever waits for the other.
"""

PRODUCT_PASSES = 3  # operations of a matrix product forward and backward over those forward
ATTENTION_PASSES = 3.5  # the same of fused attention, whose backward computes the scores again

GRADIENT_SUMS = 1 / 2  # of the sharded transfers of a backward: the other half gathers gradients

TP_SYNCHRONISATIONS = 2  # blocking tensor-parallel collectives of a layer in one direction


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStep:
    """One layer and microbatch inside a step; one entry per placed cut.

    Attributes:
        forward_s: Forward.
        backward_s: Backward by recompute policy, shape (policies, cuts), policies as in `layout.RECOMPUTES`.
        forward_share: Share of the kernels of the forward in those of forward and backward together.
        weight_share: Share of the weight-gradient part in forward and backward together (what zero-bubble
            moves).
        compute_s: Kernels of forward and backward.
        tp_s: Exposed tensor-parallel time in both.
        cp_s: Exposed context-parallel time in both.
        ep_s: Exposed expert time in both.
        host_s: Host time to launch both, and to wait for the routing of tokens.
    """

    forward_s: Vector
    backward_s: Vector
    forward_share: Vector
    weight_share: Vector
    compute_s: Vector
    tp_s: Vector
    cp_s: Vector
    ep_s: Vector
    host_s: Vector


def smooth_max(a: Quantity, b: Quantity) -> Vector:
    """Larger of two times, rounded off where they are close: (aˢ + bˢ)^(1/s), s the sharpness.

    >>> round(float(smooth_max(1.0, 0.9)), 4)
    1.0107
    """
    larger = np.maximum(np.maximum(a, b), 1e-30)
    return np.asarray(larger * ((a / larger) ** SHARPNESS + (b / larger) ** SHARPNESS) ** (1 / SHARPNESS))


def gemm_factor(e: Environment, c: Constants) -> Quantity:
    """Time of matrix products in a step over their tables, at full clocks."""
    return e.product_time_ratio * (1 + c.fp4_wide_share * e.wide_over_narrow)


def sustained_slowdown(part: PartTimes, e: Environment, c: Constants, full_clock_s: Vector) -> Vector:
    """Kernels at the clocks that the design power sustains, over those at full clocks.

        slowdown = max(1, E·flop/(t·P))^h

    E is the energy of a sixteen-bit operation, narrower ones need it by the width of their operands; t the
    time of forward and backward at full clocks, memory passes included, P the design power. Clocks follow
    power over milliseconds, so a layer throttles as a whole; h lies between 1/3 (voltage falls with clocks)
    and 1 (it is at its floor).
    """
    k = part.kernels
    flop = PRODUCT_PASSES * e.product_energy * k.product_flop + ATTENTION_PASSES * k.attention_flop
    joules = c.picojoule_per_flop * 1e-12 * flop
    return slowdown(joules, full_clock_s, e.design_power_w, c.clock_exponent)


def layer_step(part: PartTimes, f: Features, c: Constants) -> LayerStep:
    """Time of one layer (or of an end) in a step, for every placed cut."""
    k, e = part.kernels, f.environment
    gemm = gemm_factor(e, c)
    attention_f, attention_b = _attention(part, e, c)
    in_step = e.passes * c.elementwise_in_step
    elementwise = in_step * k.elementwise_s
    casts_f, casts_b = (in_step * casts for casts in (k.cast_forward_s, k.cast_backward_s))
    weight = gemm * c.weight_gradient_gemm * k.weight_gradient_s + gemm * k.grouped_weight_gradient_s
    inputs = gemm * k.input_gradient_s + gemm * k.grouped_input_gradient_s
    split = 1 + e.splits_accumulation * (c.split_accumulation - 1)
    weight, inputs = weight * split, inputs * split
    products = gemm * k.forward_s + gemm * k.grouped_forward_s
    passes_f, passes_b = elementwise + casts_f, c.elementwise_backward * elementwise + casts_b
    passes = passes_f + passes_b
    slow = sustained_slowdown(part, e, c, products + weight + inputs + attention_f + attention_b + passes)
    multiplied, attended = e.products * slow, e.attention * slow
    gemm, weight, inputs = gemm * multiplied, weight * multiplied, inputs * multiplied
    attention_f, attention_b = attention_f * attended, attention_b * attended
    forward = products * multiplied + attention_f + passes_f
    backward = inputs + attention_b + passes_b + weight + _accumulation(part, f, c)
    backward = k.trains * backward
    tp_f, tp_b = _tensor_transfers(part, f, c, inputs, weight)
    cp_f, cp_b = _context_transfers(part, e, c, attention_f, attention_b)
    ep_f, ep_b = _expert_transfers(part, f, c, forward, backward)
    gpu_f, gpu_b = forward + tp_f + cp_f + ep_f, backward + tp_b + cp_b + ep_b
    host_f, host_b = _host(part, f, c)
    skipped = e.early_stop_recompute * gemm * k.last_forward_s
    wait = _routing_wait(part, e, c, gemm * k.grouped_forward_s)
    skew = _socket_skew(f, c)
    asked = _pairs_that_wait(part, f)
    recomputed_wait = np.stack([
        0 * wait, k.reroutes * wait + k.relaunched_share * skew, skew, wait + skew,
    ])  # fmt: skip
    modules = k.repeats_attention * attention_f + gemm * k.repeated_forward_s
    modules = modules + gemm * k.repeated_grouped_s + in_step * k.repeated_elementwise_s
    modules = modules + _repeated_transfers(part, f, c, modules)
    repeated = np.stack([
        np.zeros_like(forward), modules,
        gemm * k.forward_s + tp_f + elementwise + casts_f, gpu_f - skipped,
    ])  # fmt: skip
    recomputed_wait, repeated = k.trains * recomputed_wait, k.trains * repeated
    values = k.relaunched_share * host_f
    recomputed_host = np.stack([np.zeros_like(host_f), values, host_f, host_f])
    return LayerStep(
        forward_s=_launched(gpu_f, host_f, e, c, asked) + wait + skew,
        backward_s=k.trains * (_launched(gpu_b + repeated, host_b + recomputed_host, e, c, asked) + skew)
        + recomputed_wait,
        forward_share=forward / np.maximum(forward + backward, 1e-30),
        weight_share=weight / np.maximum(forward + backward, 1e-30),
        compute_s=forward + backward,
        tp_s=tp_f + tp_b + 2 * skew,
        cp_s=cp_f + cp_b,
        ep_s=ep_f + ep_b,
        host_s=host_f + k.trains * host_b + wait,
    )


def _attention(part: PartTimes, e: Environment, c: Constants) -> tuple[Vector, Vector]:
    """Attention core forward and backward: fused kernel, or batched products and passes over the scores."""
    k = part.kernels
    fused = k.fused_attention_s * e.attention_slowdown
    aligned = np.where(e.head_misaligned, c.misaligned_head, 1.0)
    scores = np.where(e.chained_scores, c.elementwise_in_step, c.scores_in_step) * k.scores_s
    forward = fused + aligned * k.batched_matmul_s + scores
    products = aligned * k.batched_matmul_backward_s
    return forward, c.attention_backward * fused + products + c.score_backward * scores


def _accumulation(part: PartTimes, f: Features, c: Constants) -> Vector:
    """Adding a microbatch's weight gradients to those of the step: memory traffic per parameter."""
    k, e = part.kernels, f.environment
    unfused = c.accumulation_bytes * (1 - 0.5 * f.single)
    per_parameter = np.where(e.accumulation_fused, c.accumulation_bytes_fused, unfused)
    return np.asarray(
        e.passes * (k.dense_parameters + k.expert_parameters) * per_parameter / e.memory_bandwidth_bytes_per_s
    )


def _tensor_transfers(
    part: PartTimes, f: Features, c: Constants, inputs: Vector, weight: Vector
) -> tuple[Vector, Vector]:
    """Exposed tensor-parallel time: chunks of sharded transfers hide under their product, all-reduces do not.

    Chunks are copied from GPU to GPU, so a group that spans scale-up domains hides none. The backward's
    second gather (for the weight gradient) runs under the input gradient. The sum of a block's input gradient
    (an all-reduce, or one of the two sharded transfers of the backward) runs under the weight gradient where
    the engine lets it.
    """
    t, e = part.transfers, f.environment
    exposed, slowdown = 1 - e.tp_overlap_share * f.tp_inside, e.exchange * e.tp_slowdown
    forward = slowdown * (exposed * t.tp_sharded_forward_s + t.tp_whole_forward_s)
    backward = slowdown * (exposed * t.tp_sharded_backward_s + t.tp_whole_backward_s)
    summed = slowdown * (exposed * GRADIENT_SUMS * t.tp_sharded_backward_s + t.tp_whole_backward_s)
    hidden = e.overlaps_gradient_sum * (1 - c.contention) * np.minimum(summed, weight)
    return forward, backward - hidden + np.maximum(0.0, slowdown * t.tp_regather_s - inputs)


def _socket_skew(f: Features, c: Constants) -> Vector:
    """Wait of a layer in one direction for the last launch of its tensor-parallel collectives, as exposed.

    The processes of a group that sits on both CPU sockets of a host launch apart, and neither kernels nor
    launches of the others go on meanwhile; hosts of one socket have no such groups.
    """
    e = f.environment
    exposed = 1 - e.tp_overlap_share * f.tp_inside
    return np.asarray(e.host * exposed * TP_SYNCHRONISATIONS * c.socket_skew_s * f.over_sockets)


def _launched(kernels: Vector, host: Vector, e: Environment, c: Constants, asked: Vector) -> Vector:
    """Time of kernels that a host launches: it runs ahead of them, or waits for each where launches block.

    In the share `asked` of the passes it waits for the kernels before it launches more, so both add up.
    """
    ahead = smooth_max(kernels, host)
    ahead = ahead + asked * (kernels + host - ahead)
    return np.where(e.launch_blocking, kernels + c.blocking_host * host, ahead)


def _pairs_that_wait(part: PartTimes, f: Features) -> Vector:
    """Share of the passes of a layer in which one host thread launches a pair and waits for its dispatch.

    A forward of one microbatch is launched between parts of a backward of another. DeepEP's dispatch holds
    the host until the counts of all ranks are there; its kernel stands behind the backward's exchange, so
    whatever was launched of both passes is done by then and the host never runs ahead. An all-to-all asks
    for the routing alone, HybridEP for nothing; nor where shapes are known.

    Source: megatron-core 0.19.2 models/common/model_chunk_schedule_plan.py; deepseek-ai/DeepEP README: a
    dispatch blocks the host until its counts arrive; Megatron-LM pull request 2719: order of the streams.
    Megatron-Bridge pull request 1760 gave pairs up "due to CPU overhead": from 20.1 to 16.9 s.
    """
    e = f.environment
    waits = e.dispatches_once_per_node * (1 - e.fused_permutation) * (1 - e.static_experts)
    return np.asarray(e.pairs_expert_passes * f.paired * (part.kernels.routed > 0) * waits)


def _routing_wait(part: PartTimes, e: Environment, c: Constants, experts: Vector) -> Vector:
    """Wait of a forward for the routing of its tokens, if experts take as many as come.

        wait = sync + max(0, local experts · launch − expert products)

    The host asks how many tokens each expert gets, so the GPU is idle when it launches them; where it does so
    one expert after the other, products of few rows are over before the next are there.

    Source: NVIDIA/TransformerEngine issue 1499: slices and tensors of every expert are the host time of
    grouped linear layers. Routing that a captured graph replays is launched at once, and the host asks so
    much earlier (Megatron-Core transformer_config.py: cuda_graph_scope, moe_router and moe_preprocess).
    """
    k = part.kernels
    launches = c.expert_launch_s * k.local_experts * e.launches_experts_singly * (1 - e.cuda_graphs)
    late = np.maximum(0.0, launches - experts)
    asked = np.maximum(0.0, c.routing_wait_s - c.expert_host_s * e.graphed_routing)
    return np.asarray(e.host * k.routed * (1 - e.static_experts) * (asked + late))


def _context_transfers(
    part: PartTimes, e: Environment, c: Constants, attention_f: Vector, attention_b: Vector
) -> tuple[Vector, Vector]:
    """Exposed context-parallel time: rings hide under attention of the previous block, head swaps do not."""
    t = part.transfers

    def exposed(transfer: Vector, attention: Vector) -> Vector:
        moved = e.exchange * transfer
        return moved - e.cp_overlap * (1 - c.contention) * np.minimum(moved, attention)

    forward = exposed(t.cp_forward_s, attention_f) + e.exchange * t.cp_swap_forward_s
    return forward, exposed(t.cp_backward_s, attention_b) + e.exchange * t.cp_swap_backward_s


def _expert_transfers(
    part: PartTimes, f: Features, c: Constants, forward: Vector, backward: Vector
) -> tuple[Vector, Vector]:
    """Exposed expert all-to-alls: a share hides under the kernels of another microbatch, where there is one.

    What hides is the share that the stack can hide, under the longer pass, or that of the passes which run in
    pairs for that very purpose (`costmodel.pipeline.pairing`): tokens of a forward travel under the
    kernels of the other microbatch's backward, gradients under those of its forward. Meanwhile the
    exchange holds its part s of the multiprocessors, so that kernels take s/(1 − s) longer.

    Source: DualPipe, DeepSeek-V3 (arXiv 2412.19437) sections 3.2.1 and 3.2.2.
    """
    t, e = part.transfers, f.environment
    share, alone_f, alone_b = (
        e.expert_overlap_share,
        e.exchange * t.ep_forward_s,
        e.exchange * t.ep_backward_s,
    )
    longer = np.maximum(forward, backward)
    hidden_f = np.maximum(share * np.minimum(alone_f, longer), f.paired * np.minimum(alone_f, backward))
    hidden_b = np.maximum(share * np.minimum(alone_b, longer), f.paired * np.minimum(alone_b, forward))
    hides = 1 - _slower(c)
    return alone_f - hides * hidden_f, alone_b - hides * hidden_b


def _repeated_transfers(part: PartTimes, f: Features, c: Constants, kernels: Vector) -> Vector:
    """Exposed messages of the blocks that ``selective`` runs again, hidden as in the forward pass."""
    t, e = part.transfers, f.environment
    exposed, share = 1 - e.tp_overlap_share * f.tp_inside, np.maximum(e.expert_overlap_share, f.paired)
    tensors = e.tp_slowdown * (exposed * t.tp_sharded_repeated_s + t.tp_whole_repeated_s)
    experts = e.exchange * t.ep_repeated_s
    hidden = share * np.minimum(experts, kernels)
    return np.asarray(e.exchange * tensors + experts - (1 - _slower(c)) * hidden)


def _slower(c: Constants) -> float:
    """By what share kernels take longer while an exchange holds its multiprocessors."""
    return c.exchange_processors / (1 - c.exchange_processors)


def _host(part: PartTimes, f: Features, c: Constants) -> tuple[Vector, Vector]:
    """Host time to launch a layer forward and backward."""
    e = f.environment
    launched = e.host_s_per_layer + part.kernels.trains * e.adapters_host_s  # a frozen tower has no adapters
    layer = launched * (1 - np.maximum(e.cuda_graphs, e.graphed_layers))
    launch = layer + c.expert_host_s * (1 - e.graphed_routing) * part.kernels.routed
    collectives = TP_SYNCHRONISATIONS * e.host_s_per_collective * (f.tp > 1)
    return e.host * (launch + collectives), e.host * (c.host_backward * launch + collectives)


def mtp_steps(f: Features, c: Constants) -> tuple[LayerStep, ...]:
    """A module that predicts a further token in a step, where there are any; its head is not in it."""
    return () if f.mtp is None else (layer_step(f.mtp, f, c),)


def head_step(f: Features, c: Constants) -> LayerStep:
    """The head in a step."""
    e = f.environment
    energy = np.where(e.narrow_head, e.product_energy, 1.0)
    odd = np.where(e.logits_misaligned, c.misaligned_logits, 1.0) * e.product_time_ratio
    half = replace(
        e, product_energy=energy, product_time_ratio=odd, wide_over_narrow=0.0, splits_accumulation=0.0
    )
    return layer_step(f.head, replace(f, environment=half), _with_loss_passes(e, c))


def _with_loss_passes(e: Environment, c: Constants) -> Constants:
    """The same constants with the memory passes of the loss in place of those of a layer."""
    counted = e.loss_backward_bytes / e.loss_forward_bytes
    backward: Any = np.where(np.asarray(e.loss_backward_bytes) > 0, counted, UNCOUNTED_LOSS_BACKWARD)
    return replace(c, elementwise_in_step=1.0, elementwise_backward=backward)


def embedding_step(f: Features, c: Constants) -> LayerStep:
    """The embedding in a step."""
    return layer_step(f.embedding, f, c)
