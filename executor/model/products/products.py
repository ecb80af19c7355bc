"""The three products of a projection: its result, and the gradients of its input and of its weight.

Experts have the same three of consecutive groups of rows, each with its own matrix. Where groups end is a
tensor on the device of the rows, so nothing here waits for the device. torch's `grouped_mm` (torch >= 2.10)
is one kernel; on a CPU and for fp32 it multiplies group by group inside the operator.

Legend: ``T`` rows, ``k`` input size, ``n`` output size, ``E`` experts.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from executor.comm.sequence_first import lies_sequence_first, rows_of, through


class Products:
    """In the format that the operands have."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Rows x (…, k) times a weight (n, k): (…, n)."""
        return through(lambda rows: functional.linear(rows, weight), x)

    def of_input(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Gradient of the rows, (…, k), of that of the result, (…, n)."""
        return through(lambda rows: rows @ weight, gradient)

    def of_weight(self, gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Gradient of the weight, (n, k)."""
        turned = lies_sequence_first(gradient) or lies_sequence_first(x)
        return rows_of(gradient, sequence_first=turned).t() @ rows_of(x, sequence_first=turned)

    def of_groups(self, rows: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Rows (T, k), those of expert e up to `offsets[e]`, times its matrix of (E, n, k): (T, n)."""
        return functional.grouped_mm(rows, weight.transpose(-1, -2), offs=offsets)

    def of_group_rows(
        self, gradient: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        """Gradient of the rows of groups, (T, k), of that of the result, (T, n)."""
        return functional.grouped_mm(gradient, weight, offs=offsets)

    def of_group_weights(
        self, gradient: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        """Gradients of the matrices, (E, n, k), each summed over its group's rows alone."""
        return functional.grouped_mm(gradient.t(), rows, offs=offsets)


SAME = Products()
