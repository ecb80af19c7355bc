"""What a forward pass dispatches and what autograd saves of it, on tensors without data.

Events are in the order of dispatch, each in the segment that ran it: a block, or what lies between two.
Storages stand for values, so that views cost nothing and what two operations save is counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from costmodel.models.traced import TracedCut
from executor.tracing.blocks import blocks_of
from executor.tracing.known import Known
from executor.tracing.known import is_causal as is_causal_mask

GATHERS = ("embedding", "index_select", "index", "gather", "nll_loss_forward", "nll_loss2d_forward")
"""Operations that read of a table what they give, not all of it; a loss reads one logarithm of each row."""
REPEATABLE = frozenset(
    (
        "_to_copy", "clone", "cat", "stack", "mean", "sum", "var_mean", "_softmax", "_log_softmax",
        "_safe_softmax", "native_layer_norm", "_fused_rms_norm", "native_group_norm", "native_batch_norm",
        "cudnn_batch_norm",
    )
)  # fmt: skip
"""Memory-bound operations beside the pointwise ones."""


@dataclass(slots=True, kw_only=True)
class TensorOperation:
    """One operation: its name, what it reads and writes by storage and bytes, and shapes of its tensors.

    A `repeatable` one is memory-bound and gives the same again: a compiler may run it in the backward.
    """

    name: str
    segment: int
    reads: dict[int, int]
    writes: dict[int, int]
    shapes: list[tuple[int, ...]]
    output: tuple[int, ...]
    arguments: tuple[Any, ...]
    repeatable: bool = False
    cut: TracedCut = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """A tensor as an operation sees it: which one, its memory, its shape."""

    tensor: int
    storage: int
    shape: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class TracedStep:
    """Any operation, views too, with its arguments in order, tensors as `Seen`; its event, if it has one."""

    name: str
    segment: int
    arguments: tuple[Any, ...]
    words: dict[str, Any]
    outputs: tuple[Seen, ...]
    pointwise: bool
    event: TensorOperation | None


@dataclass(slots=True, kw_only=True)
class Record:
    """A recorded forward pass.

    Attributes:
        segments: Path of the block of each segment, empty between blocks.
        events: Operations that compute or move something.
        steps: All of them, those that only look at a tensor another way too.
        saved: Segment that saves first, and bytes, of what autograd keeps, by storage.
        needed: Storages that the backward of each segment reads.
        differentiable: Storages whose values have a gradient.
        parameters: Path and elements of each parameter, by storage.
        used: Segments that read each parameter, by its storage.
        returned: Storages that the module gives back.
        given: Storages of its inputs.
    """

    segments: list[str] = field(default_factory=lambda: [""])
    events: list[TensorOperation] = field(default_factory=list)
    steps: list[TracedStep] = field(default_factory=list)
    saved: dict[int, tuple[int, int]] = field(default_factory=dict)
    needed: dict[int, set[int]] = field(default_factory=dict)
    differentiable: set[int] = field(default_factory=set)
    parameters: dict[int, tuple[str, int]] = field(default_factory=dict)
    used: dict[int, set[int]] = field(default_factory=dict)
    returned: set[int] = field(default_factory=set)
    given: set[int] = field(default_factory=set)


def record_forward(module: Any, inputs: Sequence[Any]) -> Record:
    """Run a module on the meta device, forward alone; autograd saves what its backward would read."""
    import torch
    from torch.utils._pytree import tree_leaves

    record, alive, known = Record(), list[Any](), Known()
    for name, parameter in module.named_parameters():
        record.parameters[_storage(parameter)] = (name, parameter.numel())
    hooks = list(_watch(module, record))
    record.given = given = {_storage(tensor) for tensor in inputs}

    def keep(tensor: Any) -> Any:
        """Note what autograd saves; parameters are kept anyway."""
        storage = _storage(tensor)
        if storage not in record.parameters and storage not in given:
            alive.append(tensor)
            size = tensor.untyped_storage().nbytes()
            segment = len(record.segments) - 1
            record.saved.setdefault(storage, (segment, size))
            record.needed.setdefault(segment, set()).add(storage)
        return tensor

    try:
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            _fused_attention(known),
            _dispatching(record, alive, known),
        ):
            value = module(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    record.returned = {_storage(x) for x in tree_leaves(value) if isinstance(x, torch.Tensor)}
    return record


def _watch(module: Any, record: Record) -> Iterator[Any]:
    """Open a segment where a block starts, and another where it ends."""

    def enters(path: str) -> Callable[..., None]:
        return lambda *_: record.segments.append(path)

    def leaves(*_: Any) -> None:
        record.segments.append("")

    for path, block in blocks_of(module):
        yield block.register_forward_pre_hook(enters(path))
        yield block.register_forward_hook(leaves)


def _dispatching(record: Record, alive: list[Any], known: Known) -> Any:
    """A dispatch mode that writes every operation down."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Recorder(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        """Runs each operation, then notes it."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked = known.scalar(func, args)
            if asked is not None:
                return asked
            torch_dispatch__ = func(*args, **(kwargs or {}))
            known.note(func, args, kwargs, torch_dispatch__)
            read = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            written = [x for x in tree_leaves(torch_dispatch__) if isinstance(x, torch.Tensor)]
            alive.extend((*read, *written))
            event = _note(record, func, args, read, written)
            record.steps.append(_step(record, func, args, kwargs, written, event))
            return torch_dispatch__

    return Recorder()


def _step(
    record: Record, func: Any, args: Any, kwargs: Any, written: list[Any], event: TensorOperation | None
) -> TracedStep:
    """One operation with what it takes and gives, no tensor held."""
    import torch
    from torch.utils._pytree import tree_map

    def seen(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return Seen(id(value), _storage(value), tuple(value.shape))

    return TracedStep(
        name=str(func.overloadpacket).removeprefix("aten."),
        segment=len(record.segments) - 1,
        arguments=tuple(tree_map(seen, args)),
        words=tree_map(seen, kwargs or {}),
        outputs=tuple(seen(x) for x in written),
        pointwise=torch.Tag.pointwise in func.tags,
        event=event,
    )


def _note(
    record: Record, func: Any, args: Any, read: list[Any], written: list[Any]
) -> TensorOperation | None:
    """Write one operation down, unless it only looks at its input another way or allocates."""
    import torch

    inputs = {_storage(x): x.numel() * x.element_size() for x in read}
    segment = len(record.segments) - 1
    for storage in inputs.keys() & record.parameters.keys():
        record.used.setdefault(storage, set()).add(segment)
    outputs = {_storage(x): x.numel() * x.element_size() for x in written}
    if torch.is_grad_enabled() and inputs.keys() & (record.differentiable | record.parameters.keys()):
        record.differentiable |= {_storage(x) for x in written if x.is_floating_point()}
    views = outputs.keys() <= inputs.keys() and not func._schema.is_mutable  # noqa: SLF001 - how torch names it
    if views or not outputs or "empty" in str(func):
        return None
    if str(func.overloadpacket).removeprefix("aten.") in GATHERS:
        inputs = {storage: min(size, sum(outputs.values())) for storage, size in inputs.items()}
    record.events.append(
        TensorOperation(
            name=str(func.overloadpacket).removeprefix("aten."),
            segment=segment,
            reads=inputs,
            writes=outputs,
            shapes=[tuple(x.shape) for x in read],
            output=tuple(written[0].shape),
            arguments=tuple(x for x in args if not isinstance(x, torch.Tensor)),
            repeatable=_is_repeatable(func),
        )
    )
    return record.events[-1]


def _is_repeatable(func: Any) -> bool:
    """Whether a compiler may compute it again: pointwise, a norm, a copy; nothing random or in place."""
    import torch

    if func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags:  # noqa: SLF001 - as torch names it
        return False
    name = str(func.overloadpacket).removeprefix("aten.")
    return torch.Tag.pointwise in func.tags or name in REPEATABLE


@contextmanager
def _fused_attention(known: Known) -> Iterator[None]:
    """Send scaled-dot-product attention to the fused kernels of a GPU; meta tensors would choose none."""
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    class Fused(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        """Replaces one function; all others run as they are."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is functional.scaled_dot_product_attention:
                return _attention(*args, **(kwargs or {}))
            return func(*args, **(kwargs or {}))

    def _attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        del enable_gqa
        mask = None if attn_mask is None else known.value(attn_mask)
        if mask is not None and is_causal_mask(mask):
            attn_mask, is_causal = None, True
        if attn_mask is None:
            flash = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001 - as torch names it
            return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
        bias = attn_mask if attn_mask.dtype == query.dtype else attn_mask.to(query.dtype)
        shape = (*query.shape[:-1], key.shape[-2])
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention  # noqa: SLF001 - as torch names it
        keeps = query.requires_grad or key.requires_grad
        attention = efficient(query, key, value, bias.expand(shape), keeps, dropout_p, is_causal, scale=scale)
        return attention[0]

    with Fused():
        yield


def _storage(tensor: Any) -> int:
    """Identity of the memory of a tensor."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - no other name is kept by a storage
