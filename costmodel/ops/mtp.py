"""A module that predicts one further token (multi-token prediction), as operations of one rank.

Module k norms what the model, or the module before it, gives for a token, and the embedding of the k-th token
after it; a projection joins both, and one layer of the kind of the model's last follows, with a norm of its
own. Embedding and head are the model's: the module looks its tokens up once more, and its loss is one more
product with the head. It stands after the last layer, on the rank of the head, which holds the embedding too.

Source: DeepSeek-V3 (arXiv 2412.19437) section 2.2, equations 21 to 24; megatron-core's
``multi_token_prediction.py``, whose projection is cut over tp and gathered, in the format of the layers.
Where several residual streams run, each is projected (``h_proj`` of DeepSeek-V4's ``MTPBlock``).

Legend: ``T`` tokens of a rank, ``t`` those between blocks, ``H`` hidden size, ``n`` streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.models.parameters import norm_parameters
from costmodel.models.spec import ModelSpec
from costmodel.ops.mixers.attention import linear_dtype
from costmodel.ops.op import (
    HALF_BYTES,
    Op,
    ShardShape,
    communicate,
    elementwise,
    enter_tensor_parallel,
    gemm,
    leave_tensor_parallel,
)
from costmodel.ops.passes import norm_op
from costmodel.ops.streams import last_sum


def mtp_ops(work: Workload, layer: Sequence[Op], shard: ShardShape) -> tuple[Op, ...]:
    """Operations of one module without its product with the head and its loss.

    Args:
        work: What runs: the model, the job, the engine.
        layer: Operations of a layer of its last kind (`costmodel.models.kinds.mtp_kind`).
        shard: How a layer is cut.
    """
    model = work.model
    H, n = model.hidden_size, model.residual_streams
    return (
        elementwise("mtp_embedding", traffic_bytes=2 * HALF_BYTES * shard.tokens * H),
        *leave_tensor_parallel("mtp_embedding", shard, H),
        norm_op(model, "mtp_embedding_norm", work.stack, shard),
        _of_streams(norm_op(model, "mtp_hidden_norm", work.stack, shard), n),
        *enter_tensor_parallel("mtp_projection", shard, (1 + n) * H),
        *_projections(model, work.job, shard),
        *_gathered(shard, n * H),
        *layer,
        *last_sum(model, shard),
        _last_norm(model, shard),
    )


def _of_streams(norm: Op, streams: int) -> Op:
    """One norm of every stream, of one weight."""
    kept = {
        name: streams * getattr(norm, name)
        for name in ("saved_bytes", "saved_bytes_selective", "saved_bytes_op")
    }
    return replace(norm, bytes=streams * norm.bytes, **kept)


def _projections(model: ModelSpec, job: TrainingJob, shard: ShardShape) -> tuple[Op, ...]:
    """The product of hidden state and embedding, joined to one input; of several streams, one of each."""
    T, t, H, n = shard.tokens, shard.sharded_tokens, model.hidden_size, model.residual_streams
    width, dtype = H / shard.tp, linear_dtype(job)
    if n == 1:
        return (gemm("mtp_projection", m=T, n=width, k=2 * H, dtype=dtype, saved_elements=2 * t * H),)
    return (
        gemm("mtp_embedding_projection", m=T, n=width, k=H, dtype=dtype, saved_elements=t * H),
        gemm("mtp_hidden_projection", m=n * T, n=width, k=H, dtype=dtype, saved_elements=n * t * H),
    )


def _gathered(shard: ShardShape, hidden_size: int) -> tuple[Op, ...]:
    """Columns of the projection, gathered; with sequence parallelism the gradients of the parts are too."""
    message = HALF_BYTES * shard.tokens * hidden_size * (shard.tp > 1)
    return (
        communicate("mtp_gather", "all_gather", "tp", message),
        communicate("mtp_gradient_gather", "all_gather", "tp", message * shard.sequence_parallel, "backward"),
    )


def _last_norm(model: ModelSpec, shard: ShardShape) -> Op:
    """The weight of the norm before the head, whose pass is priced with the head; both keep their inputs."""
    size = HALF_BYTES * shard.sharded_tokens * model.hidden_size
    return elementwise(
        "mtp_norm",
        traffic_bytes=0,
        saved_bytes=2 * size,
        saved_bytes_op=2 * size,
        parameters=norm_parameters(model, model.hidden_size),
    )
