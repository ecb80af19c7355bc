"""What exchanging keys and values costs in memory while attention runs backward."""

from dataclasses import replace

import pytest

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import CP_KINDS
from costmodel.memory.activations import saved_bytes
from costmodel.models.catalog import model
from costmodel.ops.layer import layer_runs
from costmodel.ops.mixers.attention import attention_ops
from costmodel.ops.op import Op, OpKind, ShardShape
from costmodel.stack import SoftwareStack, stack

ENGINE = stack("meshplan")
TOKENS, RANKS, HEADS, DIM = 8192, 4, 32, 128
Q = 2 * TOKENS // RANKS * HEADS * DIM  # bytes of a rank's queries; those of its output are as many


def attention(
    kind: str, name: str = "llama-3.1-8b", cp: int = RANKS, engine: SoftwareStack = ENGINE
) -> list[Op]:
    """Operations of the attention block of a layer whose sequence is split over `cp` ranks."""
    spec = model(name)
    job = TrainingJob(sequence_length=TOKENS, global_batch_size=8)
    shard = ShardShape(sequence_length=TOKENS, cp=cp, cp_kind=CP_KINDS.index(kind))
    return list(attention_ops(Workload(model=spec, job=job, stack=engine), layer_runs(spec)[0].kind, shard))


def core_attention_of(ops: list[Op]) -> Op:
    """The attention core."""
    return next(op for op in ops if op.kind is OpKind.ATTENTION)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ring", 5 * Q / 2 + 2 * Q),  # 8 of 32 heads are keys, as many values: k + v = q / 2
        ("allgather", 2 * RANKS * Q / 2 + 2 * Q),
        ("ulysses", Q / 2 + 4 * Q),
    ],
)
def test_each_exchange_holds_its_own_buffers(kind: str, expected: float) -> None:
    """Blocks in flight, the whole sequence's keys and values, or heads packed for a swap; none uncut."""
    assert float(core_attention_of(attention(kind)).working_bytes) == expected
    assert float(core_attention_of(attention(kind, cp=1)).working_bytes) == 0


def test_latent_attention_exchanges_decompressed_heads() -> None:
    """DeepSeek gathers 128 heads of 192 (keys) and as wide (padded) values, not its latent vectors."""
    spec = model("deepseek-v3")
    width = 2 * TOKENS // RANKS * spec.num_attention_heads * 2 * spec.qk_head_dim
    found = core_attention_of(attention("allgather", "deepseek-v3")).working_bytes
    assert float(found) == 2 * RANKS * width + width


def test_swapped_heads_keep_the_output_twice() -> None:
    """Ulysses: the kernel keeps its output by heads, the projection after it the same by tokens."""
    shard = ShardShape(sequence_length=TOKENS, cp=RANKS)
    ring, swapped = (saved_bytes(attention(kind), "none", shard, 4096) for kind in ("ring", "ulysses"))
    assert float(swapped) - float(ring) == Q


def test_gathered_keys_are_kept_where_an_engine_does_not_gather_again() -> None:
    """Those of the other ranks, and no mask of scores; engines that gather again keep their own."""
    ring, gathered = (core_attention_of(attention(kind)).saved_bytes for kind in ("ring", "allgather"))
    own_keys_and_values = Q / 2
    assert float(gathered) - float(ring) == (RANKS - 1) * own_keys_and_values
    shipped = stack("meshplan")
    frugal = replace(shipped, memory=replace(shipped.memory, keeps_gathered_keys=False))
    ring, gathered = (
        core_attention_of(attention(kind, engine=frugal)).saved_bytes for kind in ("ring", "allgather")
    )
    assert float(gathered) == float(ring)
