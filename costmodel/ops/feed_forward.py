"""The feed-forward block of a layer as operations: dense, or routed and shared experts.

Legend: ``T`` tokens of a rank, ``H`` hidden size, ``F`` feed-forward size, ``E`` experts, ``K`` experts
per token. Routing is taken as balanced: every expert receives the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.models.feed_forward import FeedForwardName
from costmodel.models.routing import Places, places_reached
from costmodel.models.spec import LayerKind, ModelSpec
from costmodel.ops.expert_load import busiest
from costmodel.ops.mixers.attention import linear_dtype
from costmodel.ops.op import (
    FLOAT_BYTES,
    HALF_BYTES,
    Collective,
    Op,
    ShardShape,
    communicate,
    drop_input,
    elementwise,
    enter_tensor_parallel,
    gemm,
    grouped_gemm,
    leave_tensor_parallel,
    reduced_elements,
    repeat,
    repeat_block,
)
from costmodel.parallel.axes import AxisName
from costmodel.stack import SoftwareStack
from topology.base.arrays import Quantity

EIGHT_BIT_SHARE = (1 + 4 / 128) / 2  # bytes of a number in eight bits, its share of a scale, over two
MOVES_OF_SEPARATE_COPIES = 2  # reads and writes of all copies, see `_moves_per_copy`


def feed_forward_ops(work: Workload, kind: LayerKind, shard: ShardShape) -> tuple[Op, ...]:
    """Give the feed-forward block of a layer from the normed input to the summed output."""
    return () if kind.mlp == "none" else FEED_FORWARDS[work.model.feed_forward(kind.mlp).name](work, shard)


def feed_forward_inputs(model: ModelSpec, kind: LayerKind, shard: ShardShape) -> Quantity:
    """Numbers that go into the matrices of the block on one rank, of the first and of the last: T·(H + F).

    Every copy of a token goes into an expert of its own, as Transformer Engine's grouped linear layers cast
    them: behind the exchange and the permutation. What a rank's shared experts take is counted beside them.

    Source: NVIDIA/TransformerEngine transformer_engine/pytorch/module/grouped_linear.py: the whole input is
    split by expert and quantised, forward, and the gradient of the output backward.
    """
    if kind.mlp != "moe":
        inner = model.feed_forward(kind.mlp).inner_size
        return shard.sharded_tokens * model.hidden_size + shard.tokens * inner / shard.tp
    routed = routed_tokens(model, shard) * (
        _routed_width(model) + model.moe_intermediate_size / shard.expert_tp
    )
    if not model.shared_expert_size:
        return routed
    shared = shard.sharded_tokens * model.hidden_size + shard.tokens * model.shared_expert_size / shard.tp
    return routed + shared


def dense_ops(work: Workload, shard: ShardShape) -> tuple[Op, ...]:
    """Give a dense feed-forward, cut over tp."""
    model = work.model
    return (
        *enter_tensor_parallel("mlp", shard, model.hidden_size),
        *_matrices(work, model.intermediate_size, shard, name="mlp"),
        *leave_tensor_parallel("mlp", shard, model.hidden_size),
    )


def routed_tokens(model: ModelSpec, shard: ShardShape) -> Quantity:
    """Token copies that the local experts of one rank process per microbatch, balanced: T/tp·expert_tp·K."""
    return shard.tokens / shard.tp * shard.expert_tp * model.num_experts_per_token


def expert_ops(work: Workload, shard: ShardShape) -> tuple[Op, ...]:
    """Give routed experts between dispatch and combine, and the shared experts beside them.

    The experts of a layer live in the dp·cp·tp block: each rank routes T/tp of the tokens, sends K copies
    over ``ep``, and gathers over ``expert_tp``, which cuts the matrices of an expert. Routing weights are
    applied at the activation, so that combining keeps nothing; or at the outputs, which are kept, and whose
    gradient exists before and after the weights at once. Of a measured load the busiest rank counts. Experts
    of a latent width are sent that width: each rank projects its T/tp tokens to it, and what comes back.
    Where an engine gathers all tokens of the block, no copies are sent.
    """
    model, job, stack = work.model, work.job, work.stack
    H, t = model.hidden_size, shard.sharded_tokens
    most = busiest(job.expert_load, shard.ep)
    sent = most * HALF_BYTES * shard.tokens / shard.tp * model.num_experts_per_token * _routed_width(model)
    there = EIGHT_BIT_SHARE if job.is_low_precision and stack.timing.dispatches_in_eight_bits else 1.0
    kept = sent * (shard.ep > 1) * stack.memory.keeps_partial_sums
    moved = sent * _moves_per_copy(model, stack, shard)
    weighed = sent * (2 * stack.memory.weighs_experts_wide or stack.memory.keeps_expert_outputs)
    whole = _block_bytes(model, shard) * stack.timing.gathers_tokens
    to_experts, back = (
        (
            _gathered("dispatch", "all_gather", model, shard),
            _gathered("combine", "reduce_scatter", model, shard),
        )
        if stack.timing.gathers_tokens
        else (
            _expert_traffic("dispatch", "all_gather", sent, most, shard, model, narrow_forward=there),
            _expert_traffic("combine", "reduce_scatter", sent, most, shard, model, narrow_backward=there),
        )
    )
    router = gemm(
        "router",
        m=t,
        n=model.num_experts,
        k=H,
        bias=model.num_experts * model.router_bias,
        saved_elements=t * H,
    )
    gate = elementwise(
        "gate",
        traffic_bytes=3 * FLOAT_BYTES * t * model.num_experts,
        saved_bytes=FLOAT_BYTES * t * model.num_experts,
    )
    shared = _shared(work, shard)
    if "layernorm" in stack.timing.recomputed_modules:
        router = drop_input(router)
    return (
        replace(router, input_is_shared=True),
        gate,
        *_latent(model, job, shard, "latent_down"),
        elementwise("permute", traffic_bytes=moved, saved_bytes_op=kept),
        *to_experts,
        *_weight_traffic(model, stack, shard),
        *_experts(work, shard),
        *back,
        replace(
            elementwise(
                "unpermute",
                traffic_bytes=moved + 2 / 3 * whole,
                saved_bytes=weighed,
                saved_bytes_op=kept,
            ),
            working_bytes=2 * weighed + whole,
        ),
        *_latent(model, job, shard, "latent_up"),
        *shared,
    )


def _routed_width(model: ModelSpec) -> int:
    """Numbers of a token that go to its routed experts."""
    return model.moe_latent_size or model.hidden_size


def _latent(
    model: ModelSpec, job: TrainingJob, shard: ShardShape, name: Literal["latent_down", "latent_up"]
) -> tuple[Op, ...]:
    """The projection to the experts' latent width, whose input the router keeps, or the one back.

    Both are whole on every tensor-parallel rank, for its own tokens (Nemotron 3, arXiv 2512.20856).
    """
    if not (L := model.moe_latent_size):
        return ()
    t, H, dtype = shard.sharded_tokens, model.hidden_size, linear_dtype(job)
    if name == "latent_down":
        return (gemm(name, m=t, n=L, k=H, dtype=dtype, bias=L * model.mlp_bias, saved_elements=0),)
    return (gemm(name, m=t, n=H, k=L, dtype=dtype, bias=H * model.mlp_bias, saved_elements=t * L),)


def _moves_per_copy(model: ModelSpec, stack: SoftwareStack, shard: ShardShape) -> Quantity:
    """Bytes moved to order tokens by expert, and likewise to put them back, over those of all K copies.

    Where every expert is sent its own copy, tokens are copied by rank before the exchange (1 read, K writes)
    and ordered by expert after it (K, K): 3 + 1/K, taken as 3 for any K, and with ep = 1 too. Where a token
    is sent once to a rank, a single pass after the exchange reads each token once for every rank of ep that
    it reaches, d, and writes K copies. A move costs the same backward, while passes are charged double there,
    so 2/3 of it is charged forward:

        moves = 2/3 · 3,   or   2/3 · (1 + d/K)

    Of tokens that are gathered a rank reads and writes the copies of its experts, and adds each output to
    the sum of all tokens, which is read and written: 2 and 3, the mean of both for either pass.
    """
    if stack.timing.gathers_tokens:
        return 2 / 3 * 2.5
    if not stack.timing.dispatches_once_per_node:
        return MOVES_OF_SEPARATE_COPIES
    return 2 / 3 * (1 + copies_sent(model, shard.ep))


def copies_sent(model: ModelSpec, places: Places) -> NDArray[np.float64]:
    """Share of a token's copies that are sent where each of so many places is sent a token once at most."""
    K = model.num_experts_per_token
    return places_reached(model.routing, K, places) / K


def _expert_traffic(
    name: str,
    op: str,
    sent: Quantity,
    most: Quantity,
    shard: ShardShape,
    model: ModelSpec,
    *,
    narrow_forward: float = 1.0,
    narrow_backward: float = 1.0,
) -> tuple[Op, ...]:
    """All-to-all over ep and gather or scatter over expert_tp, forward, and their mirror images backward.

    What goes to the experts may be narrower than what comes back: tokens forward, gradients of outputs
    backward.
    """
    crossing = sent * (shard.ep > 1)
    width = _routed_width(model)
    gathered = most * HALF_BYTES * routed_tokens(model, shard) * width * (shard.expert_tp > 1)
    gather = op == "all_gather"
    return (
        communicate(name, "all_to_all", "ep", narrow_forward * crossing),
        communicate(f"{name}_gradient", "all_to_all", "ep", narrow_backward * crossing, "backward"),
        communicate(
            f"{name}_gather", "all_gather", "expert_tp", gathered, "forward" if gather else "backward"
        ),
        communicate(
            f"{name}_scatter", "reduce_scatter", "expert_tp", gathered, "backward" if gather else "forward"
        ),
    )


def _block_bytes(model: ModelSpec, shard: ShardShape) -> Quantity:
    """All tokens of the ep·expert_tp ranks that share a layer's experts, in sixteen bits."""
    return HALF_BYTES * shard.tokens / shard.tp * shard.ep * shard.expert_tp * _routed_width(model)


def _gathered(
    name: str, op: Literal["all_gather", "reduce_scatter"], model: ModelSpec, shard: ShardShape
) -> tuple[Op, ...]:
    """All tokens of a block to each of its ranks, or their sums back to where they came from, and backward.

    Megatron-Core does both over one group of ep·expert_tp ranks (`MoEAllGatherTokenDispatcher`); here over
    expert_tp and over ep, whose bytes are those of one ring. What is routed does not change them.
    """
    whole = _block_bytes(model, shard)
    mirrored: Collective = "reduce_scatter" if op == "all_gather" else "all_gather"
    sizes: tuple[tuple[AxisName, Quantity], ...] = (
        ("ep", whole / shard.expert_tp * (shard.ep > 1)),
        ("expert_tp", whole * (shard.expert_tp > 1)),
    )
    forward = tuple(communicate(f"{name}_{axis}", op, axis, size) for axis, size in sizes)
    return (
        *forward,
        *(communicate(f"{name}_{axis}_gradient", mirrored, axis, size, "backward") for axis, size in sizes),
    )


def _weight_traffic(model: ModelSpec, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """Routing weights on their way to the experts as their rows go, and their gradients on the way back."""
    if not stack.timing.dispatches_weights:
        return ()
    sent = HALF_BYTES * shard.tokens / shard.tp * model.num_experts_per_token * (shard.ep > 1)
    gathered = HALF_BYTES * routed_tokens(model, shard) * (shard.expert_tp > 1)
    return (
        communicate("dispatch_weights", "all_to_all", "ep", sent),
        communicate("dispatch_weights_gradient", "all_to_all", "ep", sent, "backward"),
        communicate("dispatch_weights_gather", "all_gather", "expert_tp", gathered),
        communicate("dispatch_weights_scatter", "reduce_scatter", "expert_tp", gathered, "backward"),
    )


def _experts(work: Workload, shard: ShardShape) -> tuple[Op, ...]:
    """Grouped GEMMs of the local experts around their activation."""
    model = work.model
    H, F, gates = _routed_width(model), model.moe_intermediate_size / shard.expert_tp, 1 + model.gated_mlp
    experts = model.num_experts / shard.ep
    m = busiest(work.job.expert_load, shard.ep) * routed_tokens(model, shard) / experts
    dtype, bias = linear_dtype(work.job), model.mlp_bias
    activation = _activation(work, "expert_activation", m * experts, F)
    down = grouped_gemm("expert_down", experts=experts, m=m, n=H, k=F, dtype=dtype, bias=H * bias)
    if "moe_act" in work.stack.timing.recomputed_modules:
        activation, down = repeat(activation), drop_input(down)
    up = grouped_gemm("expert_up", experts=experts, m=m, n=gates * F, k=H, dtype=dtype, bias=gates * F * bias)
    return (
        replace(up, joins=gates),
        activation,
        down,
    )


def _shared(work: Workload, shard: ShardShape) -> tuple[Op, ...]:
    """Shared experts: a dense feed-forward on every token, cut over tp; the router keeps its input."""
    model = work.model
    if not model.shared_expert_size:
        return ()
    T, H = shard.tokens, model.hidden_size
    gate = elementwise(  # one sigmoid of a product with the hidden state, times the output
        "shared_gate", traffic_bytes=3 * HALF_BYTES * T * H, saved_bytes=HALF_BYTES * T * H, parameters=H
    )
    ops = (
        *enter_tensor_parallel("shared", shard, model.hidden_size),
        *_matrices(work, model.shared_expert_size, shard, name="shared", keeps_input=False),
        *((gate,) * model.shared_expert_gate),
        *leave_tensor_parallel("shared", shard, model.hidden_size),
    )
    return repeat_block(ops) if "shared_experts" in work.stack.timing.recomputed_modules else ops


def _matrices(
    work: Workload, width: int, shard: ShardShape, *, name: str, keeps_input: bool = True
) -> tuple[Op, ...]:
    """Up-projection (and gate), activation, down-projection of one feed-forward on every token."""
    model = work.model
    T, H, F, gates = shard.tokens, model.hidden_size, width / shard.tp, 1 + model.gated_mlp
    dtype, bias = linear_dtype(work.job), model.mlp_bias
    up = gemm(
        f"{name}_up",
        m=T,
        n=gates * F,
        k=H,
        dtype=dtype,
        bias=gates * F * bias,
        saved_elements=shard.sharded_tokens * H * keeps_input,
    )
    activation = _activation(work, f"{name}_activation", T, F)
    down = gemm(
        f"{name}_down",
        m=T,
        n=H,
        k=F,
        dtype=dtype,
        bias=H * bias,
        saved_elements=T * F,
        output_elements=reduced_elements(shard, H, keeps_partial_sums=work.stack.memory.keeps_partial_sums),
    )
    modules = work.stack.timing.recomputed_modules
    if "mlp_act" in modules:
        activation, down = repeat(activation), drop_input(down)
    if "norm_outputs" in modules:
        up = drop_input(up)
    return replace(up, joins=gates), activation, down


def _activation(work: Workload, name: str, rows: Quantity, width: Quantity) -> Op:
    """Activation between the matrices: keeps its input; unfused and gated, mostly also the activated gate.

    Traffic per output element in half precision: gated 3 (2 in, 1 out), plain 2; unfused adds a bias or
    product pass of 2. Where autograd multiplies a gate with its rows, the gradients of the product and of
    both factors exist at once, beside that of the layer's output.
    """
    stack, elements, H = work.stack, rows * width, work.model.hidden_size
    gates = 1 + work.model.gated_mlp
    extra = 0 if stack.timing.fused_elementwise else 1
    activated = extra * stack.memory.keeps_activated_gate * work.model.gated_mlp
    kept_bytes = 1 if stack.memory.keeps_narrow_gates and work.job.is_low_precision else HALF_BYTES
    op = elementwise(
        name,
        traffic_bytes=HALF_BYTES * elements * (gates + 1 + 2 * extra),
        saved_bytes=kept_bytes * elements * (gates + activated),
        count=1 + extra,
    )
    return replace(op, gradient_bytes=HALF_BYTES * (elements * (1 + gates) + rows * H)) if activated else op


FEED_FORWARDS: Mapping[FeedForwardName, Callable[..., tuple[Op, ...]]] = {
    "dense": dense_ops,
    "moe": expert_ops,
}
"""What gives the operations of each kind of feed-forward."""
