"""The kinds of attention, one record each: heads, parameters, cache, who may cut it, words in engines.

All answer to the same names, so what is asked of a layer is asked of `ModelSpec.attention` and no reader
tells the kinds apart by their sizes. A new kind is its record here, in `ATTENTION_KINDS`, its fields in
`costmodel.models.spec`, its operations in `costmodel.ops.mixers`, by `name` in `costmodel.ops.layer`, and
its reader in `costmodel.models.hf`; to run it, its module in `executor.model.transformer`.

Legend: ``H`` hidden size, ``a`` query heads, ``g`` key/value heads, ``d`` head size, ``q`` and ``r`` the
query and key/value ranks of latent attention; each of ``ways`` tensor-parallel ranks holds its heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from costmodel.models.compressed_attention import CompressedAttention, CompressedReach
from costmodel.models.feed_forward import BlockName
from costmodel.models.mechanism import ENGINES_WITH_A_MODEL, UNASKED, AttentionRecord, Cut, EngineWords

AttentionName = Literal["grouped", "latent", "compressed"]
SizedReach = Literal["local", "global"]
Reach: TypeAlias = CompressedReach | SizedReach
"""How far layers see whose kind of attention has several reaches."""
KEYS_AND_VALUES = 2  # products that make a layer's keys and values


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention(AttentionRecord):
    """Multi-head and grouped-query attention: a query heads share g heads of keys and values."""

    name: ClassVar[AttentionName] = "grouped"
    named: ClassVar[str] = "grouped heads"
    shares_keys: ClassVar[bool] = True
    more_kernels: ClassVar[int] = 0
    decode_width: ClassVar[int] = 0

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_share: float
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    sinks: bool
    gate: bool = False
    index_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    index_share: float = 1.0
    """Of layers with an indexer."""
    products: int = KEYS_AND_VALUES
    """That make keys and values: 1 where values are keys."""

    @classmethod
    def of(cls, model: Any) -> GroupedAttention:
        """The record of a model's attention."""
        return cls(**_grouped_sizes(model))

    @property
    def index_parameters(self) -> int:
        """Those of an indexer in the mean of all layers: its heads' queries and one key, each with a norm."""
        n, d = self.index_heads, self.index_head_dim
        return round(self.index_share * (self.hidden_size * (n + 1) * d + 2 * d)) if n else 0

    @property
    def replicated_parameters(self) -> int:
        """Parameters that every rank holds whole: the indexer."""
        return self.index_parameters

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Query heads, and heads of keys and values."""
        return (
            _query_heads(self.num_attention_heads),
            Cut(law="kv-heads", axis="tp", field="num_key_value_heads", size=self.num_key_value_heads),
        )

    @property
    def split_widths(self) -> tuple[int, ...]:
        """Sides of products that tensor parallelism cuts."""
        query = self.num_attention_heads * self.head_dim
        return query, query, self.num_key_value_heads * self.head_dim

    @property
    def whole_widths(self) -> tuple[int, ...]:
        """Sides of products that no rank cuts."""
        return ()

    @property
    def qk_head_dim(self) -> int:
        """Width of one query head."""
        return self.head_dim

    @property
    def value_head_dim(self) -> int:
        """Width of one value head."""
        return self.head_dim

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a query head that rotary positions turn."""
        return int(self.head_dim * self.rotary_share)

    @property
    def whole_heads(self) -> int:
        """Heads that ranks cannot split further: those of keys and values."""
        return self.num_key_value_heads

    @property
    def cached_groups(self) -> int:
        """Heads of keys and values that ranks can cache apart."""
        return self.num_key_value_heads

    @property
    def decode_widths(self) -> tuple[int, int]:
        """Numbers of a head's query and output while it decodes."""
        return self.qk_head_dim, self.value_head_dim

    @property
    def parameters(self) -> int:
        """H·(a + 2g)·d + a·d·H, another H·a·d with a gate, biases, head norms and sinks, an indexer.

        H·g·d less where values are keys.
        """
        H, a, g, d = self.hidden_size, self.num_attention_heads, self.num_key_value_heads, self.head_dim
        weights = H * (a + self.products * g) * d + (1 + self.gate) * a * d * H
        biases = (a + self.products * g) * d * self.qkv_bias + H * self.output_bias
        return weights + biases + 2 * d * self.qk_norm + a * self.sinks + self.index_parameters

    def key_value_heads(self, ways: Any) -> Any:
        """Heads of keys and values that a rank computes with: g/ways, replicated once ways exceed g."""
        return np.maximum(self.num_key_value_heads / ways, 1)

    def cached_heads(self, ways: int) -> float:
        """Heads of keys and values in a rank's cache."""
        return max(self.num_key_value_heads / ways, 1)

    def cached_numbers(self, ways: int) -> float:
        """Numbers that a rank caches of one token and layer."""
        return self.cached_heads(ways) * (self.qk_head_dim + self.value_head_dim)

    def projections(self, ways: int) -> tuple[tuple[float, float], ...]:
        """(n, k) of the query-key-value and output projections of one rank."""
        query = self.num_attention_heads * self.head_dim / ways
        into = (1 + self.gate) * query + self.products * self.cached_heads(ways) * self.head_dim
        return (into, self.hidden_size), (self.hidden_size, query)


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalHeads:
    """Heads of the layers without a window, where they have others; of queries there are as many (Gemma 4).

    Attributes:
        num_key_value_heads: Heads of keys and values.
        head_dim: Numbers of a head.
        key_value_products: 2, or 1 where values are keys before their norm and positions (attention_k_eq_v).
    """

    num_key_value_heads: int
    head_dim: int
    key_value_products: int = KEYS_AND_VALUES


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSizedAttention(GroupedAttention):
    """Grouped heads of one size in ``local`` layers, with a window, and of another in ``global`` ones.

    Sizes are those of local layers; a layer is asked by `costmodel.models.kinds.model_of_layer`.
    """

    named: ClassVar[str] = "heads of two sizes"
    mark: ClassVar[str] = "global_heads"
    parts: ClassVar[tuple[str, ...]] = ("global_heads",)
    letters: ClassVar[Mapping[str, tuple[SizedReach, BlockName]]] = {
        "w": ("local", "dense"),
        "g": ("global", "dense"),
        "N": ("local", "moe"),
        "G": ("global", "moe"),
    }
    predicting_reach: ClassVar[SizedReach] = "global"
    engines: ClassVar[Mapping[str, EngineWords]] = {}
    adapts: ClassVar[bool] = False

    global_key_value_heads: int

    @classmethod
    def of(cls, model: Any) -> TwoSizedAttention:
        """The record of a model's attention."""
        heads = model.global_heads.num_key_value_heads
        return cls(**_grouped_sizes(model), global_key_value_heads=heads)

    @classmethod
    def misfit(cls, model: Any) -> tuple[str, str] | None:
        """Products of keys and values that no layer has."""
        products = model.global_heads.key_value_products
        cause = f"{products} products make the keys and values of its global layers"
        return (cause, "give 2, or 1 where values are keys") if products > KEYS_AND_VALUES else None

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Query heads, and heads of keys and values of both sizes."""
        counts = (self.num_key_value_heads, self.global_key_value_heads)
        heads = (Cut(law="kv-heads", axis="tp", field="num_key_value_heads", size=count) for count in counts)
        return (_query_heads(self.num_attention_heads), *heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(AttentionRecord):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1).

    The query goes through rank q, keys and values through rank r plus a shared rotary key, each rank with its
    own norm; down-projections are whole on every rank. Decode works on the latent: one key/value head of
    r + rope numbers that all query heads read.
    """

    name: ClassVar[AttentionName] = "latent"
    named: ClassVar[str] = "latent attention"
    mark: ClassVar[str] = "kv_lora_rank"
    counts: ClassVar[tuple[str, ...]] = (
        "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_heads",
        "index_head_dim", "index_topk", "index_layers", "unindexed_layers",
    )  # fmt: skip
    sizes: ClassVar[tuple[str, ...]] = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    pattern: ClassVar[Literal["", "mla"]] = "mla"
    modules: ClassVar[frozenset[str]] = frozenset({"layernorm", "mla_up_proj"})
    engines: ClassVar[Mapping[str, EngineWords]] = {
        **dict.fromkeys(ENGINES_WITH_A_MODEL, UNASKED),
        "megatron": EngineWords(
            flag="--multi-latent-attention",
            sizes={
                "--kv-lora-rank": ("kv_lora_rank", 32),
                "--qk-head-dim": ("qk_nope_head_dim", 128),
                "--v-head-dim": ("v_head_dim", 128),
                "--qk-pos-emb-head-dim": ("qk_rope_head_dim", 64),
                "--q-lora-rank": ("q_lora_rank", None),
            },
        ),
    }
    adapts: ClassVar[bool] = False
    joins_split_caches: ClassVar[bool] = True
    shares_keys: ClassVar[bool] = False
    more_kernels: ClassVar[int] = 6  # two norms, two absorbed products, split and join of the rotary part

    hidden_size: int
    num_attention_heads: int
    query_rank: int
    rank: int
    nope_dim: int
    rotary_dim: int
    value_head_dim: int
    gate: bool = False
    index_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    index_share: float = 1.0
    """Of layers whose indexer is their own; the others reuse the choice of one before."""

    @classmethod
    def of(cls, model: Any) -> LatentAttention:
        """The record of a model's attention."""
        return cls(
            hidden_size=model.hidden_size,
            num_attention_heads=model.num_attention_heads,
            query_rank=model.q_lora_rank,
            rank=model.kv_lora_rank,
            nope_dim=model.qk_nope_head_dim,
            rotary_dim=model.qk_rope_head_dim,
            value_head_dim=model.v_head_dim,
            gate=model.attention_gate,
            index_heads=model.index_heads,
            index_head_dim=model.index_head_dim,
            index_topk=model.index_topk,
            index_share=model.index_share,
        )

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Query heads, which have their own keys and values."""
        return (_query_heads(self.num_attention_heads),)

    @property
    def split_widths(self) -> tuple[int, ...]:
        """Sides of products that tensor parallelism cuts."""
        return self.num_attention_heads * self.qk_head_dim, self.num_attention_heads * self.value_head_dim

    @property
    def whole_widths(self) -> tuple[int, ...]:
        """Sides of products that no rank cuts: the ranks, that of keys with their rotary part."""
        return self.query_rank, self.rank + self.rotary_dim

    @property
    def qk_head_dim(self) -> int:
        """Width of one query head: the part without and the part with rotary positions."""
        return self.nope_dim + self.rotary_dim

    @property
    def whole_heads(self) -> int:
        """Heads that ranks cannot split further: every query head has its keys and values."""
        return self.num_attention_heads

    @property
    def parameters(self) -> int:
        """H·q + q + q·a·(nope + rope), or H·a·(nope + rope), + H·(r + rope) + r + r·a·(nope + v) + a·v·H.

        Another a·v·H with a gate.
        """
        H, a, q, r = self.hidden_size, self.num_attention_heads, self.query_rank, self.rank
        width = a * self.qk_head_dim
        query = H * q + q + q * width if q else H * width
        key_value = H * (r + self.rotary_dim) + r + r * a * (self.nope_dim + self.value_head_dim)
        output = (1 + self.gate) * a * self.value_head_dim * H
        return query + key_value + output + self.index_parameters

    @property
    def index_parameters(self) -> int:
        """Those of an indexer: its queries from rank q, one normed key, and a weight of each of its heads.

        Of a layer in the mean, where some reuse another's choice.
        """
        n, d = self.index_heads, self.index_head_dim
        whole = self.query_rank * n * d + self.hidden_size * (d + n) + 2 * d if n else 0
        return round(self.index_share * whole)

    @property
    def decode_width(self) -> int:
        """Multiplications of a head with one cached position that may bound a decode kernel: 2r + rope."""
        return 2 * self.rank + self.rotary_dim

    @property
    def cached_groups(self) -> int:
        """Heads of keys and values that ranks can cache apart: the latent is one."""
        return 1

    @property
    def decode_widths(self) -> tuple[int, int]:
        """Numbers of a head's query and output while it decodes on the latent: r + rope, and r."""
        return self.rank + self.rotary_dim, self.rank

    @property
    def replicated_parameters(self) -> int:
        """Parameters that every rank holds whole: the down-projections, their norms, and the indexer."""
        ranks = self.query_rank + self.rank
        return self.hidden_size * (ranks + self.rotary_dim) + ranks + self.index_parameters

    def key_value_heads(self, ways: Any) -> Any:
        """Heads of keys and values that a rank computes with: as many as query heads."""
        return self.num_attention_heads / ways

    def cached_heads(self, ways: int) -> float:
        """Heads of keys and values in a rank's cache: the latent."""
        del ways
        return 1.0

    def cached_numbers(self, ways: int) -> float:
        """Numbers that a rank caches of one token and layer: r + rope, on as many ranks as there are."""
        del ways
        return self.rank + self.rotary_dim

    def projections(self, ways: int) -> tuple[tuple[float, float], ...]:
        """(n, k) of one rank's projections: down on every rank, heads split over ranks."""
        H, q, r, rope = self.hidden_size, self.query_rank, self.rank, self.rotary_dim
        heads = self.num_attention_heads / ways
        width = self.num_attention_heads * self.qk_head_dim / ways
        query = ((q + r + rope, H), (width, q)) if q else ((width + r + rope, H),)
        gate = ((heads * self.value_head_dim, H),) if self.gate else ()
        return (
            *query,
            *gate,
            (heads * (self.nope_dim + self.value_head_dim), r),
            (H, heads * self.value_head_dim),
        )


def _grouped_sizes(model: Any) -> dict[str, Any]:
    """Sizes of a model's grouped heads, by the fields of their record."""
    return {
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "rotary_share": model.rotary.fraction,
        "qkv_bias": model.qkv_bias,
        "output_bias": model.attention_output_bias,
        "qk_norm": model.qk_norm,
        "sinks": model.attention_sinks,
        "gate": model.attention_gate,
        "index_heads": model.index_heads,
        "index_head_dim": model.index_head_dim,
        "index_topk": model.index_topk,
        "index_share": model.index_share,
        "products": model.key_value_products,
    }


def _query_heads(heads: int) -> Cut:
    """Query heads, of which every rank has as many."""
    return Cut(law="attention-heads", axis="tp", field="num_attention_heads", size=heads)


AttentionKind: TypeAlias = GroupedAttention | TwoSizedAttention | LatentAttention | CompressedAttention
ATTENTION_KINDS: tuple[type[AttentionKind], ...] = (CompressedAttention, LatentAttention, TwoSizedAttention,
                                                    GroupedAttention)  # fmt: skip
"""Every kind; the first that describes a model is its own."""
