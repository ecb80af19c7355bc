"""Residual streams as operations: their sum before a block, and their mix with its output after it.

Legend: ``t`` tokens of a rank between blocks, ``H`` hidden size, ``n`` streams.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.models.spec import ModelSpec
from costmodel.models.streams import connection_parameters, last_sum_parameters, weights_of_streams
from costmodel.ops.op import HALF_BYTES, Op, ShardShape, elementwise, gemm


def streams_before(model: ModelSpec, block: str, shard: ShardShape) -> tuple[Op, ...]:
    """One product of all streams for the weights around a block, and their weighted sum; streams are kept."""
    n = model.residual_streams
    if n == 1:
        return ()
    weights = weights_of_streams(n)
    return _summed(model, block, shard, weights, connection_parameters(model.hidden_size, n))


def streams_after(model: ModelSpec, block: str, shard: ShardShape) -> tuple[Op, ...]:
    """Every stream is a sum of all, and of the output of the block, which is kept: n + 1 reads, n writes."""
    n, size = model.residual_streams, HALF_BYTES * shard.sharded_tokens * model.hidden_size
    if n == 1:
        return ()
    return (elementwise(f"{block}_mix", traffic_bytes=(2 * n + 1) * size, saved_bytes=size),)


def first_streams(model: ModelSpec, shard: ShardShape) -> tuple[Op, ...]:
    """The embedding in every stream."""
    n, size = model.residual_streams, HALF_BYTES * shard.sharded_tokens * model.hidden_size
    return (elementwise("first_streams", traffic_bytes=(1 + n) * size),) if n > 1 else ()


def last_sum(model: ModelSpec, shard: ShardShape) -> tuple[Op, ...]:
    """The sum of all streams after the last layer, by weights of its own."""
    n = model.residual_streams
    if n == 1:
        return ()
    return _summed(model, "last", shard, n, last_sum_parameters(model.hidden_size, n))


def _summed(model: ModelSpec, block: str, shard: ShardShape, weights: int, parameters: int) -> tuple[Op, ...]:
    """A product of all streams for so many weights, without an adapter, and their sum by some of them."""
    n, t, H = model.residual_streams, shard.sharded_tokens, model.hidden_size
    made = gemm(
        f"{block}_weights",
        m=t,
        n=weights,
        k=n * H,
        bias=parameters - weights * n * H,
        saved_elements=t * n * H,
    )
    return (replace(made, joins=0), elementwise(f"{block}_sum", traffic_bytes=(n + 1) * HALF_BYTES * t * H))
