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

from costmodel.models.attention import ATTENTION_KINDS, AttentionKind, GlobalHeads, Reach
from costmodel.models.compressed_attention import AttentionCompression
from costmodel.models.feed_forward import (
    FEED_FORWARD_KINDS,
    NO_FEED_FORWARD,
    BlockName,
    FeedForwardKind,
)
from costmodel.models.mechanism import Cut, Mechanism
from costmodel.models.pattern import LETTERS, Block, letters_of, segments_of
from costmodel.models.recurrence import Recurrence
from costmodel.models.rotary import Rotary
from costmodel.models.routing import Routing
from costmodel.models.sizes import LARGEST_SIZE, WeightFormat, check_sizes
from costmodel.models.stored import AS_NAMED, StoredParts
from costmodel.models.tower import Tower
from costmodel.models.traced import TracedModule

AttentionPattern = Literal["full", "sliding", "mla", "recurrence", "none"] | Reach
NormKind = Literal["rmsnorm", "rmsnorm1p", "layernorm", "layernorm1p"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What distinguishes one transformer layer from another of the same model.

    `traced` is its place among the kinds of a traced `module`; layers of a `tower` are not the decoder's.
    `sliding_share` is the fraction of its layers whose attention is windowed: alternating patterns (Gemma,
    gpt-oss) are one kind of average costs. A hybrid's layers mix tokens by attention or by its recurrence;
    layers of one block alone have ``none`` for the other.
    """

    attention: AttentionPattern
    mlp: Block
    sliding_share: float = 0.0
    traced: int | None = None
    tower: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """The `count` layers of one kind; `layer_order` says where they are."""

    kind: LayerKind
    count: int


class _Derived:
    """What is derived from the fields of a model and asked all day, kept beside them once it was asked."""

    __slots__ = ("_attention", "_cuts", "_mechanisms")

    _attention: AttentionKind
    _mechanisms: tuple[Mechanism, ...]
    _cuts: tuple[Cut, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(_Derived):
    """One decoder-only transformer.

    MLA sizes (`kv_lora_rank` > 0) and expert sizes (`num_experts` > 0) are zero when the model has none.
    `intermediate_size` is of dense layers, `moe_intermediate_size` of an expert, `shared_expert_size` of
    all shared experts together; with `moe_latent_size` L > 0 tokens are projected to L numbers on their way
    to routed experts, and back after them (Nemotron 3). With `sliding_window_pattern` p > 0 every p-th layer
    has full attention, others a window; with 0 the last `num_sliding_layers` have one. Norms ending in ``1p``
    multiply by 1 + weight. `layer_pattern` has a letter a layer (`costmodel.models.pattern`) where layers
    differ otherwise; then `num_dense_layers` is 0, and `recurrence` mixes where there is no attention.
    `attention_gate` multiplies what attention gives by as many sigmoids, `shared_expert_gate` that of shared
    experts by one.
    Layers without a window may have `global_heads` of another size; `key_value_products` is 1 where values
    are keys.
    A model that also sees has a `tower`, whose layers come first and count among the `num_layers`. Where its
    language model alone is served the server holds that tower all the same, as `encoder`.
    With `index_topk` k > 0 an indexer of its own heads chooses k keys for a query (DeepSeek-V3.2), in
    `index_layers` of the layers where that is not 0 and the others reuse a choice (GLM-5.2); with a
    `compression`, k of the entries that stand for several tokens each (DeepSeek-V4). Of `unindexed_layers`,
    the dense ones, queries attend to all keys (MiniMax-M3). Layers pass on `residual_streams` of the hidden
    size.

    No cost depends on these:

    - `norm_epsilon`, `rotary`, `routing`, `activation` of the feed-forward. `swiglu_limit` clamps its two
      parts and replaces silu(g)·u by g·sigmoid(1.702·g)·(u + 1) (gpt-oss).
    - `query_pre_attn_scalar`: scores are divided by its square root; None: by that of the head's size.
    - `attn_logit_softcapping`, `final_logit_softcapping`: c·tanh(x/c) of scores and logits, None without.
    - `scale_embeddings`: embeddings times √H; `router_aux_loss_coef`: weight of the loss balancing experts.
    - `num_nextn_predict_layers` that it has to predict further tokens; a job says which are trained.
    - `weight_format` of the checkpoint, where its ``config.json`` names one: what it is served in by default.
    - what of it is `stored` in other formats.
    - `unmodelled`: settings of its ``config.json`` without a field; `left_out`: towers not described.
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
    attention_gate: bool = False
    layer_pattern: str = ""
    recurrence: Recurrence | None = None
    compression: AttentionCompression | None = None
    global_heads: GlobalHeads | None = None
    key_value_products: int = 2
    residual_streams: int = 1
    sliding_window: int | None = None
    num_sliding_layers: int = 0
    sliding_window_pattern: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    index_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    index_layers: int = 0
    unindexed_layers: int = 0
    num_experts: int = 0
    num_experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_expert_size: int = 0
    moe_latent_size: int = 0
    shared_expert_gate: bool = False
    num_dense_layers: int = 0
    routing: Routing = field(default_factory=Routing)
    router_bias: bool = False
    router_aux_loss_coef: float = 0.0
    unmodelled: tuple[str, ...] = ()
    left_out: str = ""
    tower: Tower | None = None
    encoder: Tower | None = None
    num_nextn_predict_layers: int = 0
    weight_format: WeightFormat = ""
    stored: StoredParts = AS_NAMED
    module: TracedModule | None = None
    source: str = ""
    as_of: str = ""

    def __post_init__(self) -> None:
        """Refuse sizes that no model can have."""
        check_sizes(self)

    def with_positions(self, sequence_length: int) -> ModelSpec:
        """The model with a position for each token of a sequence, where nothing but its release counts them.

        Rotary positions and none at all go on beyond those that a release was trained on. A table of learned
        positions has no further row, and a traced module none that was not traced: those stay as they are.
        """
        if sequence_length <= self.max_sequence_length or self.learned_positions or self.module:
            return self
        return replace(self, max_sequence_length=sequence_length)

    @property
    def is_moe(self) -> bool:
        """Whether any layer has routed experts."""
        return self.num_experts > 0

    @property
    def index_share(self) -> float:
        """Share of layers that choose keys by an indexer of their own; the others reuse a choice."""
        return self.index_layers / self.num_layers if self.index_layers else 1.0

    def chooses_keys(self, kind: LayerKind) -> bool:
        """Whether queries of such a layer attend to keys that an indexer chose.

        >>> from costmodel.models.catalog import model
        >>> [model("minimax-m3").chooses_keys(run.kind) for run in layer_runs(model("minimax-m3"))]
        [False, True]
        """
        return self.index_topk > 0 and not (self.unindexed_layers and kind.mlp == "dense")

    @property
    def own_index_share(self) -> float:
        """Share of the layers that choose keys which do so by an indexer of their own."""
        return 1.0 if self.unindexed_layers else self.index_share

    @property
    def attention(self) -> AttentionKind:
        """The record of its attention."""
        try:
            return self._attention
        except AttributeError:
            record = next(kind for kind in ATTENTION_KINDS if kind.describes(self)).of(self)
            object.__setattr__(self, "_attention", record)
            return record

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The records of what mixes its tokens, and of its feed-forward blocks, first to last."""
        try:
            return self._mechanisms
        except AttributeError:
            blocks = dict.fromkeys(run.kind.mlp for run in layer_runs(decoder_of(self)))
            mixers = (self.attention, self.recurrence) if self.recurrence else (self.attention,)
            records = (*mixers, *(self.feed_forward(block) for block in blocks))
            object.__setattr__(self, "_mechanisms", records)
            return records

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Every size that ranks divide without a rest; of a trace these are its units alone.

        >>> from costmodel.models.catalog import model
        >>> [(cut.axis, cut.field, cut.size) for cut in model("deepseek-v3").cuts][:2]
        [('tp', 'num_attention_heads', 128), ('tp', 'intermediate_size', 18432)]
        """
        try:
            return self._cuts
        except AttributeError:
            every = tuple(cut for mechanism in self.mechanisms for cut in mechanism.cuts)
            if self.module:
                units, size = "heads and channels", self.num_attention_heads
                every = (Cut(law="attention-heads", axis="tp", field=units, size=size),)
            object.__setattr__(self, "_cuts", every)
            return every

    def feed_forward(self, kind: Block | None = None) -> FeedForwardKind:
        """The record of a feed-forward block; unless said otherwise, of most of its layers."""
        if kind == "none":
            return NO_FEED_FORWARD
        block = kind or ("moe" if self.is_moe else "dense")
        return next(each for each in FEED_FORWARD_KINDS if each.describes(self, block)).of(self)

    @property
    def residual_width(self) -> int:
        """Numbers of a token that one layer passes to the next."""
        return self.residual_streams * self.hidden_size

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


TOWER_LAYER = LayerKind(attention="full", mlp="dense", tower=True)
"""A layer of a tower."""


def decoder_of(model: ModelSpec) -> ModelSpec:
    """The language model of a model that also sees."""
    if model.tower is None:
        return model
    return replace(model, num_layers=model.num_layers - model.tower.num_layers, tower=None)


def encoder_of(tower: Tower) -> ModelSpec:
    """The layers of a tower as those of a model; half a window, since it has patches on both sides."""
    windowed = tower.num_layers - tower.full_layers if tower.window_patches else 0
    return ModelSpec(
        name="tower",
        num_layers=tower.num_layers,
        hidden_size=tower.hidden_size,
        intermediate_size=tower.intermediate_size,
        num_attention_heads=tower.num_attention_heads,
        num_key_value_heads=tower.num_attention_heads,
        head_dim=tower.hidden_size // tower.num_attention_heads,
        vocab_size=1,
        max_sequence_length=LARGEST_SIZE,
        gated_mlp=tower.gated_mlp,
        norm=tower.norm,
        qkv_bias=tower.qkv_bias,
        attention_output_bias=tower.output_bias,
        mlp_bias=tower.mlp_bias,
        sliding_window=max(1, tower.window_patches // 2) if windowed else None,
        num_sliding_layers=windowed,
    )


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
    """Kinds of layers in order of appearance, each with how many there are.

    Without a `layer_pattern` they are runs of identical layers, first to last, dense ones before experts.

    >>> from costmodel.models.catalog import model
    >>> [(run.kind.mlp, run.count) for run in layer_runs(model("deepseek-v3"))]
    [('dense', 3), ('moe', 58)]
    """
    if model.tower:
        seeing = LayerRun(kind=TOWER_LAYER, count=model.tower.num_layers)
        return (seeing, *layer_runs(decoder_of(model)))
    if model.module:
        kinds = [LayerKind(attention="none", mlp="none", traced=i) for i in range(len(model.module.kinds))]
        return tuple(LayerRun(kind=k, count=n) for k, n in zip(kinds, model.module.counts, strict=True))
    if model.layer_pattern:
        return _pattern_runs(model)
    leading = model.num_dense_layers if model.is_moe else model.num_layers
    share = model.num_sliding_layers / model.num_layers
    attention = _attention_pattern(model)
    runs: tuple[tuple[BlockName, int], ...] = (("dense", leading), ("moe", model.num_layers - leading))
    return tuple(
        LayerRun(kind=LayerKind(attention=attention, mlp=mlp, sliding_share=share), count=count)
        for mlp, count in runs
        if count > 0
    )


def unbuilt(model: ModelSpec, engine: str) -> str:
    """Kinds of attention, recurrence and feed-forward of a model that an engine does not build, for people.

    >>> from costmodel.models.catalog import model
    >>> unbuilt(model("deepseek-v4-flash"), "torchtitan"), unbuilt(model("deepseek-v3"), "torchtitan")
    ('compressed attention', '')
    """
    return " and ".join(kind.named for kind in model.mechanisms if engine not in kind.engines)


def layer_order(model: ModelSpec) -> tuple[tuple[int, int], ...]:
    """Where the layers of each kind are: kind of `layer_runs` and consecutive layers, in model order.

    >>> from costmodel.models.catalog import model
    >>> layer_order(model("deepseek-v3"))
    ((0, 3), (1, 58))
    """
    if model.tower:
        rest = layer_order(decoder_of(model))
        return ((0, model.tower.num_layers), *((kind + 1, count) for kind, count in rest))
    if model.module:
        return model.module.order
    if model.layer_pattern:
        return segments_of(letters_of(model.layer_pattern, model.num_layers))
    leading = model.num_dense_layers if model.is_moe else model.num_layers
    return tuple(enumerate(count for count in (leading, model.num_layers - leading) if count > 0))


def _attention_pattern(model: ModelSpec) -> AttentionPattern:
    """What the layers with attention have."""
    return model.attention.pattern or ("sliding" if model.num_sliding_layers else "full")


def _pattern_runs(model: ModelSpec) -> tuple[LayerRun, ...]:
    """Kinds of the letters of a pattern; windows are spread over the layers with attention alike."""
    letters = letters_of(model.layer_pattern, model.num_layers)
    attention = sum(LETTERS[letter][0] == "attention" for letter in letters)
    share = model.num_sliding_layers / max(attention, 1)
    runs = []
    for letter in dict.fromkeys(letters):
        mixer, block = LETTERS[letter]
        kind = (
            LayerKind(attention=_attention_pattern(model), mlp=block, sliding_share=share)
            if mixer == "attention"
            else LayerKind(attention=mixer, mlp=block, sliding_share=float(mixer == "local"))
        )
        runs.append(LayerRun(kind=kind, count=letters.count(letter)))
    return tuple(runs)


def recurrence_of(model: ModelSpec) -> Recurrence:
    """The recurrence of a model that has one."""
    if model.recurrence is None:
        raise ValueError(f"{model.name} has no recurrence")
    return model.recurrence
