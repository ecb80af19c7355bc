"""Residual streams: a model that carries several from layer to layer, and mixes them around every block.

Manifold-constrained hyper-connections (DeepSeek-V4 §2.2): before a block n streams are summed to its one
input, after it they are mixed with each other and its output is added to each, with weights that a product of
all n·H numbers of a token makes.

Legend: ``H`` hidden size, ``n`` streams.
"""

from __future__ import annotations

BLOCKS = 2  # of a layer: what mixes its tokens, and its feed-forward


def weights_of_streams(streams: int) -> int:
    """Weights around one block: n to sum by, n to add by, n² to mix by."""
    return (2 + streams) * streams


def connection_parameters(hidden_size: int, streams: int) -> int:
    """Parameters of what makes the weights around one block: n·H·(2n + n²), a bias each, three scales."""
    if streams == 1:
        return 0
    weights = weights_of_streams(streams)
    return weights * streams * hidden_size + weights + 3


def last_sum_parameters(hidden_size: int, streams: int) -> int:
    """Parameters of the sum of all streams after the last layer: n·H·n, a bias each, one scale."""
    return streams * streams * hidden_size + streams + 1 if streams > 1 else 0
