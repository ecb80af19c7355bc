"""What a model is, in the words of a Hugging Face ``config.json``, and how many parameters that makes.

A `ModelSpec` holds sizes, from which everything that costs (parameters per layer, runs of identical layers)
is computed by pure functions, so that a published parameter count checks the whole description. The rest of
it (rotary positions, epsilon, routing, …) costs nothing and decides what the model computes.

Legend: ``H`` hidden size, ``F`` feed-forward size, ``a`` query heads, ``g`` key/value heads, ``d`` head size,
``E`` experts, ``V`` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from costmodel.models.attention import AttentionKind, GroupedAttention, LatentAttention
from costmodel.models.feed_forward import (
    DenseFeedForward,
    FeedForwardKind,
    FeedForwardName,
    Matrices,
    RoutedExperts,
    block_parameters,
)
from costmodel.models.rotary import Rotary
from costmodel.models.routing import Routing
from topology.base.errors import InputError, shown

AttentionPattern = Literal["full", "sliding", "mla"]
NormKind = Literal["rmsnorm", "rmsnorm1p", "layernorm", "layernorm1p"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"]

LARGEST_SIZE = 10**8  # no published size comes near; a larger number is a typing error
MOST_LAYERS = 1024  # the deepest published transformer has 1,000 (DeepNet, arXiv 2203.00555)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What distinguishes one transformer layer from another of the same model.

    `sliding_share` is the fraction of the layers of this kind whose attention is windowed: alternating
    patterns (Gemma, gpt-oss) are one kind whose costs are the average of their layers.
    """

    attention: AttentionPattern
    mlp: FeedForwardName
    sliding_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """A run of `count` consecutive layers of one kind."""

    kind: LayerKind
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One decoder-only transformer.

    MLA sizes (`kv_lora_rank` > 0) and expert sizes (`num_experts` > 0) are zero when the model has none.
    `intermediate_size` is the feed-forward of dense layers; experts have `moe_intermediate_size`;
    `shared_expert_size` is the feed-forward size of all shared experts of a layer together.
    With `sliding_window_pattern` p > 0 every p-th layer has full attention and the others a window; with 0
    the last `num_sliding_layers` have one. Norms ending in ``1p`` multiply by 1 + weight.

    No cost depends on these:

    - `norm_epsilon`, `rotary`, `routing`, `activation` of the feed-forward. `swiglu_limit` clamps its two
      parts and replaces silu(g)·u by g·sigmoid(1.702·g)·(u + 1) (gpt-oss).
    - `query_pre_attn_scalar`: scores are divided by its square root; None: by that of the head's size.
    - `attn_logit_softcapping`, `final_logit_softcapping`: c·tanh(x/c) of scores and logits, None without.
    - `scale_embeddings`: embeddings are multiplied by √H.
    - `router_aux_loss_coef`: weight of the loss that balances experts in training.
    - `unmodelled`: settings of its ``config.json`` that change what it computes and that no field holds.
      Such a model is planned and exported, but not built.
    """

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_sequence_length: int
    tie_word_embeddings: bool = False
    gated_mlp: bool = True
    norm: NormKind = "rmsnorm"
    norm_epsilon: float = 1e-5
    norms_per_layer: int = 2
    rotary: Rotary = field(default_factory=Rotary)
    learned_positions: int = 0
    scale_embeddings: bool = False
    activation: Activation = "silu"
    swiglu_limit: float | None = None
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    attention_sinks: bool = False
    sliding_window: int | None = None
    num_sliding_layers: int = 0
    sliding_window_pattern: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    num_experts: int = 0
    num_experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_expert_size: int = 0
    num_dense_layers: int = 0
    routing: Routing = field(default_factory=Routing)
    router_bias: bool = False
    router_aux_loss_coef: float = 0.0
    unmodelled: tuple[str, ...] = ()
    source: str = ""
    as_of: str = ""

    def __post_init__(self) -> None:
        """Refuse sizes that no model can have."""
        _check_sizes(self)

    @property
    def is_moe(self) -> bool:
        """Whether any layer has routed experts."""
        return self.num_experts > 0

    @property
    def attention(self) -> AttentionKind:
        """The record of its attention."""
        if self.kv_lora_rank:
            return LatentAttention(
                hidden_size=self.hidden_size,
                num_attention_heads=self.num_attention_heads,
                query_rank=self.q_lora_rank,
                rank=self.kv_lora_rank,
                nope_dim=self.qk_nope_head_dim,
                rotary_dim=self.qk_rope_head_dim,
                value_head_dim=self.v_head_dim,
            )
        return GroupedAttention(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            rotary_share=self.rotary.fraction,
            qkv_bias=self.qkv_bias,
            output_bias=self.attention_output_bias,
            qk_norm=self.qk_norm,
            sinks=self.attention_sinks,
        )

    def feed_forward(self, kind: FeedForwardName | None = None) -> FeedForwardKind:
        """The record of a feed-forward block; unless said otherwise, of most of its layers."""
        matrices = Matrices(hidden_size=self.hidden_size, gated=self.gated_mlp, bias=self.mlp_bias)
        if (kind or ("moe" if self.is_moe else "dense")) == "dense":
            return DenseFeedForward(matrices=matrices, width=self.intermediate_size)
        return RoutedExperts(
            matrices=matrices,
            experts=self.num_experts,
            copies=self.num_experts_per_token,
            width=self.moe_intermediate_size,
            shared_width=self.shared_expert_size,
            router_bias=self.router_bias,
        )

    @property
    def query_size(self) -> int:
        """Width of all query heads of a layer together."""
        return self.num_attention_heads * self.qk_head_dim

    @property
    def qk_head_dim(self) -> int:
        """Width of one query head."""
        return self.attention.qk_head_dim

    @property
    def value_head_dim(self) -> int:
        """Width of one value head."""
        return self.attention.value_head_dim


def is_sliding(model: ModelSpec, layer: int) -> bool:
    """Whether the attention of a layer (from 0) is windowed.

    >>> from costmodel.models.catalog import model
    >>> [is_sliding(model("gpt-oss-20b"), layer) for layer in range(4)]
    [True, False, True, False]
    """
    if model.sliding_window is None or not model.num_sliding_layers:
        return False
    if model.sliding_window_pattern:
        return (layer + 1) % model.sliding_window_pattern != 0
    return layer >= model.num_layers - model.num_sliding_layers


def with_layers(model: ModelSpec, num_layers: int, num_dense_layers: int) -> ModelSpec:
    """The same architecture with another number of layers: windows keep their pattern, or their share.

    >>> from costmodel.models.catalog import model
    >>> with_layers(model("gemma-3-1b"), 7, 0).num_sliding_layers
    6
    """
    pattern = model.sliding_window_pattern
    share = num_layers * model.num_sliding_layers // model.num_layers
    return replace(
        model,
        num_layers=num_layers,
        num_dense_layers=num_dense_layers,
        num_sliding_layers=num_layers - num_layers // pattern if pattern else share,
    )


def layer_runs(model: ModelSpec) -> tuple[LayerRun, ...]:
    """Runs of identical layers, first to last (dense layers lead in every catalogued mixture of experts).

    >>> from costmodel.models.catalog import model
    >>> [(run.kind.mlp, run.count) for run in layer_runs(model("deepseek-v3"))]
    [('dense', 3), ('moe', 58)]
    """
    leading = model.num_dense_layers if model.is_moe else model.num_layers
    share = model.num_sliding_layers / model.num_layers
    latent = model.attention.name == "latent"
    attention: AttentionPattern = "mla" if latent else ("sliding" if share > 0 else "full")
    runs: tuple[tuple[FeedForwardName, int], ...] = (("dense", leading), ("moe", model.num_layers - leading))
    return tuple(
        LayerRun(kind=LayerKind(attention=attention, mlp=mlp, sliding_share=share), count=count)
        for mlp, count in runs
        if count > 0
    )


def norm_parameters(model: ModelSpec, width: int) -> int:
    """Parameters of one normalisation over `width`: a scale, and a shift for layer norms."""
    return width * (1 if model.norm.startswith("rms") else 2)


def layer_parameters(model: ModelSpec, kind: LayerKind) -> int:
    """Parameters of one layer of this kind, all experts included."""
    norms = model.norms_per_layer * norm_parameters(model, model.hidden_size)
    return model.attention.parameters + norms + block_parameters(model.feed_forward(kind.mlp))


def embedding_parameters(model: ModelSpec) -> int:
    """Parameters of the token embedding and, where positions are learned, theirs."""
    return (model.vocab_size + model.learned_positions) * model.hidden_size


def head_parameters(model: ModelSpec) -> int:
    """Parameters of the final norm and of the output projection (none of its own when tied)."""
    projection = 0 if model.tie_word_embeddings else model.vocab_size * model.hidden_size
    return projection + norm_parameters(model, model.hidden_size)


def parameter_count(model: ModelSpec) -> int:
    """All parameters of the model, as published (multi-token prediction modules excluded).

    >>> from costmodel.models.catalog import model
    >>> parameter_count(model("llama-3.1-70b"))
    70553706496
    """
    layers = sum(run.count * layer_parameters(model, run.kind) for run in layer_runs(model))
    return embedding_parameters(model) + layers + head_parameters(model)


def active_parameter_count(model: ModelSpec) -> int:
    """Parameters that one token passes through: only the chosen experts of each layer."""
    idle = sum(run.count * model.feed_forward(run.kind.mlp).idle_parameters for run in layer_runs(model))
    return parameter_count(model) - idle


_POSITIVE = (
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_sequence_length",
)
_COUNTS = (
    "norms_per_layer",
    "learned_positions",
    "num_sliding_layers",
    "sliding_window_pattern",
    "q_lora_rank",
    "kv_lora_rank",
    "num_experts",
    "num_experts_per_token",
    "moe_intermediate_size",
    "shared_expert_size",
    "num_dense_layers",
)
_EXPERT_SIZES = ("num_experts_per_token", "moe_intermediate_size")


def _check_sizes(model: ModelSpec) -> None:
    """Raise an InputError for a size no model can have, or for sizes that contradict each other."""
    required = _POSITIVE + model.attention.sizes + _EXPERT_SIZES * model.is_moe
    for name in (*required, *_COUNTS):
        value, least = getattr(model, name), int(name in required)
        most = MOST_LAYERS if name == "num_layers" else LARGEST_SIZE
        if not least <= value <= most:
            raise _impossible(model, f"{name} = {value}", f"give {name} between {least} and {most}")
    if model.sliding_window is not None and not 0 < model.sliding_window <= LARGEST_SIZE:
        cause = f"sliding_window = {model.sliding_window}"
        raise _impossible(model, cause, f"give a window between 1 and {LARGEST_SIZE} tokens, or none")
    a, g = model.num_attention_heads, model.num_key_value_heads
    if a % g:
        cause = f"num_attention_heads {a} is not a multiple of num_key_value_heads {g}"
        raise _impossible(model, cause, "give a number of heads that the key/value heads divide")
    if model.num_experts_per_token > model.num_experts:
        cause = f"{model.num_experts_per_token} experts per token of {model.num_experts} experts"
        raise _impossible(model, cause, "give num_experts_per_token of at most num_experts")
    routing = model.routing
    if not 1 <= routing.topk_group <= routing.n_group or model.num_experts % routing.n_group:
        cause = (
            f"{model.num_experts} experts in {routing.n_group} groups, {routing.topk_group} of them chosen"
        )
        raise _impossible(
            model, cause, "give n_group that divides num_experts and topk_group of at most n_group"
        )
    for name in ("num_dense_layers", "num_sliding_layers"):
        if not 0 <= getattr(model, name) <= model.num_layers:
            cause = f"{name} {getattr(model, name)} of num_layers {model.num_layers}"
            raise _impossible(model, cause, f"give {name} of at most num_layers")


def _impossible(model: ModelSpec, cause: str, fix: str) -> InputError:
    """Build the error for a model that cannot exist."""
    return InputError(what=f"model {shown(model.name)} is not possible", cause=cause, fix=fix)
