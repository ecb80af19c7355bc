"""The three products of a projection: its result, and the gradients of its input and of its weight.

Legend: ``k`` input size, ``n`` output size.
"""

from __future__ import annotations

import torch
from torch.nn import functional


class Products:
    """In the format that the operands have."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Rows x (…, k) times a weight (n, k): (…, n)."""
        return functional.linear(x, weight)

    def of_input(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Gradient of the rows, (…, k), of that of the result, (…, n)."""
        return gradient @ weight

    def of_weight(self, gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Gradient of the weight, (n, k)."""
        return gradient.flatten(0, -2).t() @ x.flatten(0, -2)


SAME = Products()
