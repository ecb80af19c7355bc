"""Tensors without values whose operations are remembered: what came out for the same shapes comes out again.

Torch remembers too, at half a millisecond an operation, since its keys allow for symbolic and sparse tensors.
A key here is of plain tensors only, a tenth of that; whatever else takes part is left to torch. A recipe is
kept if what it makes is torch's own result again: bytes, strides, aliases and dispatch keys.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch._library.utils import is_builtin
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._pytree import tree_leaves

_PLAIN = frozenset(
    (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
)
_UNCACHED_TAGS = frozenset(
    (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
)
_AS_STRIDED = torch.ops.aten.as_strided.default
_VIEW = torch.ops.aten.view.dtype
_DEVICE = torch.ops.prim.device.default


class _Unknown(Exception):  # noqa: N818 - a way out, not an error
    """An argument that no key describes."""


class _Output(NamedTuple):
    """How one output is made: the argument itself, a view of it, or (`source` is None) a new tensor."""

    is_itself: bool
    source: int | None
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


class _Recipe(NamedTuple):
    """How the outputs of an operation are made; `container` is None for a lone one."""

    container: type | None
    outputs: tuple[_Output | None, ...]


_recipes: dict[Any, _Recipe | None] = {}


class RememberedFakes(FakeTensorMode):
    """A mode of tensors without values that computes each operation once per process."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, from memory where that is known to be the same."""
        if func is _DEVICE:
            return args[0].fake_device
        tensors: list[FakeTensor] = []
        try:
            key = self._key(func, args, kwargs, tensors)
            hash(key)
        except (_Unknown, TypeError):
            return super().dispatch(func, types, args, kwargs or {})
        if key in _recipes:
            recipe = _recipes[key]
            if recipe is not None:
                return self._made(recipe, tensors)
            return super().dispatch(func, types, args, kwargs or {})
        result = super().dispatch(func, types, args, kwargs or {})
        _recipes[key] = self._recipe(key, func, args, kwargs, tensors, result)
        return result

    def _key(self, func: Any, args: Any, kwargs: Any, tensors: list[FakeTensor]) -> tuple[Any, ...]:
        """What decides the shapes of an operation's outputs; `tensors` gets its tensors in order."""
        parts = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        self._describe(args, parts, tensors)
        for name, value in (kwargs or {}).items():
            parts.append(name)
            self._describe((value,), parts, tensors)
        return tuple(parts)

    def _describe(self, values: Any, parts: list[Any], tensors: list[FakeTensor]) -> None:
        """Append what a key says of these values."""
        parts.append(len(values))
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.fake_mode is not self or value.constant is not None:
                    raise _Unknown
                if value.layout is not torch.strided or value.dtype.is_complex or value.is_inference():
                    raise _Unknown
                for number, earlier in enumerate(tensors):
                    if earlier is value:
                        parts.append(number)
                tensors.append(value)
                parts += (
                    kind,
                    tuple(value.shape),
                    value.stride(),
                    value.storage_offset(),
                    value.dtype,
                    value.fake_device,
                    value.requires_grad,
                )
            elif kind in _PLAIN:
                parts += (kind, "nan" if value != value else value)  # noqa: PLR0124 - no key with it is found
            elif kind in (list, tuple, torch.Size):
                parts.append(kind)
                self._describe(value, parts, tensors)
            else:
                raise _Unknown

    def _made(self, recipe: _Recipe, tensors: list[FakeTensor]) -> Any:
        """Outputs from memory."""
        made = [None if each is None else self._output(each, tensors) for each in recipe.outputs]
        return made[0] if recipe.container is None else recipe.container(made)

    def _output(self, each: _Output, tensors: list[FakeTensor]) -> FakeTensor:
        """One output from memory."""
        if each.is_itself and each.source is not None:
            return tensors[each.source]
        if each.source is None:
            plain = torch.empty_strided(
                each.shape, each.stride, dtype=each.dtype, device="meta", requires_grad=each.requires_grad
            )
            return FakeTensor(self, plain, each.device)
        plain = tensors[each.source]
        with in_kernel_invocation_manager(self):
            if each.dtype != plain.dtype:
                plain = _VIEW(plain, each.dtype)
            plain = _AS_STRIDED(plain, each.shape, each.stride, each.offset)
        return FakeTensor(self, plain, each.device)

    def _recipe(
        self, key: Any, func: Any, args: Any, kwargs: Any, tensors: list[FakeTensor], result: Any
    ) -> _Recipe | None:
        """How to make a result again; None where that would not be the same."""
        if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001
            return None
        if func._schema.is_mutable and not (tensors and is_builtin(func)):  # noqa: SLF001
            return None
        if _UNCACHED_TAGS & set(func.tags) or func in self.lift_fns:
            return None
        if self._key(func, args, kwargs, []) != key:  # it changed its arguments' shapes
            return None
        container = type(result) if type(result) in (list, tuple) else None
        outputs = tuple(result) if container is not None else (result,)
        described: list[_Output | None] = []
        for output in outputs:
            if output is not None and not self._is_ours(output):
                return None
            described.append(None if output is None else self._described(output, tensors))
        if len(tensors) > 1 and any(
            how and how.source is not None and not how.is_itself for how in described
        ):
            return None  # a view of one of several
        recipe = _Recipe(container, tuple(described))
        new = [
            _storage(each) for each, how in zip(outputs, described, strict=True) if how and how.source is None
        ]
        if len(set(new)) < len(new):  # they share a storage
            return None
        made = tree_leaves(self._made(recipe, tensors))
        return recipe if all(map(_is_alike, made, tree_leaves(result))) else None

    def _is_ours(self, output: Any) -> bool:
        """Whether an output is a tensor of this mode and has no value."""
        return type(output) is FakeTensor and output.fake_mode is self and output.constant is None

    def _described(self, output: FakeTensor, tensors: list[FakeTensor]) -> _Output:
        """How one output is made."""
        same = [number for number, tensor in enumerate(tensors) if tensor is output]
        aliases = [number for number, tensor in enumerate(tensors) if _storage(tensor) == _storage(output)]
        source = next(iter(same or aliases), None)
        return _Output(
            bool(same),
            source,
            tuple(output.shape),
            output.stride(),
            output.storage_offset(),
            output.dtype,
            output.fake_device,
            output.requires_grad,
        )


def _storage(tensor: torch.Tensor) -> int:
    """What identifies a tensor's storage."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001


def _is_alike(made: Any, true: Any) -> bool:
    """Whether nothing tells two fake tensors apart."""
    if made is true:
        return True
    return bool(
        made.shape == true.shape
        and made.stride() == true.stride()
        and made.storage_offset() == true.storage_offset()
        and made.dtype == true.dtype
        and made.fake_device == true.fake_device
        and made.requires_grad == true.requires_grad
        and made.is_conj() == true.is_conj()
        and made.is_neg() == true.is_neg()
        and made.untyped_storage().nbytes() == true.untyped_storage().nbytes()
        and torch._C._dispatch_key_set(made) == torch._C._dispatch_key_set(true)  # noqa: SLF001
    )
