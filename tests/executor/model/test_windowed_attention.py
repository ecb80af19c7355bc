"""Attention with sinks and windows by flash kernels is attention under an explicit mask, to every gradient."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from executor.model.attention.windowed import attend_window


def masked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int, sinks: torch.Tensor | None
) -> torch.Tensor:
    """The definition: all scores, a mask, a softmax with the sink as one more column."""
    repeat, length = q.shape[1] // k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    age = torch.arange(length)[:, None] - torch.arange(length)
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill((age < 0) | (age >= window), float("-inf"))
    if sinks is None:
        return scores.softmax(-1) @ v
    column = sinks.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1] @ v


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize(
    ("length", "window"), [(12, None), (12, 4), (12, 12), (13, 5), (7, 6), (6, 1), (9, 2)]
)
def test_result_and_gradients_are_those_of_the_definition(
    length: int, window: int | None, with_sinks: bool
) -> None:
    """Windows that divide the sequence, that do not, of one token, and as long as it; grouped heads."""
    torch.manual_seed(0)
    leaves = [torch.randn(2, heads, length, 8, requires_grad=True) for heads in (4, 2, 2)]
    sinks = torch.randn(4, requires_grad=True) if with_sinks else None
    inputs = [*leaves, *([sinks] if with_sinks else [])]
    weight = torch.randn(2, 4, length, 8)
    mine = attend_window(*leaves, scale=0.4, window=window, sinks=sinks)
    true = masked(*leaves, 0.4, window or length, sinks)
    torch.testing.assert_close(mine, true, rtol=1e-5, atol=1e-6)
    found, expected = (torch.autograd.grad((x * weight).sum(), inputs) for x in (mine, true))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_no_tensor_grows_with_the_square_of_the_sequence() -> None:
    """What attention holds is linear in the sequence: twice the tokens, at most twice the bytes."""
    from executor.torch_internals import fake_tensors
    from executor.validation.peak_tracker import PeakTracker

    def peak(length: int) -> int:
        with fake_tensors():
            q = torch.randn(1, 2, length, 8, requires_grad=True)
            sinks = torch.randn(2, requires_grad=True)
            tracker = PeakTracker()
            with tracker:
                attend_window(q, q, q, scale=1.0, window=64, sinks=sinks).sum().backward()
        return int(sum(tracker.peak_by_purpose.values()))

    assert 0 < peak(4096) <= 2.1 * peak(2048)
