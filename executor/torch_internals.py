"""The private corners of torch that the executor relies on, each behind one function and guarded.

Nothing else in the executor touches a name of torch that begins with an underscore.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

functional_collectives = torch.ops._c10d_functional  # noqa: SLF001
"""Operators that every functional collective lowers to: traced by fake tensors, run by gloo and NCCL."""

COMPILER = "torch._dynamo"  # imported on first use

_flash_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
_grouped = torch.ops.aten._grouped_mm.default  # noqa: SLF001
_scaled = torch.ops.aten._scaled_mm_v2.default  # noqa: SLF001
_flash_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001
_flash = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_backward  # noqa: SLF001
_efficient = torch.ops.aten._scaled_dot_product_efficient_attention  # noqa: SLF001


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:
    """Result, log-sum-exp, and what the backward wants back, of torch's flash kernel."""
    if q.device.type == "cpu":
        out, lse = _flash_cpu(q, k, v, 0.0, causal, scale=scale)
        return out, lse, ()
    result = _flash(q, k, v, 0.0, causal, scale=scale)
    return result[0], result[1], tuple(result[2:8])


def flash_attention_backward(
    gradient: torch.Tensor,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    result: tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]],
    scale: float,
    *,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v from the result of `flash_attention`, or of rows it is a part of."""
    out, lse, state = result
    if gradient.device.type == "cpu":
        grads = _flash_cpu_backward(gradient, *inputs, out, lse, 0.0, causal, scale=scale)
        return grads[0], grads[1], grads[2]
    cum_q, cum_k, max_q, max_k, seed, offset = state
    grads = _flash_backward(
        gradient, *inputs, out, lse, cum_q, cum_k, max_q, max_k, 0.0, causal, seed, offset, scale=scale
    )
    return grads[0], grads[1], grads[2]


def gather_multiply(
    x: torch.Tensor, matrices: list[torch.Tensor], dim: int, group: Any
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Gather x along `dim` and multiply it by matrices, one under the other on GPUs."""
    symmetric = importlib.import_module("torch.distributed._symmetric_memory")
    operator = torch.ops.symm_mem.fused_all_gather_matmul
    run = operator if x.is_cuda else symmetric._fused_all_gather_matmul_fallback  # noqa: SLF001
    whole, results = run(x, matrices, dim, group.group_name, return_A=True)
    return whole, list(results)


def multiply_scatter(x: torch.Tensor, matrix: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    """Multiply x by a matrix, sum over the group, keep a part of `dim`, one under the other on GPUs."""
    symmetric = importlib.import_module("torch.distributed._symmetric_memory")
    operator = torch.ops.symm_mem.fused_matmul_reduce_scatter
    run = operator if x.is_cuda else symmetric._fused_matmul_reduce_scatter_fallback  # noqa: SLF001
    result: torch.Tensor = run(x, matrix, "sum", dim, group.group_name)
    return result


def compile_graph(function: Callable[..., Any], tensors: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    """Trace a function of tensors without values, and compile its graph for their shapes and strides."""
    from torch.fx.experimental.proxy_tensor import make_fx

    alone = [tensor.detach() for tensor in tensors]
    graph = make_fx(function, tracing_mode="fake")(*alone)
    compiled: Callable[..., Any] = torch._inductor.compile(graph, alone)  # noqa: SLF001
    return compiled


def nvlinks() -> list[list[int]]:
    """How many NVLinks this machine's GPUs have to each other, by torch's index of a GPU."""
    compiled = importlib.import_module("torch._C")
    detect = compiled._distributed_c10d._detect_dma_connectivity  # noqa: SLF001
    found: list[list[int]] = detect(compiled._autograd.DeviceType.CUDA, "nvlink").matrix  # noqa: SLF001
    return found


class _Keeping(TorchDispatchMode):
    """Remembers the results of some operators in the order of their calls."""

    def __init__(self, kept: Mapping[Any, deque[Any]]) -> None:
        super().__init__()
        self.kept = kept

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, and keep its result if it is one of those."""
        result = function(*args, **(kwargs or {}))
        if function in self.kept:
            self.kept[function].append(tree_map_only(torch.Tensor, torch.Tensor.detach, result))
        return result


class _Reusing(TorchDispatchMode):
    """Gives the remembered results back in the same order, running everything else."""

    def __init__(self, kept: Mapping[Any, deque[Any]]) -> None:
        super().__init__()
        self.kept = kept

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, or not."""
        if function in self.kept:
            return self.kept[function].popleft()
        return function(*args, **(kwargs or {}))


def selective_checkpoint_contexts(own: tuple[Any, ...] = ()) -> Callable[[], tuple[Any, Any]]:
    """Contexts for checkpoints that keep matrix products, attention and messages, recomputing the rest.

    Products that are operators of our `own` are kept too.
    Unlike torch's own, they do not mind that the rest differs: FSDP gathers experts inside of a layer, with
    other operations the second time.
    """
    aten, functional = torch.ops.aten, functional_collectives
    operators = (
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        _grouped,
        _scaled,
        _flash.default,
        _efficient.default,
        _flash_cpu.default,
        functional.reduce_scatter_tensor.default,
        functional.all_to_all_single.default,
        *own,
    )

    def contexts() -> tuple[Any, Any]:
        kept: dict[Any, deque[Any]] = {operator: deque() for operator in operators}
        return _Keeping(kept), _Reusing(kept)

    return contexts


def quiet_known_warnings() -> None:
    """Silence warnings that torch gives for correct use, one by one."""
    import warnings

    for text in _HARMLESS:
        warnings.filterwarnings("ignore", message=text)
    # whole matrices are gathered over two axes, one after the other: no sum depends on the order
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


_HARMLESS: tuple[str, ...] = (
    "FSDP2-wrapped module .* returned a view tensor",  # nothing here writes into what a module returns
)


def reduce_gradients(module: Any) -> None:
    """Reduce gradients that FSDP has been told to keep, and free its gathered weights.

    FSDP does this in its own hooks; zero-bubble schedules finish weight gradients outside of autograd and
    must ask.
    """
    from torch.distributed.fsdp import fully_shard

    module.set_is_last_backward(True)
    module.set_reshard_after_backward(True)
    module.set_requires_gradient_sync(True)
    root = fully_shard.state(module)
    for state in root._state_ctx.all_states:  # noqa: SLF001
        for group in parameter_groups(state):
            group.post_backward()
    root._root_post_backward_final_callback()  # noqa: SLF001


def preload() -> None:
    """Import what torch loads on first use, so that processes forked from here find it loaded."""
    importlib.import_module(COMPILER)


def stored_place(name: str, offset: int, length: int) -> Any:
    """Where torch's file reader finds a tensor: a file of the checkpoint's folder, and a range of bytes."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    return _StorageInfo(relative_path=name, offset=offset, length=length)


def gradient_settler(module: Any) -> Callable[[torch.Tensor], None]:
    """Give what moves a parameter's new gradient into FSDP's sum over microbatches, in its precision.

    FSDP does this after a backward pass; gradients computed outside of one would pile up in low precision.
    """
    gathered = ((getattr(record, "_unsharded_param", None), record) for record in sharded_parameters(module))
    records = {id(parameter): record for parameter, record in gathered if parameter is not None}

    def settle(parameter: torch.Tensor) -> None:
        record = records.get(id(parameter))
        if record is not None:
            record.accumulate_unsharded_grad_if_needed()
            record.to_accumulated_grad_if_needed()

    return settle


# ── one process as one rank of many ───────────────────────────────────────────────────────────────────────


def start_fake_group(num_ranks: int, rank: int) -> None:
    """Make the default process group one whose collectives return at once and move nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    importlib.import_module("torch.distributed._tools.fake_collectives")  # registers their fake kernels
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)


def end_fake_group() -> None:
    """Leave the fake group, and forget how DTensor sharded: that memory points to the group's meshes."""
    import torch.distributed as dist
    from torch.distributed.tensor import debug

    dist.destroy_process_group()
    debug._clear_sharding_prop_cache()  # noqa: SLF001


def fake_tensors() -> Any:
    """Give a context in which tensors have shapes but no values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def active_fake_mode() -> Any:
    """Give the context of `fake_tensors` that is in force, None outside."""
    from torch._guards import active_fake_mode as active

    return active()


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Plain tensor behind a DTensor or a collective under way."""
    from torch.distributed.tensor import DTensor

    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor  # noqa: SLF001
    return getattr(tensor, "elem", tensor)


def storage_key(tensor: torch.Tensor) -> int:
    """What identifies a tensor's storage while it lives."""
    return int(local_tensor(tensor).untyped_storage()._cdata)  # noqa: SLF001


def has_distributed_tensor(types: Any) -> bool:
    """Whether an operation is on DTensors."""
    from torch.distributed.tensor import DTensor

    return any(kind is DTensor for kind in types)


def is_wait(function: Any) -> bool:
    """Whether an operation only waits for a collective."""
    return function is functional_collectives.wait_tensor.default


def asks_device(function: Any, args: Any) -> bool:
    """Whether an operation only asks where a fake tensor is."""
    return function is torch.ops.prim.device.default and hasattr(args[0], "fake_device")


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Tensors in nested containers."""
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def forget_forwards(module: Any) -> None:
    """Keep FSDP from gathering what it takes for next: with several forwards in flight it guesses wrong.

    After the first unit of one microbatch it would gather the last one of another, and drop it again.
    """
    from torch.distributed.fsdp import fully_shard

    for state in fully_shard.state(module)._state_ctx.all_states:  # noqa: SLF001
        for group in parameter_groups(state):
            getattr(group, "_post_forward_indices", []).clear()


def end_forwards(module: Any) -> None:
    """Free what forwards without a backward have gathered, and let FSDP forget their order."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    forget_forwards(module)
    fully_shard.state(module)._comm_ctx.post_forward_order.clear()  # noqa: SLF001
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def parameter_groups(state: Any) -> list[Any]:
    """Parameters that one unit of FSDP gathers together: several groups a unit in 2.13, one in 2.11."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)  # noqa: SLF001
    return [group for group in (state._fsdp_param_group,) if group is not None]  # noqa: SLF001


def sharded_parameters(module: Any) -> list[Any]:
    """FSDP's own record of every parameter of a wrapped module."""
    from torch.distributed.fsdp import fully_shard

    found = []
    for state in fully_shard.state(module)._state_ctx.all_states:  # noqa: SLF001
        found += [parameter for group in parameter_groups(state) for parameter in group.fsdp_params]
    return found


def gathered_weights(record: Any) -> list[torch.Tensor]:
    """Low-precision weights of a parameter that are gathered now, and the buffers they were gathered into."""
    return [*getattr(record, "all_gather_outputs", ()), *getattr(record, "_unsharded_inner_tensors", ())]


def stored_gradients(record: Any) -> list[torch.Tensor]:
    """Gradients of a parameter that are kept between microbatches: accumulated whole, or reduced shards."""
    found = [getattr(record, "unsharded_accumulated_grad", None), record.sharded_param.grad]
    return [gradient for gradient in found if gradient is not None]


def in_backward() -> bool:
    """Whether autograd is running a backward pass on this thread."""
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001


def process_group_of(argument: Any) -> Any:
    """Process group behind an argument of a ``c10d`` operator, None if it is none."""
    import torch.distributed as dist

    if isinstance(argument, dist.ProcessGroup):
        return argument
    try:
        return dist.ProcessGroup.unbox(argument)
    except (RuntimeError, TypeError, AttributeError):
        return None


def group_name(group: Any) -> str:
    """Name by which functional collectives know a group."""
    return str(group.group_name)


def named_groups() -> dict[str, tuple[str, list[int]]]:
    """Process groups of this rank by name: what each is for, and its ranks; those of one rank left out."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    found = {}
    for group, name in list(distributed_c10d._world.pg_names.items()):  # noqa: SLF001
        ranks = dist.get_process_group_ranks(group)
        if len(ranks) > 1:
            found[str(name)] = (str(group.group_desc), ranks)
    return found


def bound_groups(timeout: timedelta) -> None:
    """Give every group of this rank a timeout: but for the first they have torch's, half an hour on gloo."""
    from torch.distributed import distributed_c10d

    for group in distributed_c10d._world.pg_names:  # noqa: SLF001
        distributed_c10d._set_pg_timeout(timeout, group)  # noqa: SLF001


def flight_record() -> list[tuple[str, str, int]]:
    """The last collectives of this rank in their order: group by name, operation, its number in the group."""
    dump = getattr(importlib.import_module("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
    entries = [] if dump is None else json.loads(dump()).get("entries", [])
    return [
        (str(e["process_group"][0]), str(e["profiling_name"]).partition(":")[2], int(e["collective_seq_id"]))
        for e in entries
        if not e["is_p2p"]
    ]


FLASH_FORWARD = (_flash_cpu.default, _flash.default)
FLASH_BACKWARD = (_flash_cpu_backward.default, _flash_backward.default)
