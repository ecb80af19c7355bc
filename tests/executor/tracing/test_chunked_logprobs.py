"""What log-probabilities and entropy of a policy move of a logit, counted by torch over chunks of the vocabulary."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from costmodel.stack import stack
from costmodel.switches.profile import with_switches

TOKENS, VOCABULARY, WIDTH, CHUNK = 64, 1024, 4, 256


class Passes(TorchDispatchMode):  # type: ignore[misc]  # torch has no types for it
    """Bytes of tensors as large as a chunk of logits that operations beside products read and write."""

    def __init__(self) -> None:
        """Nothing moved yet."""
        super().__init__()
        self.moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count it; views move nothing."""
        out = func(*args, **(kwargs or {}))
        if func.is_view or "mm" in func.name():
            return out
        read = {id(x): x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.moved += sum(x.nbytes for x in (*read.values(), *made) if x.numel() == TOKENS * CHUNK)
        return out


def _forward(hidden: Any, weight: Any, heat: Any) -> tuple[Any, Any]:
    """Running maximum, sum of exponentials, and their sum weighed by the logits."""
    most = torch.full((TOKENS,), float("-inf"))
    summed, weighed = torch.zeros(TOKENS), torch.zeros(TOKENS)
    for start in range(0, VOCABULARY, CHUNK):
        logits = (hidden @ weight[start : start + CHUNK].t()).to(torch.float32) * heat
        higher = torch.maximum(most, logits.amax(dim=-1))
        kept, exponentials = torch.exp(most - higher), torch.exp(logits - higher[:, None])
        summed = summed * kept + exponentials.sum(dim=-1)
        weighed = weighed * kept + (exponentials * logits).sum(dim=-1)
        most = higher
    partition = most + torch.log(summed)
    return partition, partition - weighed / summed


def _backward(hidden: Any, weight: Any, heat: Any, partition: Any, gradient: Any) -> None:
    """Gradients of hidden states and of the head from logits that are made anew."""
    for start in range(0, VOCABULARY, CHUNK):
        part = weight[start : start + CHUNK]
        logits = (hidden @ part.t()).to(torch.float32) * heat
        shares = torch.exp(logits - partition[:, None])
        of_logits = (-gradient)[:, None] * shares * heat
        of_logits.to(hidden.dtype) @ part
        of_logits.to(hidden.dtype).t() @ hidden


def test_a_logit_moves_what_torch_moves() -> None:
    """54 bytes forward and 58 backward, where one fused kernel has six and four."""
    hidden, weight = (torch.randn(rows, WIDTH, dtype=torch.bfloat16) for rows in (TOKENS, VOCABULARY))
    heat, gradient = torch.ones(TOKENS, 1), torch.ones(TOKENS)
    with Passes() as forward:
        partition, entropy = _forward(hidden, weight, heat)
    with Passes() as backward:
        _backward(hidden, weight, heat, partition, gradient)

    logits = hidden.float() @ weight.float().t()
    assert torch.allclose(partition, torch.logsumexp(logits, dim=-1), atol=0.05)
    assert bool((entropy > 0).all())
    timing = with_switches(stack("prime-rl"), {"loss": "chunked_logprobs"}).timing
    assert forward.moved / (TOKENS * VOCABULARY) == timing.loss_forward_bytes
    assert backward.moved / (TOKENS * VOCABULARY) == timing.loss_backward_bytes
