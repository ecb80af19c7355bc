"""Turn a model, or a stage of it, into this rank's part: tensor and expert shards, context, FSDP.

Every gradient reduction is a plain sum, because the loss of a rank is already its share of the global mean:
no factor depends on the layout, which is what makes layouts agree with each other.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from costmodel.layout import ParallelLayout
from costmodel.parallel.divisions import HEADS
from executor.comm import sharding
from executor.comm.cuts import Cuts, take
from executor.comm.mesh import Meshes
from executor.comm.tensor_parallel import TensorAxis
from executor.model.attention import kernels
from executor.model.attention.attend import ContextAxis, sequence_positions
from executor.model.low_rank import freeze_others
from executor.model.moe import ExpertAxis, Experts, MoE
from executor.model.products.operators import OPERATORS
from executor.model.transformer import Attention, CausalLM, DecoderLayer, LatentAttention
from executor.torch_internals.recomputation import selective_checkpoint_contexts
from topology.base.errors import InputError

ComputeDtype = Literal["fp32", "bf16"]
COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def parallelize(
    model: CausalLM,
    layout: ParallelLayout,
    meshes: Meshes,
    *,
    sequence_length: int,
    recompute_layers: int = 0,
    precision: ComputeDtype = "bf16",
    overlaps: bool = False,
    alone: bool = False,
) -> CausalLM:
    """Give this rank its part of `model` (or of a pipeline stage), in place.

    Args:
        model: Built by `build_model`, on any device (``meta`` keeps memory free until materialised).
        layout: The degrees and kinds of parallelism.
        meshes: From `build_meshes` of the same layout.
        sequence_length: Tokens of a whole sequence.
        recompute_layers: Layers of this stage to recompute, first ones first, by `layout.recompute`.
        precision: What the forward and backward passes compute in; parameters stay fp32.
        overlaps: Whether tensor-parallel messages run under their products, with sequence parallelism.
        alone: Whether gradients of replicas are left as they are: who sums them does so itself.
    """
    _check(model, layout)
    tensor = TensorAxis(
        group=meshes.group("tp"),
        size=layout.tp,
        rank=meshes.coordinate("tp"),
        sequence_parallel=layout.sequence_parallel and layout.tp > 1,
        overlaps=overlaps and layout.sequence_parallel and layout.tp > 1,
    )
    _split_parameters(model, meshes)
    if model.adapter is not None:
        freeze_others(model, dtype=COMPUTE_DTYPES[precision])
    _set_axes(model, tensor, _context_axis(layout, meshes), _expert_axis(meshes))
    cp_rank = meshes.coordinate("cp")
    with torch.device("cpu"):
        positions = sequence_positions(sequence_length, layout.cp, cp_rank, layout.cp_kind)
    model.positions = positions
    _set_recompute(model, layout, recompute_layers)
    _shard_state(model, layout, meshes, precision, alone=alone)
    return model


def _check(model: CausalLM, layout: ParallelLayout) -> None:
    """Refuse what these modules cannot compute correctly (the planner's rules forbid the same)."""
    spec = model.spec
    if spec.is_moe and layout.tp > 1 and not layout.sequence_parallel:
        raise InputError(
            what="experts with tensor parallelism need sequence parallelism",
            cause=f"tp = {layout.tp}, sequence_parallel = false, {spec.num_experts} experts",
            fix="set layout.sequence_parallel=true",
        )
    heads = spec.attention.whole_heads
    degree = layout.tp * (layout.cp if layout.cp_kind == "ulysses" else 1)
    if HEADS.rest(heads, degree):
        raise InputError(
            what="heads cannot be split this way",
            cause=f"{heads} key/value heads over {degree} ranks",
            fix="lower layout.tp (or layout.cp with ulysses) to a divisor of the heads",
        )


def _context_axis(layout: ParallelLayout, meshes: Meshes) -> ContextAxis | None:
    """Place of this rank along cp, None when the sequence is whole."""
    if layout.cp == 1:
        return None
    return ContextAxis(
        group=meshes.group("cp"), size=layout.cp, rank=meshes.coordinate("cp"), kind=layout.cp_kind
    )


def _expert_axis(meshes: Meshes) -> ExpertAxis | None:
    """Place of this rank among those that share experts, None for a model without them."""
    if meshes.expert is None:
        return None
    return ExpertAxis(
        group=meshes.expert.get_group("ep"),
        size=meshes.layout.ep,
        rank=meshes.coordinate("ep"),
        tensor_group=meshes.expert.get_group("expert_tp"),
        tensor_size=meshes.layout.expert_tp,
    )


def _set_axes(
    model: CausalLM, tensor: TensorAxis, context: ContextAxis | None, expert: ExpertAxis | None
) -> None:
    """Tell every module where it stands."""
    for module in model.modules():
        if isinstance(module, (Attention, LatentAttention)):
            module.context = context
        if isinstance(module, Experts):
            module.axis = expert
        elif hasattr(module, "axis"):
            module.axis = tensor


def shards_of(name: str, meshes: Meshes) -> Cuts:
    """Cuts that give this rank its compute shard: (dimension, parts, index), applied in turn."""
    rule, layout = sharding.rule(name), meshes.layout
    shards = []
    if rule.expert_dim is not None and meshes.expert is not None and layout.ep > 1:
        shards.append((rule.expert_dim, layout.ep, meshes.coordinate("ep")))
    degree, axis = (layout.expert_tp, "expert_tp") if rule.is_expert else (layout.tp, "tp")
    if rule.tensor_dim is not None and degree > 1:
        shards.append((rule.tensor_dim, degree, meshes.coordinate(axis)))
    return tuple(shards)


def _split_parameters(model: CausalLM, meshes: Meshes) -> None:
    """Replace every parameter that an axis splits by a DTensor of this rank's part."""
    replaced: dict[int, nn.Parameter] = {}
    for module_name, module in model.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            full_name = f"{module_name}.{name}"
            shards = shards_of(full_name, meshes)
            if not shards:
                continue
            if id(parameter) not in replaced:  # tied weights stay one parameter
                replaced[id(parameter)] = nn.Parameter(_distribute(parameter, full_name, shards, meshes))
            module.register_parameter(name, replaced[id(parameter)])


def _distribute(parameter: torch.Tensor, name: str, shards: Cuts, meshes: Meshes) -> DTensor:
    """Build the DTensor of a parameter from this rank's part, without communication."""
    mesh, placements = _placements(name, meshes)
    return DTensor.from_local(
        take(parameter.detach(), shards).contiguous(),
        mesh,
        placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _placements(name: str, meshes: Meshes) -> tuple[DeviceMesh, list[Placement]]:
    """Mesh and placements of a split parameter before FSDP."""
    rule, layout = sharding.rule(name), meshes.layout
    if not rule.is_expert or meshes.expert is None:
        return meshes.dense["tensor"], [Shard(rule.tensor_dim)]
    tensor: Placement = Replicate() if rule.tensor_dim is None else Shard(rule.tensor_dim)
    if layout.expert_tp == 1:
        return meshes.expert["ep"], [Shard(rule.expert_dim)]
    if layout.ep == 1:
        return meshes.expert["expert_tp"], [tensor]
    return meshes.expert["ep", "expert_tp"], [Shard(rule.expert_dim), tensor]


def _set_recompute(model: CausalLM, layout: ParallelLayout, count: int) -> None:
    """Mark the first `count` layers of the stage to be recomputed by the layout's policy."""
    layers: list[DecoderLayer] = list(model.model.layers.values())
    for layer in layers[:count]:
        if layout.recompute == "selective":
            layer.self_attn.recompute_core_attention = True
        elif layout.recompute == "selective-op":
            layer.recompute = selective_checkpoint_contexts((*OPERATORS, kernels.FORWARD))
        elif layout.recompute == "full":
            layer.recompute = True


def _shard_state(
    model: CausalLM, layout: ParallelLayout, meshes: Meshes, precision: ComputeDtype, *, alone: bool
) -> None:
    """Wrap layers, their experts and the rest in FSDP units that follow the ZeRO stage.

    Where replicas stand `alone` FSDP knows of no other rank, and reduces nothing.
    """
    compute = COMPUTE_DTYPES[precision]
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False)
    options: dict[str, Any] = {"mp_policy": policy, "reshard_after_forward": layout.zero_stage >= 3}
    untrained = {p for name, p in model.named_parameters() if not sharding.rule(name).is_state}
    dense_mesh = meshes.dense["shard"] if alone else meshes.shard_mesh
    shard = functools.partial(fully_shard, mesh=dense_mesh, ignored_params=untrained, **options)
    for layer in model.model.layers.values():
        if isinstance(layer.mlp, MoE):
            fully_shard(
                layer.mlp.experts,
                mesh=meshes.expert_shard_mesh,
                shard_placement_fn=lambda _: Shard(EXPERT_SHARD_DIM),
                **options,
            )
        shard(layer)
    for end in _embedding_and_head(model):
        shard(end)
    shard(model)
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        mesh = meshes.expert_shard_mesh if isinstance(module, Experts) else dense_mesh
        if mesh.size() > 1:  # alone there is nothing to divide, and dividing by one would be a copy
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    if layout.pp > 1 and layout.zero_stage >= 3:
        _gather_ahead(model)


def _gather_ahead(model: CausalLM) -> None:
    """Have the backward of each unit gather the weights of the one after it, before its own products.

    Left alone FSDP goes by the order of forwards, of which a pipeline has several in flight
    (`executor.torch_internals.sharded.forget_forwards`). Frozen units are left out: one may have no backward.
    """
    embedding, head = model.model.embed_tokens, model.lm_head
    units: list[nn.Module] = [] if embedding is None else [embedding]
    for layer in model.model.layers.values():
        units += [layer.mlp.experts, layer] if isinstance(layer.mlp, MoE) else [layer]
    units += [] if head is None else [head]
    for then, unit in itertools.pairwise(units):
        if any(parameter.requires_grad for parameter in then.parameters()):
            unit.set_modules_to_backward_prefetch([then])


def _embedding_and_head(model: CausalLM) -> list[list[nn.Module]]:
    """Embedding and head as units of their own; one tied matrix on one stage stays with the model."""
    if model.model.embed_tokens is not None and model.lm_head is not None and model.spec.tie_word_embeddings:
        return []
    embedding = [model.model.embed_tokens, model.model.embed_positions]
    head = [model.model.norm, model.lm_head]
    units = [[module for module in end if module is not None] for end in (embedding, head)]
    return [unit for unit in units if unit]


EXPERT_SHARD_DIM = 1  # whole experts may be fewer than the ranks that share them


def state_shards_of(name: str, meshes: Meshes) -> Cuts:
    """Cuts that give this rank its stored shard of a parameter: those of compute, then FSDP's."""
    if not sharding.rule(name).is_state:
        return ((0, 1, 0),)
    axis, dimension = "shard", 0
    if sharding.rule(name).is_expert and meshes.expert is not None:
        axis, dimension = "expert_shard", EXPERT_SHARD_DIM
    return (*shards_of(name, meshes), (dimension, meshes.size(axis), meshes.coordinate(axis)))
