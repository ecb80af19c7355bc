"""Operations on tensors without values that are remembered give what torch gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from executor.torch_internals.fakes import storage_key
from executor.torch_internals.remembered import RememberedFakes
from executor.validation import fake_rank, memory_trace
from tests.executor.validation.test_memory_trace import CASES

OPERATIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "a product": lambda one: one @ one.T,
    "a view": lambda one: one[2:].T,
    "a view of other numbers": lambda one: one.view(torch.int32),
    "a slice of other numbers": lambda one: one.view(torch.int16)[1:],
    "views": lambda one: one.split(2),
    "in place": lambda one: one.mul_(2.0),
    "into another": lambda one: torch.empty(4, 8).copy_(one),
    "a number that is none": lambda one: torch.where(one > 0, one, float("nan")),
    "a whole number": lambda one: one * 2,
    "a broken number": lambda one: one * 2.0,
    "integers": lambda one: one.to(torch.int64) * 2,
    "integers and a broken number": lambda one: one.to(torch.int64) * 2.0,
    "an axis": lambda one: one.sum(1),
    "an axis that is kept": lambda one: one.sum(1, keepdim=True),
    "two outputs": lambda one: torch.max(one, 1),
    "a square and its transpose": lambda one: (
        (square := one[:, :4].contiguous()).clone(),
        square.T.clone(),
    ),
    "itself twice": lambda one: torch.stack([one, one]),
    "two that are alike": lambda one: torch.stack([one, one.clone()]),
    "a new one": lambda _: torch.zeros(3, 5),
    "a gradient": lambda one: torch.autograd.grad((one.requires_grad_() * one).sum(), one),
    "no gradient": lambda one: one.detach(),
    "larger than before": lambda one: one.resize_(6, 8),
}


def told(mode: FakeTensorMode, operation: Callable[[torch.Tensor], object]) -> list[object]:
    """All that can be told of what an operation leaves and gives, three times over."""
    said: list[object] = []
    with mode:
        for _ in range(3):
            given = torch.empty(4, 8)
            result = operation(given)
            outputs = result if isinstance(result, tuple | list) else (result,)
            for one in (given, *outputs):
                assert isinstance(one, torch.Tensor)
                said += [one.shape, one.stride(), one.storage_offset(), one.dtype, one.device]
                said += [one.requires_grad, one.untyped_storage().nbytes(), one is given]
                said += [storage_key(one) == storage_key(given), one._version, type(one)]
    return said


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_remembered_is_what_torch_gives(name: str) -> None:
    """Shapes, strides, bytes, aliases and versions, when it is computed and when it is remembered."""
    assert told(RememberedFakes(), OPERATIONS[name]) == told(FakeTensorMode(), OPERATIONS[name])


@pytest.mark.parametrize("name", ["7b zbv whole matrices", "8b adapted ZeRO-3"])
def test_a_rank_whose_operations_are_remembered_has_the_peak_of_one_without(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte, of each purpose."""
    task = memory_trace.few_microbatches(CASES[name].task)
    remembered = memory_trace.peak(task)
    monkeypatch.setattr(fake_rank, "fake_tensors", lambda: FakeTensorMode(allow_non_fake_inputs=True))
    assert remembered == memory_trace.peak(task)
