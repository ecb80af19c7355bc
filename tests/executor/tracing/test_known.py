"""What follows from shapes alone is known to a trace, and nothing else is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

from executor.tracing.trace import example_inputs, trace_module
from topology.base.errors import InputError

HEADS, LENGTH, WIDTH = 2, 16, 32


class Attends(nn.Module):
    """One attention whose mask is made by a function of the length and the scores' type."""

    def __init__(self, mask: object) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.mask = mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention of x to itself."""
        y = self.inner(x).view(x.shape[0], LENGTH, HEADS, -1).transpose(1, 2)
        return functional.scaled_dot_product_attention(y, y, y, attn_mask=self.mask(y))


def lower(y: torch.Tensor) -> torch.Tensor:
    """True where a position sees."""
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=y.device).tril()


def added(y: torch.Tensor) -> torch.Tensor:
    """Added to scores, in the way of `nn.Transformer`, for each sample."""
    whole = torch.full((LENGTH, LENGTH), float("-inf"), device=y.device).triu(1)
    return whole.to(y.dtype).expand(y.shape[0], 1, LENGTH, LENGTH)


def compared(y: torch.Tensor) -> torch.Tensor:
    """By comparing positions."""
    places = torch.arange(LENGTH, device=y.device)
    return places[None, :] <= places[:, None]


def windowed(y: torch.Tensor) -> torch.Tensor:
    """Causal, but four positions back at most."""
    return lower(y) & ~lower(y).tril(-4)


def overwritten(y: torch.Tensor) -> torch.Tensor:
    """Causal until data is written into it."""
    mask = torch.zeros(LENGTH, LENGTH, dtype=y.dtype, device=y.device)
    mask += added(y)[0, 0]
    mask.copy_(y[0, 0] @ y[0, 0].T)
    return mask


def attention_of(mask: object) -> object:
    """The one operation of the trace that is attention."""
    table = trace_module(Attends(mask), example_inputs(f"2x{LENGTH}x{WIDTH}"))
    [found] = [op for kind in table.kinds for op in kind.ops if op.kind == "attention"]
    return found


@pytest.mark.parametrize("mask", [lower, added, compared])
def test_a_mask_made_of_positions_is_causal(mask: object) -> None:
    """Half the pairs, and no mask to read."""
    found = attention_of(mask)
    assert found.causal
    assert found.flop == attention_of(windowed).flop / 2


@pytest.mark.parametrize("mask", [windowed, overwritten])
def test_another_mask_is_not(mask: object) -> None:
    """A window is no triangle, and what data was written into is not known."""
    assert not attention_of(mask).causal


class Asks(nn.Module):
    """Asks for a value before it computes."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.inner, self.value = nn.Linear(4, 4), value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice as much where the value is true."""
        return self.inner(self.inner(x)) if self.value(x) else self.inner(x)


def positions_ascend(x: torch.Tensor) -> torch.Tensor:
    """Known from the shape."""
    return (torch.arange(x.shape[0], device=x.device).diff() == 1).all()


@pytest.mark.parametrize(
    "value", [lambda x: x.sum() > 0, lambda x: torch.rand((), device=x.device) > 0.5], ids=["data", "chance"]
)
def test_data_and_chance_stay_unknown(value: object) -> None:
    """Refused as before."""
    with pytest.raises(InputError, match="looks at values"):
        trace_module(Asks(value), example_inputs("2x4"))


def test_a_question_about_positions_is_answered() -> None:
    """Both products are there."""
    table = trace_module(Asks(positions_ascend), example_inputs("2x4"))
    assert sum(op.kind == "product" for kind in table.kinds for op in kind.ops) == 2
