"""The loss over a vocabulary: torch's own numbers, without a second copy of the logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from executor.comm import tensor_parallel
from executor.comm.tensor_parallel import token_losses

SHAPE = (2, 37, 211)


class _Largest(TorchDispatchMode):
    """Bytes of the largest tensor that any operation makes."""

    found = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.found = max(self.found, result.numel() * result.element_size())
        return result


def _case(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = (8 * torch.randn(SHAPE, generator=generator)).to(dtype)
    targets = torch.randint(0, SHAPE[-1], SHAPE[:-1], generator=generator)
    return logits, targets, torch.rand(SHAPE[:-1], generator=generator)


@pytest.mark.parametrize("at_once", [1, 211, 5 * 211 + 1, 1 << 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_cross_entropy(at_once: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_parallel, "LOGITS_AT_ONCE", at_once)
    logits, targets, outer = _case(dtype)
    true = logits.clone().float().requires_grad_()
    expected = functional.cross_entropy(true.flatten(0, 1), targets.flatten(), reduction="none")
    (expected.view_as(targets) * outer).sum().backward()
    leaf = logits.clone().requires_grad_()
    found = token_losses(leaf * 1, targets, None, SHAPE[-1])
    (found * outer).sum().backward()
    assert leaf.grad is not None
    assert true.grad is not None
    torch.testing.assert_close(found, expected.view_as(targets), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(
        leaf.grad, true.grad.to(dtype), rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-6
    )


def test_scores_in_fp32_are_held_for_a_chunk_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing as large as the logits is made, forward or backward, but what a caller asked for."""
    monkeypatch.setattr(tensor_parallel, "LOGITS_AT_ONCE", 8 * 211)
    logits, targets, _ = _case(torch.bfloat16)
    before = (logits * 1).requires_grad_()
    with _Largest() as largest:
        token_losses(before, targets, None, SHAPE[-1]).sum().backward()
    assert largest.found <= logits.numel() * 2  # views of the logits themselves
