"""What a rank computes and sends in one step, counted exactly while a fake rank runs it.

FLOPs are those of matrix products and of attention over the pairs that its mask leaves (the diagonal and a
window's far edge counted half, as in the cost model); messages are the collectives on the plan's axes and
those of FSDP. Parts are the embedding, each kind of layer, and the head; a layer's backward begins when the
gradient of its output is known.

Legend: ``m n k`` of a matrix product, ``B`` sequences, ``h`` heads, ``q`` queries, ``k`` keys, ``d`` head
size.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from costmodel.layout import PLAIN_SCHEDULE
from costmodel.models.spec import ModelSpec
from costmodel.parallel.axes import LAYER_AXES
from executor.comm.cuts import take
from executor.comm.mesh import REPLICA_AXES, axis_of_messages, axis_of_replicas
from executor.comm.sharding import rule
from executor.model.attention import kernels
from executor.model.attention.masks import mask_of
from executor.model.moe import MoE
from executor.model.transformer import CausalLM
from executor.parallel.parallelize import shards_of, state_shards_of
from executor.parallel.pipeline import Pipeline
from executor.torch_internals.fakes import has_distributed_tensor, tensors_in
from executor.torch_internals.groups import group_name, process_group_of
from executor.torch_internals.operators import FLASH_BACKWARD, FLASH_FORWARD, in_backward
from executor.validation.fake_rank import RankTask, fake_rank

BACKWARD_ATTENTION_GEMMS = 2.5  # flash backward: five products of pairs for the two of the forward pass

_FUNCTIONAL = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_to_all_single": "all_to_all",
}
_FSDP = {
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce",
}
FROZEN = "frozen "  # before the axis of padding of weights that are not trained


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CountKey:
    """What was counted: in which part and phase, and of which kind (on which axis, for messages)."""

    part: str
    phase: str
    kind: str
    axis: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Totals of one step of one rank."""

    flop: Counter[CountKey]
    messages: Counter[CountKey]
    message_bytes: Counter[CountKey]


class _CountingMode(TorchDispatchMode):
    """Counts while active; `part` says where in the model execution is."""

    def __init__(self, axis_of_group: dict[str, str]) -> None:
        super().__init__()
        self.part = "embedding"
        self.counts = StepCounts(flop=Counter(), messages=Counter(), message_bytes=Counter())
        self._axis_of_group = axis_of_group

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operation, then run it."""
        if has_distributed_tensor(types):
            return NotImplemented
        result = function(*args, **(kwargs or {}))
        name = function._schema.name  # noqa: SLF001
        space, _, operator = name.partition("::")
        if space == "_c10d_functional" and operator in _FUNCTIONAL:
            group = f"replicas {args[-1]}" if self.part == "step" else str(args[-1])
            axis = self._axis_of_group.get(group, "")
            self._message(_FUNCTIONAL[operator], axis, max(_bytes(args[0]), _bytes(result)))
        elif space == "c10d" and operator in _FSDP:
            self._reduction(_FSDP[operator], args)
        elif space == "c10d" and operator == "send":
            axis = self._axis_of_group.get(group_name(_group(args)), "")
            self._message("p2p", axis, sum(map(_bytes, args[0])))
        elif space in ("aten", "meshplan"):
            self._count_gemm(function, operator, args, result)
        return result

    def _phase(self) -> str:
        """Forward, or backward; of what follows them, the step."""
        if self.part == "step":
            return "step"
        return "backward" if in_backward() else "forward"

    def _message(self, kind: str, axis: str, size_bytes: int) -> None:
        """Count one collective."""
        key = CountKey(part=self.part, phase=self._phase(), kind=kind, axis=axis)
        self.counts.messages[key] += 1
        self.counts.message_bytes[key] += size_bytes

    def _reduction(self, kind: str, args: Any) -> None:
        """Count one collective of FSDP or of the finished gradients; they belong to the step."""
        group = _group(args)
        if group.size() == 1:
            return
        axis = self._axis_of_group.get(f"replicas {group_name(group)}", "")
        size = max(sum(map(_bytes, tensors_in(argument))) for argument in args[:2])
        key = CountKey(part="step", phase="step", kind=kind, axis=axis)
        self.counts.messages[key] += 1
        self.counts.message_bytes[key] += size

    def _count_gemm(self, function: Any, operator: str, args: Any, result: Any) -> None:
        """Count the FLOPs of matrix products and attention."""
        if function in FLASH_FORWARD:
            self._flop("attention", _attention_flop(args[0], args[1], causal=_argument(args, 4)))
        elif function in FLASH_BACKWARD:
            place = 7 if function is FLASH_BACKWARD[0] else 11
            forward = _attention_flop(args[1], args[2], causal=_argument(args, place))
            self._flop("attention", int(BACKWARD_ATTENTION_GEMMS * forward))
        elif function is kernels.FORWARD:
            self._flop("attention", _masked_flop(args[0], args[3]))
        elif function is kernels.BACKWARD:
            self._flop("attention", int(BACKWARD_ATTENTION_GEMMS * _masked_flop(args[1], args[6])))
        elif operator in ("mm", "bmm", "addmm", "addmm_", "_scaled_mm_v2", "multiply_groups"):
            left = args[1] if operator.startswith("addmm") else args[0]
            self._flop("gemm", 2 * result.numel() * left.shape[-1])
        elif operator in ("multiply_blocks", "multiply_block_groups"):  # rows of blocks
            self._flop("gemm", 2 * result.numel() * args[0].shape[1:].numel())
        elif operator == "_grouped_mm":  # rows by experts' matrices, or by rows into gradients of matrices
            self._flop("gemm", 2 * _grouped_products(args[0], args[1]))
        elif operator in ("sum_groups", "sum_block_groups"):  # rows are told, those that pad are zeros
            self._flop("gemm", 2 * args[0].shape[0] * args[2].shape[0] * args[6])

    def _flop(self, kind: str, flop: int) -> None:
        """Add FLOPs to the part being executed."""
        self.counts.flop[CountKey(part=self.part, phase=self._phase(), kind=kind)] += flop


def _group(args: Any) -> Any:
    """Process group among the arguments of an operator."""
    return next(item for item in map(process_group_of, args) if item is not None)


def _argument(args: Any, place: int) -> bool:
    """Flag among positional arguments; operators drop trailing ones that have their default, False."""
    return bool(args[place]) if len(args) > place else False


def _bytes(value: Any) -> int:
    """Size of a tensor."""
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def _grouped_products(left: torch.Tensor, right: torch.Tensor) -> int:
    """Multiplications of `grouped_mm`: each row meets one matrix, however rows are dealt to groups."""
    return left.shape[0] * left.shape[1] * right.shape[-1]


def _attention_flop(q: torch.Tensor, k: torch.Tensor, *, causal: bool) -> int:
    """4·B·h·q·k·d FLOP of scores and weighted values, half of it when causal."""
    full = 4 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * q.shape[3]
    return full // 2 if causal else full


def _masked_flop(q: torch.Tensor, numbers: Sequence[int]) -> int:
    """4·h·d FLOP a pair that is seen: not of whole blocks, which a kernel computes at a mask's edges."""
    pairs = mask_of(numbers).pairs(q.shape[0])
    return round(4 * q.shape[1] * q.shape[3] * pairs)


def axes_by_group(pipeline: Pipeline) -> dict[str, str]:
    """Axis of each process group by the group's name; groups of replicas have a prefix.

    Axes of one rank have no traffic; those of the same ranks share a group, and count as one.
    """
    meshes, axes = pipeline.meshes, {}
    sizes = {axis: getattr(pipeline.layout, axis) for axis in LAYER_AXES}
    for axis in (a for a in LAYER_AXES if sizes[a] > 1):
        mesh = meshes.mesh_of(axis)
        if mesh is not None:
            axes[group_name(mesh.get_group(axis))] = axis_of_messages(pipeline.layout, axis)
    for axis in REPLICA_AXES:
        mesh = meshes.mesh_of(axis)
        if mesh is not None and mesh[axis].size() > 1:
            name = f"replicas {group_name(mesh.get_group(axis))}"
            axes[name] = axis_of_replicas(pipeline.layout, axis)
    return axes


def part_of_layer(spec: ModelSpec, layer: Any) -> str:
    """Name of the kind of a layer."""
    return ("moe layer" if isinstance(layer.mlp, MoE) else "dense layer") if spec.is_moe else "layer"


@contextmanager
def _following(model: CausalLM, mode: _CountingMode) -> Iterator[None]:
    """Keep `mode.part` where the model is, forward by module and backward by the gradient that arrives."""

    def enter(part: str) -> None:
        mode.part = part

    def before_layer(part: str, first: bool, _module: Any, args: Any) -> None:
        enter(part)
        if first and args[0].requires_grad:
            args[0].register_hook(lambda _: enter("embedding"))

    def after_layer(part: str, _module: Any, _args: Any, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: enter(part))

    handles = [model.register_forward_pre_hook(lambda *_: enter("embedding"))]
    for position, layer in enumerate(model.model.layers.values()):
        part = part_of_layer(model.spec, layer)
        handles.append(layer.register_forward_pre_hook(functools.partial(before_layer, part, position == 0)))
        handles.append(layer.register_forward_hook(functools.partial(after_layer, part)))
    if model.model.norm is not None:
        handles.append(model.model.norm.register_forward_pre_hook(lambda *_: enter("head")))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of a rank by part: those it computes with, those it stores, and padding of FSDP's shards.

    Of the first `frozen` are not trained; their padding is counted by itself.
    """

    dense: Counter[str]
    expert: Counter[str]
    frozen: Counter[str]
    stored: int
    padding: Counter[str]


def count_parameters(pipeline: Pipeline) -> Parameters:
    """Count parameters from their whole shapes and the cuts of this rank."""
    dense: Counter[str] = Counter()
    expert: Counter[str] = Counter()
    padding: Counter[str] = Counter()
    frozen: Counter[str] = Counter()
    stored = 0
    for stage in pipeline.stages:
        adapts = stage.module.adapter is not None
        for name, parameter in stage.module.named_parameters():
            whole = torch.empty(parameter.shape, device="meta")
            mine, stored_shards = (
                take(whole, shards_of(name, pipeline.meshes)),
                state_shards_of(name, pipeline.meshes),
            )
            is_expert, part = rule(name).is_expert, part_of_parameter(stage.module, name)
            (expert if is_expert else dense)[part] += mine.numel()
            frozen[part] += mine.numel() * (adapts and not parameter.requires_grad)
            stored += take(whole, stored_shards).numel()
            dimension, degree, _ = stored_shards[-1]
            missing = -mine.shape[dimension] % degree
            state = "" if parameter.requires_grad else FROZEN
            padding[f"{state}{'expert_' * is_expert}shard"] += missing * (
                mine.numel() // mine.shape[dimension]
            )
    return Parameters(dense=dense, expert=expert, frozen=+frozen, stored=stored, padding=padding)


def part_of_parameter(model: CausalLM, name: str) -> str:
    """Which part of the model a parameter belongs to."""
    if name.startswith("model.layers."):
        return part_of_layer(model.spec, model.model.layers[name.split(".")[2]])
    return "embedding" if name.startswith("model.embed") else "head"


def count_step(task: RankTask) -> tuple[StepCounts, Parameters]:
    """Run one step of a fake rank and count it; the schedule is that of plain 1F1B, nothing is recomputed."""
    plain = replace(task.layout, schedule=PLAIN_SCHEDULE, recompute="none")
    with fake_rank(replace(task, layout=plain)) as rank:
        mode = _CountingMode(axes_by_group(rank.pipeline))
        if rank.pipeline.replica is not None:
            rank.pipeline.replica.compressor.begins = functools.partial(setattr, mode, "part", "step")
        with mode, _following(rank.pipeline.stages[0].module, mode):
            rank.run_microbatches()
        return mode.counts, count_parameters(rank.pipeline)
