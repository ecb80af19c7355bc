"""What nobody computes below the first adapter of a model: gradients that go to nothing that is trained.

The embedding is frozen and so is what comes before the first adapter, whose inputs need no gradient. The cost
model's layers are alike, so it counts them for the first layer too (`costmodel.ops.adapters`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodel.ops.op import LINEAR, Cover, Op, OpKind
from costmodel.training.data_parallel import SHARDS_PARAMETERS
from executor.validation.fake_rank import RankTask


def spared(ops: Sequence[Op], hidden_size: int) -> tuple[Op, ...]:
    """Operations of the first layer whose backward is not done, with the share of it that is not.

    Before the first adapter it is everything but the input that is gathered again for the adapter itself.
    Products of the same input then have no gradient of it: the one of a frozen product, of two that an
    adapter's has. Latent attention begins with several, a feed-forward with one.

    Args:
        ops: Of a layer with adapters, in their order.
        hidden_size: Inputs of the products at the beginning of a block.
    """
    first = next(i for i, op in enumerate(ops) if op.kind in LINEAR and not op.frozen)
    result = [op for op in ops[:first] if op.cover is not Cover.INPUT_GRADIENT]
    begins = any(op.kind is OpKind.ATTENTION for op in ops[first:])
    for op in ops[first:]:
        if op.kind is OpKind.ATTENTION:
            break
        if op.kind in LINEAR and op.k == hidden_size:
            result.append(replace(op, frozen=True))  # the gradient of the input alone
            if op.frozen and not begins:
                break
    return tuple(result)


def gathered_once(task: RankTask, shards: int) -> int:
    """Parameters of a frozen embedding that ZeRO-3 gathers once a microbatch, as no gradient comes to it.

    Without a pipeline FSDP takes it for what is needed next after the first layer's backward, and gathers it.
    Shards are filled up to whole rows for every rank.
    """
    spec, layout = task.spec, task.layout
    if task.adapter is None or task.stage > 0 or layout.pp == 1 or layout.zero_stage < SHARDS_PARAMETERS:
        return 0
    tables = (-(-spec.vocab_size // layout.tp), spec.learned_positions)
    return sum(-(-rows // shards) * shards for rows in tables) * spec.hidden_size
