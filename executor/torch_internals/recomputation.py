"""Checkpoints that keep the results of some operators and run the rest again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from executor.torch_internals.operators import KEPT


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


def selective_checkpoint_contexts(operators_kept: tuple[Any, ...] = ()) -> Callable[[], tuple[Any, Any]]:
    """Contexts for checkpoints that keep matrix products, attention and messages, recomputing the rest.

    Products that are operators of our `own` are kept too.
    Unlike torch's own, they do not mind that the rest differs: FSDP gathers experts inside of a layer, with
    other operations the second time.
    """
    operators = (*KEPT, *operators_kept)

    def contexts() -> tuple[Any, Any]:
        kept: dict[Any, deque[Any]] = {operator: deque() for operator in operators}
        return _Keeping(kept), _Reusing(kept)

    return contexts
