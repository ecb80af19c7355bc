"""The private corners of torch that the executor relies on, each behind one function and guarded.

Nothing else in the executor touches a name of torch that begins with an underscore, apart from the functional
collectives (`executor.collectives`) and the flash operators (`executor.attention_blocks`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


def selective_checkpoint_contexts() -> Callable[[], tuple[Any, Any]]:
    """Context factory for checkpointing that keeps matrix products, attention and communication, recomputing the rest."""
    aten, functional = torch.ops.aten, torch.ops._c10d_functional  # noqa: SLF001
    kept = {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001
        aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
        aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
        functional.reduce_scatter_tensor.default,
        functional.all_to_all_single.default,
    }

    def policy(_context: Any, operator: Any, *_arguments: Any, **_options: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return functools.partial(create_selective_checkpoint_contexts, policy)


def quiet_known_warnings() -> None:
    """Silence warnings that torch gives for correct use, one by one."""
    import warnings

    for text in _HARMLESS:
        warnings.filterwarnings("ignore", message=text)


_HARMLESS: tuple[str, ...] = ()


def reduce_gradients(module: Any) -> None:
    """Reduce gradients that FSDP has been told to keep, and free its gathered weights.

    FSDP does this in its own hooks; zero-bubble schedules finish weight gradients outside of autograd and must ask.
    """
    from torch.distributed.fsdp import fully_shard

    module.set_is_last_backward(True)
    module.set_reshard_after_backward(True)
    module.set_requires_gradient_sync(True)
    root = fully_shard.state(module)
    for state in root._state_ctx.all_states:  # noqa: SLF001
        groups = (
            state._fsdp_param_groups  # noqa: SLF001
            if hasattr(state, "_fsdp_param_groups")
            else [group for group in (state._fsdp_param_group,) if group is not None]  # noqa: SLF001
        )
        for group in groups:
            group.post_backward()
    root._root_post_backward_final_callback()  # noqa: SLF001
