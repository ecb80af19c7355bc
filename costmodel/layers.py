"""The per-layer table: every operation of a layer with its sizes, FLOPs, bytes, parameters and saved activations.

One rank's share is described: pass a `ShardShape` of degrees (numbers, or arrays of many layouts) and every
field of every `Op` broadcasts. With all degrees 1 the table is the whole layer, and its parameters sum to
`model.layer_parameters` exactly.

Legend: ``B`` microbatch sequences, ``S`` sequence length, ``T`` = B·S/cp tokens of a rank, ``H`` hidden size,
``a`` query heads, ``g`` key/value heads, ``d`` head size, ``F`` feed-forward size, ``E`` experts, ``K`` experts
per token, ``V`` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from costmodel.layout import Quantity
from costmodel.model import LayerKind, ModelSpec
from costmodel.stack import SoftwareStack
from costmodel.workload import TrainingJob

OpKind = Literal["gemm", "grouped_gemm", "attention", "elementwise", "collective"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"]
Axis = Literal["tp", "cp", "ep", "expert_tp", "dp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardShape:
    """What one rank sees of a layer: the degrees that cut it, and one microbatch.

    `sequence_length` is that of the job (before cp). Fields are numbers or arrays that broadcast together.
    """

    tp: Quantity = 1
    cp: Quantity = 1
    ep: Quantity = 1
    expert_tp: Quantity = 1
    microbatch_size: Quantity = 1
    sequence_length: Quantity
    sequence_parallel: Quantity = False

    @property
    def tokens(self) -> Quantity:
        """Tokens of one microbatch on one rank: B·S/cp."""
        return self.microbatch_size * self.sequence_length / self.cp

    @property
    def sequence_shards(self) -> Quantity:
        """Ranks that share the activations outside tensor-parallel regions: tp if sequence parallel, else 1."""
        return self.sequence_parallel * (self.tp - 1) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of a forward pass on one rank; unused fields are zero.

    A GEMM computes (m, k) @ (k, n), `count` times; its backward is the two GEMMs (m, n, k → k, n) and
    (k, m, n), derived by the reader. A grouped GEMM runs `experts` of them with m rows each. `flop` and `bytes`
    (HBM traffic) are the forward pass of all `count`. `saved_bytes` is what autograd keeps of the op until its
    backward. A collective has its `collective`, `axis`, and `collective_bytes` in the convention of
    `costmodel.collectives.collective_time`; `phase` says when it runs.
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
    window: int | None = None
    windowed_share: float = 0.0
    fused: bool = True
    flop: Quantity = 0
    bytes: Quantity = 0
    parameters: Quantity = 0
    saved_bytes: Quantity = 0
    collective: Collective | None = None
    axis: Axis | None = None
    collective_bytes: Quantity = 0
    phase: Literal["forward", "backward"] = "forward"


def layer_ops(
    model: ModelSpec, kind: LayerKind, job: TrainingJob, stack: SoftwareStack, shard: ShardShape
) -> tuple[Op, ...]:
    """Operations of one layer's forward pass on one rank, then the collectives only its backward has."""
    return ()


def embedding_ops(model: ModelSpec, job: TrainingJob, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """Operations of the token embedding on the first stage."""
    return ()


def head_ops(model: ModelSpec, job: TrainingJob, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """Final norm, output projection, and the loss over the vocabulary, on the last stage."""
    return ()
