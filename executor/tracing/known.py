"""Values that follow from shapes alone: positions, masks, and what is computed of them.

Tensors of the meta device have no data, yet a causal model compares its own positions before it chooses a
kernel. What is made from nothing (`arange`, `full`) and from other known values is computed beside the trace.
"""

from __future__ import annotations

from typing import Any

MOST_ELEMENTS = 2**24  # of a known tensor: the mask of 4,096 positions
FROM_NOTHING = frozenset(
    ("arange", "zeros", "ones", "full", "scalar_tensor", "eye", "linspace", "tril_indices", "triu_indices")
)
FROM_SHAPES = frozenset(("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"))


class Known:
    """Values of tensors without data, as far as they are known; held as long as this is."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Any, Any]] = {}
        self._of_storage: dict[int, set[int]] = {}

    def value(self, tensor: Any) -> Any:
        """The tensor with data that this one stands for, or None."""
        return self._values.get(id(tensor), (None, None))[1]

    def scalar(self, func: Any, args: Any) -> Any:
        """The number that code asks of a known tensor, or None where another operation runs."""
        if "_local_scalar_dense" not in str(func):
            return None
        value = self.value(args[0])
        return None if value is None else value.item()

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Compute what an operation gave, where it is known; forget what it wrote into."""
        import torch

        if func._schema.is_mutable:  # noqa: SLF001 - how torch names it
            for tensor in _tensors((args, kwargs)):
                self._forget(tensor)
            return
        given = _tensors((args, kwargs))
        name = str(func.overloadpacket).removeprefix("aten.")
        made = isinstance(result, torch.Tensor) and result.device.type == "meta"
        if not made or result.numel() > MOST_ELEMENTS or torch.Tag.nondeterministic_seeded in func.tags:
            return
        if name not in (FROM_NOTHING if not given else FROM_SHAPES) and not (
            given and all(id(tensor) in self._values for tensor in given)
        ):
            return
        value = _computed(func, name, args, kwargs, self)
        if value is not None and value.shape == result.shape:
            self._values[id(result)] = (result, value)
            self._of_storage.setdefault(_storage(result), set()).add(id(result))

    def _forget(self, tensor: Any) -> None:
        for known in self._of_storage.pop(_storage(tensor), set()):
            self._values.pop(known, None)


def is_causal(mask: Any) -> bool:
    """Whether a known mask, of booleans or added to scores, lets each position see those up to its own."""
    import torch

    square = mask.reshape(-1, *mask.shape[-2:])
    if square.shape[-1] != square.shape[-2]:
        return False
    sees = square if square.dtype == torch.bool else square > torch.finfo(torch.bfloat16).min / 2
    expected = torch.ones(square.shape[-2:], dtype=torch.bool).tril()
    return bool((sees == expected).all())


def _computed(func: Any, name: str, args: Any, kwargs: Any, known: Known) -> Any:
    """The operation on the processor; None where it cannot be, as on a shape that it refuses."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils._pytree import tree_map

    def placed(value: Any) -> Any:
        """Data in the place of what has none; tensors that give a shape alone stay."""
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, torch.Tensor):
            return value
        data = known.value(value)
        return data if data is not None else torch.empty(value.shape, dtype=value.dtype)

    with _disable_current_modes(), torch.no_grad():
        words = {**tree_map(placed, kwargs or {})}
        if name in FROM_NOTHING:
            words["device"] = torch.device("cpu")
        try:
            return func(*tree_map(placed, args), **words)
        except (RuntimeError, TypeError):
            return None


def _tensors(tree: Any) -> list[Any]:
    """Tensors among arguments."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: Any) -> int:
    """Identity of the memory of a tensor."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - no other name is kept by a storage
