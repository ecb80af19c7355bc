"""FSDP's own records: what it gathers, keeps and reduces, for schedules that it does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


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

    result = []
    for state in fully_shard.state(module)._state_ctx.all_states:  # noqa: SLF001
        result += [parameter for group in parameter_groups(state) for parameter in group.fsdp_params]
    return result


def gathered_weights(record: Any) -> list[torch.Tensor]:
    """Low-precision weights of a parameter that are gathered now, and the buffers they were gathered into."""
    return [*getattr(record, "all_gather_outputs", ()), *getattr(record, "_unsharded_inner_tensors", ())]


def stored_gradients(record: Any) -> list[torch.Tensor]:
    """Gradients of a parameter that are kept between microbatches: accumulated whole, or reduced shards."""
    result = [getattr(record, "unsharded_accumulated_grad", None), record.sharded_param.grad]
    return [gradient for gradient in result if gradient is not None]
