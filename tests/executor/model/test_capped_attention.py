"""Softly capped attention equals the formula, its gradients those of autograd, in any number of blocks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from executor.model.attention import capped

LENGTH, CAP, SCALE = 24, 0.7, 0.3


def plain(q: object, k: object, v: object, visible: object) -> object:
    """The formula, written down."""
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))  # type: ignore[attr-defined]
    scores = CAP * torch.tanh(SCALE * (q @ k.transpose(-1, -2)) / CAP)  # type: ignore[operator]
    return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v  # type: ignore[operator]


@pytest.mark.parametrize("block", [5, 8, 512])
@pytest.mark.parametrize("window", [None, 6])
def test_capped_attention_is_the_formula(
    block: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Result and gradients of queries, keys and values, whole and under a window."""
    monkeypatch.setattr(capped, "BLOCK", block)
    torch.manual_seed(0)
    shapes = ((2, 4, LENGTH, 8), (2, 2, LENGTH, 8), (2, 2, LENGTH, 8))
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    age = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)[None]
    visible = (age >= 0) & (age < (window or LENGTH))
    mine = capped.attend_capped(*inputs, visible, scale=SCALE, cap=CAP)
    true = plain(*inputs, visible)
    upstream = torch.randn_like(true)
    found = torch.autograd.grad(mine, inputs, upstream)
    expected = torch.autograd.grad(true, inputs, upstream)
    assert torch.allclose(mine, true, atol=1e-6)
    assert all(torch.allclose(a, b, atol=2e-6) for a, b in zip(found, expected, strict=True))


def test_a_hidden_score_far_above_the_visible_ones_changes_nothing() -> None:
    """Its exponential overflows fp32, the gradients stay finite."""
    q, k, v = (torch.ones(1, 1, 2, 1) for _ in range(3))
    k[0, 0] = torch.tensor([[-1.0], [1.0]])  # the first query must not see the second key
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = capped.attend_capped(*inputs, torch.ones(2, 2).tril().bool(), scale=1000.0, cap=50.0)
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), inputs))
