"""Attention to compressed keys (DeepSeek-V4): a window of tokens, an entry for every few before it.

Every head reads the same keys, which are values too. A layer is of one of three kinds: ``window`` sees the
last tokens alone; ``heavy`` also one entry for every 128 tokens; ``sparse`` also those entries, one for every
four tokens, that an indexer chose. Queries go through a rank, outputs of groups of heads through one each.

Legend: ``H`` hidden size, ``a`` query heads, ``d`` head size, ``q`` query rank, ``g`` groups of outputs,
``o`` the rank of each, ``n`` and ``e`` heads of the indexer and their size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from costmodel.models.feed_forward import BlockName
from costmodel.models.mechanism import AttentionRecord, Cut, EngineWords

CompressedName = Literal["compressed"]
CompressedReach = Literal["window", "heavy", "sparse"]
SERIES = 2  # products that make an entry: what is summed, and its weights
OVERLAPPING = 2  # sparse entries are each of two windows of tokens, with products of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCompression:
    """Sizes of compressed attention that other kinds have not.

    Attributes:
        output_groups: g, groups that the outputs of all heads are in.
        output_rank: o, numbers that the outputs of a group are projected to.
        sparse_rate: Tokens to an entry that an indexer chooses among.
        heavy_rate: Tokens to an entry that all later tokens see.
    """

    output_groups: int
    output_rank: int
    sparse_rate: int = 4
    heavy_rate: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention(AttentionRecord):
    """The record of compressed attention: its heads, parameters and projections."""

    name: ClassVar[CompressedName] = "compressed"
    named: ClassVar[str] = "compressed attention"
    mark: ClassVar[str] = "compression"
    parts: ClassVar[tuple[str, ...]] = ("compression",)
    letters: ClassVar[Mapping[str, tuple[CompressedReach, BlockName]]] = {
        "W": ("window", "moe"),
        "H": ("heavy", "moe"),
        "S": ("sparse", "moe"),
    }
    predicting_reach: ClassVar[CompressedReach] = "window"
    context_law: ClassVar[str] = "compression-context"
    modules: ClassVar[frozenset[str]] = frozenset({"layernorm", "mla_up_proj"})
    is_measured: ClassVar[bool] = False
    engines: ClassVar[Mapping[str, EngineWords]] = {}
    whole_in_transformers: ClassVar[str] = "attention to compressed keys"
    sizes: ClassVar[tuple[str, ...]] = ("q_lora_rank", "index_heads", "index_head_dim", "index_topk")
    shares_keys: ClassVar[bool] = False  # one key for all heads, whole on every rank
    more_kernels: ClassVar[int] = 6
    decode_width: ClassVar[int] = 0
    cached_groups: ClassVar[int] = 1

    hidden_size: int
    num_attention_heads: int
    head_dim: int
    rotary_dim: int
    query_rank: int
    index_heads: int
    index_head_dim: int
    compression: AttentionCompression

    @classmethod
    def of(cls, model: Any) -> CompressedAttention:
        """The record of a model's attention."""
        return cls(
            hidden_size=model.hidden_size,
            num_attention_heads=model.num_attention_heads,
            head_dim=model.head_dim,
            rotary_dim=int(model.head_dim * model.rotary.fraction),
            query_rank=model.q_lora_rank,
            index_heads=model.index_heads,
            index_head_dim=model.index_head_dim,
            compression=model.compression,
        )

    @classmethod
    def misfit(cls, model: Any) -> tuple[str, str] | None:
        """Groups that do not divide the heads' numbers."""
        c = model.compression
        if model.num_attention_heads * model.head_dim % c.output_groups:
            width = f"{model.num_attention_heads} heads x {model.head_dim}"
            cause = f"{width} numbers in {c.output_groups} groups of outputs"
            return cause, "give a number of groups that divides them"
        return None

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Query heads, and groups of their outputs."""
        heads, groups = self.num_attention_heads, self.compression.output_groups
        return (
            Cut(law="attention-heads", axis="tp", field="num_attention_heads", size=heads),
            Cut(law="output-groups", axis="tp", field="output_groups", size=groups),
        )

    @property
    def whole_sequence(self) -> str:
        """Nobody published how entries and the window would reach tokens of other ranks."""
        rates = f"{self.compression.sparse_rate} or {self.compression.heavy_rate}"
        return (
            f"attention sees an entry for every {rates} tokens before, on all ranks of a sequence, "
            "and no profile prices what these would exchange"
        )

    @property
    def split_widths(self) -> tuple[int, ...]:
        """Sides of products that tensor parallelism cuts."""
        query = self.num_attention_heads * self.head_dim
        return query, query

    @property
    def whole_widths(self) -> tuple[int, ...]:
        """Sides of products that no rank cuts."""
        return (self.query_rank,)

    @property
    def qk_head_dim(self) -> int:
        """Width of one query head."""
        return self.head_dim

    @property
    def value_head_dim(self) -> int:
        """Width of one value head: keys are values."""
        return self.head_dim

    @property
    def whole_heads(self) -> int:
        """Groups of heads that ranks cannot split further."""
        return self.compression.output_groups

    @property
    def decode_widths(self) -> tuple[int, int]:
        """Numbers of a head's query and output while it decodes."""
        return self.head_dim, self.head_dim

    @property
    def parameters(self) -> int:
        """Those that layers of every reach have: H·q + q + q·a·d + H·d + d + a·d·o + g·o·H + a."""
        H, a, d, q = self.hidden_size, self.num_attention_heads, self.head_dim, self.query_rank
        g, o = self.compression.output_groups, self.compression.output_rank
        return H * q + q + q * a * d + H * d + d + a * d * o + g * o * H + a

    @property
    def replicated_parameters(self) -> int:
        """Of these, what every rank holds whole: projections down to q and to the key, and their norms."""
        return (self.hidden_size + 1) * (self.query_rank + self.head_dim)

    def further_parameters(self, mixer: str) -> int:
        """Parameters of what makes entries, and of the indexer."""
        return self.compressor_parameters(reach_of(mixer))

    def compressor_parameters(self, reach: CompressedReach) -> int:
        """Parameters of what makes entries, and of the indexer; whole on every rank.

        Two products of H with d numbers, twice that where entries overlap; as many biases for every token of
        an entry, and a norm. An indexer makes entries of e numbers likewise, its queries from rank q, and a
        weight for each of its heads.
        """
        H, d, c = self.hidden_size, self.head_dim, self.compression
        if reach == "window":
            return 0
        if reach == "heavy":
            return SERIES * H * d + c.heavy_rate * d + d
        n, e, wide = self.index_heads, self.index_head_dim, OVERLAPPING
        made = sum(SERIES * H * wide * size + c.sparse_rate * wide * size + size for size in (d, e))
        return made + self.query_rank * n * e + H * n

    def entry_products(self, reach: CompressedReach) -> int:
        """Numbers that products of H make of a token: for its entries, an indexer's, and its weights."""
        if reach == "window":
            return 0
        if reach == "heavy":
            return SERIES * self.head_dim
        return SERIES * OVERLAPPING * (self.head_dim + self.index_head_dim) + self.index_heads

    def key_value_heads(self, ways: Any) -> Any:
        """Heads of keys that a rank computes with: the one there is."""
        return ways / ways

    def cached_heads(self, ways: int) -> float:
        """Heads of keys in a rank's cache."""
        del ways
        return 1.0

    def cached_numbers(self, ways: int) -> float:
        """Numbers that a rank caches of one token and layer of a window; keys are values."""
        del ways
        return self.head_dim

    def projections(self, ways: int) -> tuple[tuple[float, float], ...]:
        """(n, k) of one rank's projections: down on every rank, heads and groups split over ranks."""
        H, a, d, q = self.hidden_size, self.num_attention_heads, self.head_dim, self.query_rank
        g, o = self.compression.output_groups, self.compression.output_rank
        return (q + d, H), (a * d / ways, q), (g * o / ways, a * d / g), (H, g * o / ways)


_BEYOND: Mapping[str, CompressedReach] = {"heavy": "heavy", "sparse": "sparse"}


def reach_of(mixer: str) -> CompressedReach:
    """How far layers of compressed attention see; without a word of it, their window."""
    return _BEYOND.get(mixer, "window")
