"""One operation of a layer on one rank, and constructors giving its FLOPs, bytes and saved activations.

Legend: ``B`` microbatch sequences, ``S`` sequence length, ``T`` = B·S/cp tokens of a rank, ``H`` hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from costmodel.kernels.precisions import PRECISIONS
from costmodel.parallel.axes import AxisName
from topology.base.arrays import Quantity

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"]
Phase = Literal["forward", "backward"]


class OpKind(Enum):
    """What runs: a matrix product, one per expert, a convolution, an attention core, a pass, a message.

    A `CAST` quantises operands, forward or backward as its phase says; any other pass runs in both.
    `SCORES` are passes over the square of scores that an unfused attention core writes, a `SCAN` is the
    chunked recurrence of a mixer without attention, or what an indexer scores: priced by their roofline.
    """

    GEMM = "gemm"
    GROUPED_GEMM = "grouped_gemm"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    SCORES = "scores"
    ELEMENTWISE = "elementwise"
    CAST = "cast"
    SCAN = "scan"
    COLLECTIVE = "collective"


LINEAR = (OpKind.GEMM, OpKind.GROUPED_GEMM)
TABLED = (OpKind.GEMM, OpKind.CONVOLUTION)  # priced by the tables of matrix products


class Cover(Enum):
    """What a collective may hide under: chunks of its product, the input gradient, attention, or nothing."""

    GEMM = "gemm"
    INPUT_GRADIENT = "input gradient"
    ATTENTION = "attention"
    NOTHING = "nothing"


HALF_BYTES = 2  # bf16 and fp16 activations
FLOAT_BYTES = 4  # fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardShape:
    """What one rank sees of a layer: the degrees that cut it, and one microbatch.

    `sequence_length` is that of the job (before cp); `cp_kind` is a code of `layout.CP_KINDS`. Fields are
    numbers or arrays that broadcast together.
    """

    sequence_length: Quantity
    tp: Quantity = 1
    cp: Quantity = 1
    ep: Quantity = 1
    expert_tp: Quantity = 1
    microbatch_size: Quantity = 1
    sequence_parallel: Quantity = False
    cp_kind: Quantity = 0

    @property
    def tokens(self) -> Quantity:
        """Tokens of one microbatch on one rank: B·S/cp."""
        return self.microbatch_size * self.sequence_length / self.cp

    @property
    def sequence_shards(self) -> Quantity:
        """Ranks sharing the activations outside tensor-parallel regions: tp if sequence parallel, else 1."""
        return self.sequence_parallel * (self.tp - 1) + 1

    @property
    def sharded_tokens(self) -> Quantity:
        """Tokens of one microbatch on one rank outside tensor-parallel regions."""
        return self.tokens / self.sequence_shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of a forward pass on one rank; unused fields are zero.

    A GEMM computes (m, k) @ (k, n), `count` times; its backward is the two GEMMs (m, n) @ (n, k) and
    (k, m) @ (m, n), derived by the reader. A grouped GEMM runs `experts` of them with m rows each. `flop` and
    `bytes` (HBM traffic) are those of the whole forward operation. `saved_bytes` is what autograd keeps
    of the operation until its backward; the two fields after it say what stays under the recompute
    policies ``selective`` (modules of a layer recomputed, whose operations are `repeated`; those of a whole
    block are `relaunched`, from its input alone) and
    ``selective-op`` (matmul outputs kept, the rest recomputed); `working_bytes` are temporaries of the
    backward that the sizes do not tell, beside those that `costmodel.memory.activations` derives, and
    `gradient_bytes` gradients that it has at once when what later operations kept is gone. A
    collective has its `collective`, `axis` and `collective_bytes` in the convention of
    `costmodel.kernels.collectives.collective_time`; `phase` says when
    it runs, and `cover` what it may hide under. A product `joins` so many matrices side by side. Where
    another operation needs the kept input for its own gradient, `input_is_shared`. A `frozen` operation has
    no weight gradient, no trained parameters, and `frozen_bytes` of weights; one that runs `forward_only`
    has no gradient of its input either, as nothing before it is trained. A pass with a `trait` runs only
    where the GPU's generation has it. `name` is a label for people: nothing is decided by it.
    """

    name: str
    kind: OpKind
    dtype: str = "bf16"
    count: Quantity = 1
    m: Quantity = 0
    n: Quantity = 0
    k: Quantity = 0
    experts: Quantity = 0
    batch: Quantity = 0
    heads: Quantity = 0
    kv_heads: Quantity = 0
    query_tokens: Quantity = 0
    kv_tokens: Quantity = 0
    head_dim: Quantity = 0
    value_head_dim: Quantity = 0
    window: int | None = None
    windowed_share: float = 0.0
    fused: bool = True
    flop: Quantity = 0
    bytes: Quantity = 0
    parameters: Quantity = 0
    saved_bytes: Quantity = 0
    saved_bytes_selective: Quantity = 0
    saved_bytes_op: Quantity = 0
    repeated: bool = False
    relaunched: bool = False
    working_bytes: Quantity = 0
    gradient_bytes: Quantity = 0
    collective: Collective | None = None
    axis: AxisName | None = None
    collective_bytes: Quantity = 0
    phase: Phase = "forward"
    cover: Cover = Cover.GEMM
    joins: int = 1
    input_is_shared: bool = False
    frozen: bool = False
    frozen_bytes: Quantity = 0
    forward_only: bool = False
    trait: Literal["", "one_operand_layout"] = ""


def norm_saved_bytes(size: Quantity, *, wide: bool, trained: bool) -> Quantity:
    """What a norm keeps of an input of `size` bytes in sixteen bits: it; or, `wide`, an fp32 copy of it.

    A chain of operations in fp32 keeps x in fp32 for the square and the product with 1/rms, and the normed
    values in sixteen bits for the gradient of a weight that is trained.
    """
    return size * (FLOAT_BYTES / HALF_BYTES + trained) if wide else size


def gemm(
    name: str,
    *,
    m: Quantity,
    n: Quantity,
    k: Quantity,
    dtype: str = "bf16",
    bias: Quantity = 0,
    saved_elements: Quantity,
    output_elements: Quantity | None = None,
) -> Op:
    """Give a linear layer: 2·m·n·k FLOP, reading its input and weight and writing its output.

    Args:
        name: What the linear computes.
        m: Tokens it runs on.
        n: Output features of this rank.
        k: Input features of this rank.
        dtype: What it multiplies in; the saved input has that width.
        bias: Bias parameters of this rank.
        saved_elements: Elements of the input kept for the weight gradient (0 if another op keeps them).
        output_elements: Elements of the output kept by ``selective-op``; m·n when not reduced over ranks.
    """
    width = PRECISIONS[dtype].activation_bytes
    kept = m * n if output_elements is None else output_elements
    saved = width * saved_elements
    return Op(
        name=name,
        kind=OpKind.GEMM,
        dtype=dtype,
        m=m,
        n=n,
        k=k,
        flop=2 * m * n * k,
        bytes=width * (m * k + n * k) + HALF_BYTES * m * n,
        parameters=n * k + bias,
        saved_bytes=saved,
        saved_bytes_selective=saved,
        saved_bytes_op=HALF_BYTES * kept,
    )


def grouped_gemm(
    name: str,
    *,
    experts: Quantity,
    m: Quantity,
    n: Quantity,
    k: Quantity,
    dtype: str = "bf16",
    bias: Quantity = 0,
) -> Op:
    """Give the same linear layer of `experts` local experts, m tokens each; its inputs are saved."""
    width = PRECISIONS[dtype].activation_bytes
    saved = width * experts * m * k
    return Op(
        name=name,
        kind=OpKind.GROUPED_GEMM,
        dtype=dtype,
        experts=experts,
        m=m,
        n=n,
        k=k,
        flop=2 * experts * m * n * k,
        bytes=experts * (width * (m * k + n * k) + HALF_BYTES * m * n),
        parameters=experts * (n * k + bias),
        saved_bytes=saved,
        saved_bytes_selective=saved,
        saved_bytes_op=HALF_BYTES * experts * m * n,
    )


def elementwise(
    name: str,
    *,
    traffic_bytes: Quantity,
    saved_bytes: Quantity = 0,
    parameters: Quantity = 0,
    saved_bytes_op: Quantity = 0,
    count: Quantity = 1,
) -> Op:
    """Give a memory-bound pass over activations of `traffic_bytes` reads and writes in `count` kernels."""
    return Op(
        name=name,
        kind=OpKind.ELEMENTWISE,
        count=count,
        bytes=traffic_bytes,
        parameters=parameters,
        saved_bytes=saved_bytes,
        saved_bytes_selective=saved_bytes,
        saved_bytes_op=saved_bytes_op,
    )


def communicate(
    name: str,
    collective: Collective,
    axis: AxisName,
    size_bytes: Quantity,
    phase: Phase = "forward",
    *,
    count: int = 1,
    cover: Cover = Cover.GEMM,
) -> Op:
    """Give a collective over an axis of the layout: `size_bytes` in all, in `count` messages."""
    return Op(
        name=name,
        kind=OpKind.COLLECTIVE,
        count=count,
        collective=collective,
        axis=axis,
        collective_bytes=size_bytes,
        phase=phase,
        cover=cover,
    )


def repeat(op: Op) -> Op:
    """The same operation, whose forward runs again under ``selective``."""
    return replace(op, repeated=True)


def repeat_block(ops: Sequence[Op], *, keeps: Quantity = 0.0) -> tuple[Op, ...]:
    """The same operations, whose whole forward runs again under ``selective``, its messages too.

    Args:
        ops: A block from its input to its output.
        keeps: Bytes that its first operation keeps all the same: the input of the block.
    """
    result = [replace(op, saved_bytes_selective=0.0, repeated=True, relaunched=True) for op in ops]
    return (replace(result[0], saved_bytes_selective=keeps), *result[1:])


def drop_input(op: Op) -> Op:
    """The same operation, whose input is made again under ``selective``."""
    return replace(op, saved_bytes_selective=0.0)


def reduced_elements(shard: ShardShape, size: int, *, keeps_partial_sums: bool) -> Quantity:
    """Elements that ``selective-op`` keeps of a projection summed over tp: the sum, and its part if kept."""
    partial = (shard.tp > 1) * shard.sequence_parallel * keeps_partial_sums
    return (shard.sharded_tokens + partial * shard.tokens) * size


def enter_tensor_parallel(name: str, shard: ShardShape, hidden_size: float) -> tuple[Op, ...]:
    """Collectives entering a tensor-parallel region (``g`` of Korthikanti et al. 2022, figure 5).

    With sequence parallelism: all-gather forward; backward the reduce-scatter of its gradient, and the
    all-gather that brings the saved shard back for the weight gradient. Without: all-reduce of the
    gradient.
    """
    message = HALF_BYTES * shard.tokens * hidden_size * (shard.tp > 1)
    sharded = message * shard.sequence_parallel
    return (
        communicate(f"{name}_gather", "all_gather", "tp", sharded),
        communicate(f"{name}_regather", "all_gather", "tp", sharded, "backward", cover=Cover.INPUT_GRADIENT),
        communicate(f"{name}_gradient_scatter", "reduce_scatter", "tp", sharded, "backward"),
        communicate(f"{name}_gradient_reduce", "all_reduce", "tp", message - sharded, "backward"),
    )


def leave_tensor_parallel(name: str, shard: ShardShape, hidden_size: float) -> tuple[Op, ...]:
    """Collectives leaving a tensor-parallel region (``ḡ`` of Korthikanti et al. 2022, figure 5)."""
    message = HALF_BYTES * shard.tokens * hidden_size * (shard.tp > 1)
    sharded = message * shard.sequence_parallel
    return (
        communicate(f"{name}_scatter", "reduce_scatter", "tp", sharded),
        communicate(f"{name}_reduce", "all_reduce", "tp", message - sharded),
        communicate(f"{name}_gradient_gather", "all_gather", "tp", sharded, "backward"),
    )
