"""Gradients of weights that wait until a zero-bubble schedule computes them (`executor.model.linear`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor

WeightGradients = Callable[[], list[tuple[torch.Tensor, torch.Tensor]]]
"""Parameters and their gradients, computed when called."""


class DelayedGradients:
    """Weight-gradient products of a stage that wait; `recording` says whether to add to them."""

    def __init__(self) -> None:
        self.recording = False
        self._delayed: deque[WeightGradients] = deque()

    def add(self, gradients: WeightGradients) -> None:
        """Put one product off."""
        self._delayed.append(gradients)

    def take(self) -> deque[WeightGradients]:
        """Hand over what has been put off so far."""
        delayed, self._delayed = self._delayed, deque()
        return delayed


def accumulate(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add a gradient of this rank's part to the parameter's gradient; call it without recording a graph."""
    if isinstance(parameter, DTensor):
        gradient = DTensor.from_local(
            gradient,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient


class Leaf(NamedTuple):
    """A parameter that autograd shall not see as an input."""

    parameter: torch.Tensor


def now_or_later(
    leaves: Sequence[Leaf],
    gradients_of: Callable[[Sequence[int]], list[torch.Tensor]],
    delayed: DelayedGradients | None,
) -> list[torch.Tensor | None]:
    """Gradients of the weights that are trained, by their places among the leaves; None of all others.

    Those that are put off are None too: `gradients_of` those places is then called when they are taken.
    """
    trained = [place for place, leaf in enumerate(leaves) if leaf.parameter.requires_grad]
    result: list[torch.Tensor | None] = [None] * len(leaves)
    if trained and delayed is not None and delayed.recording:
        parameters = [leaves[place].parameter for place in trained]
        delayed.add(lambda: list(zip(parameters, gradients_of(trained), strict=True)))
    elif trained:
        for place, gradient in zip(trained, gradients_of(trained), strict=True):
            result[place] = gradient
    return result
