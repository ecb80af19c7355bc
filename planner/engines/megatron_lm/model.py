"""What a model is, in Megatron-LM's arguments, in both directions.

Names and meanings are those of ``megatron/training/arguments.py`` and ``transformer_config.py`` of
megatron-core 0.19.2: ``--use-rope-scaling`` is Llama 3.1's with its fixed bounds, softmax scores are
normalised unless ``--moe-router-pre-softmax``, sigmoid scores always, and a router has a bias where linear
layers have. What no argument says is `fixed`: a model that differs there is another model.
"""

from __future__ import annotations

from typing import Any

from costmodel.models.attention import ATTENTION_KINDS
from costmodel.models.feed_forward import FEED_FORWARD_KINDS
from costmodel.models.mechanism import EngineWords, Mechanism
from costmodel.models.recurrence import Recurrence
from planner.engines.fields import Facts
from planner.engines.megatron_lm.experts import EXPERTS, zeros_and_ones
from planner.engines.megatron_lm.positions import POSITIONS
from planner.engines.setting import EngineSetting, Given, Word, fixed, flag, value

_NORMS = {
    "rmsnorm": ("RMSNorm", False), "rmsnorm1p": ("RMSNorm", True),
    "layernorm": ("LayerNorm", False), "layernorm1p": ("LayerNorm", True),
}  # fmt: skip
DEFAULT_VOCABULARY_MULTIPLE = 128
FFN_MULTIPLE = 64


def _latent(facts: Facts) -> bool:
    """Whether attention goes through latents, which Megatron builds as another module."""
    return bool(facts["model.kv_lora_rank"])


def vocabulary_multiple(vocab_size: int, tp: int) -> int:
    """The factor that, times tp, Megatron pads a tokenizer's vocabulary to a multiple of.

    One multiple is the model's whole vocabulary, which families pad by rules of their own.

    >>> vocabulary_multiple(128256, 8), vocabulary_multiple(50257, 2)
    (16032, 25129)
    """
    return -(-vocab_size // tp)


def _write_vocabulary(facts: Facts) -> dict[str, Any]:
    size = facts["model.vocab_size"]
    multiple = vocabulary_multiple(size, facts["layout.tp"])
    return {"--vocab-size": size, "--make-vocab-size-divisible-by": multiple}


def _read_vocabulary(given: Given) -> dict[str, Any]:
    """The padded size of a tokenizer's vocabulary; the model's own where padding adds less than tp."""
    if given["--padded-vocab-size"] is not None:
        return {"model.vocab_size": given["--padded-vocab-size"]}
    size, tp = given["--vocab-size"], given["--tensor-model-parallel-size"]
    if size is None:
        return {}
    multiple = given["--make-vocab-size-divisible-by"] * tp
    padded = -(-size // multiple) * multiple
    return {"model.vocab_size": size if padded - size < tp else padded}


_VOCABULARY = EngineSetting(
    words=(
        Word(name="--vocab-size", kind="int", states="model.vocab_size"),
        Word(name="--padded-vocab-size", kind="int"),
        Word(name="--make-vocab-size-divisible-by", kind="int", default=DEFAULT_VOCABULARY_MULTIPLE),
    ),
    fields=("model.vocab_size",),
    write=_write_vocabulary,
    read=_read_vocabulary,
)


def _read_width(given: Given) -> dict[str, Any]:
    """Width of the feed-forward: four times the hidden size where nobody says, two thirds of it if gated."""
    width, hidden = given["--ffn-hidden-size"], given["--hidden-size"]
    if width is None and hidden is not None:
        width = 4 * hidden * 2 // 3 // FFN_MULTIPLE * FFN_MULTIPLE if given["--swiglu"] else 4 * hidden
    return {} if width is None else {"model.intermediate_size": width}


def _read_heads(given: Given) -> dict[str, Any]:
    """Heads, those of keys and values, and their size."""
    heads, hidden, size = given["--num-attention-heads"], given["--hidden-size"], given["--kv-channels"]
    if heads is None:
        return {}
    grouped = given["--num-query-groups"] if given["--group-query-attention"] else None
    facts = {"model.num_attention_heads": heads, "model.num_key_value_heads": grouped or heads}
    if size is None and hidden is not None:
        size = hidden // heads
    return facts if size is None else facts | {"model.head_dim": size}


def _write_heads(facts: Facts) -> dict[str, Any]:
    heads, groups = facts["model.num_attention_heads"], facts["model.num_key_value_heads"]
    words = {"--num-attention-heads": heads, "--kv-channels": facts["model.head_dim"]}
    if groups != heads and not _latent(facts):
        words |= {"--group-query-attention": True, "--num-query-groups": groups}
    return words


def _write_norm(facts: Facts) -> dict[str, Any]:
    kind, plus_one = _NORMS[facts["model.norm"]]
    words = {"--normalization": kind, "--norm-epsilon": facts["model.norm_epsilon"]}
    return words | ({"--apply-layernorm-1p": True} if plus_one else {})


def _read_norm(given: Given) -> dict[str, Any]:
    kind = (given["--normalization"], given["--apply-layernorm-1p"])
    name = next(ours for ours, theirs in _NORMS.items() if theirs == kind)
    return {"model.norm": name, "model.norm_epsilon": given["--norm-epsilon"]}


def _write_activation(facts: Facts) -> dict[str, Any]:
    """Activation of the feed-forward; GELU is Megatron's own, by its tangent where fused with a bias."""
    limit = facts["model.swiglu_limit"]
    if limit is not None:
        return {"--quick-geglu": True, "--glu-linear-offset": 1.0, "--activation-func-clamp-value": limit}
    if facts["model.gated_mlp"]:
        return {"--swiglu": True}
    if facts["model.activation"] == "relu2":
        return {"--squared-relu": True}
    exact = facts["model.activation"] == "gelu" and facts["model.mlp_bias"]
    return {"--no-bias-gelu-fusion": True} if exact else {}


def _read_activation(given: Given) -> dict[str, Any]:
    if given["--quick-geglu"]:
        limit = given["--activation-func-clamp-value"]
        return {"model.gated_mlp": True, "model.activation": "silu", "model.swiglu_limit": limit}
    exact = given["--no-bias-gelu-fusion"] or given["--disable-bias-linear"]
    plain = "relu2" if given["--squared-relu"] else "gelu" if exact else "gelu_tanh"
    gated = given["--swiglu"]
    return {
        "model.gated_mlp": gated,
        "model.activation": "silu" if gated else plain,
        "model.swiglu_limit": None,
    }


_KINDS: tuple[type[Mechanism], ...] = (*ATTENTION_KINDS, *FEED_FORWARD_KINDS, Recurrence)
_FLAGGED = tuple(
    (kind, words) for kind in _KINDS if (words := kind.engines.get("megatron")) is not None and words.flag
)
"""Kinds that Megatron builds where a flag asks for them, with its words."""


def _write_kinds(facts: Facts) -> dict[str, Any]:
    """The flag and the sizes of every kind that a model is of."""
    values: dict[str, Any] = {}
    for kind, words in _FLAGGED:
        if facts[f"model.{kind.mark}"]:
            values[words.flag] = True
            for word, (size, usual) in words.sizes.items():
                if facts[f"model.{size}"] or usual is not None:
                    values[word] = facts[f"model.{size}"]
    return values


def _read_kinds(given: Given) -> dict[str, Any]:
    """Sizes of the kinds whose flag is there; of others 0."""
    facts = dict.fromkeys(_KIND_FIELDS, 0)
    for _, words in _FLAGGED:
        if given[words.flag]:
            facts |= {f"model.{size}": given[word] or 0 for word, (size, _) in words.sizes.items()}
    return facts


def _words_of(words: EngineWords) -> tuple[Word, ...]:
    """The words of one kind."""
    sizes = (Word(name=name, kind="int", default=usual) for name, (_, usual) in words.sizes.items())
    return (Word(name=words.flag, kind="flag", default=False), *sizes)


_KIND_FIELDS = tuple(
    dict.fromkeys(f"model.{size}" for _, words in _FLAGGED for size, _ in words.sizes.values())
)
_KIND_SETTING = EngineSetting(
    words=tuple(word for _, words in _FLAGGED for word in _words_of(words)),
    fields=_KIND_FIELDS,
    write=_write_kinds,
    read=_read_kinds,
)


def _fixed_sizes(settings: tuple[EngineSetting, ...]) -> tuple[EngineSetting, ...]:
    """Sizes of kinds that no word of these settings states: a model that has them is another model."""
    stated = {name for setting in settings for name in setting.fields}
    counts = {f"model.{name}": 0 for kind in _KINDS for name in kind.counts}
    parts = {f"model.{name}": None for kind in _KINDS for name in kind.parts}
    sizes = (counts | parts).items()
    return tuple(fixed(name, always=value) for name, value in sizes if name not in stated)


def _write_windows(facts: Facts) -> dict[str, Any]:
    """A window of w tokens reaches w − 1 to the left."""
    window, sliding = facts["model.sliding_window"], facts["model.num_sliding_layers"]
    if window is None or not sliding:
        return {}
    words: dict[str, Any] = {"--window-size": f"{window - 1},0"}
    pattern, full = facts["model.sliding_window_pattern"], facts["model.num_layers"] - sliding
    if pattern:
        words["--window-attn-skip-freq"] = str(pattern)
    elif full:
        words["--window-attn-skip-freq"] = f"([0]*{full}+[1]*{sliding})"
    return words


def _read_windows(given: Given) -> dict[str, Any]:
    window, layers = given["--window-size"], given["--num-layers"]
    if window is None or layers is None:
        none = {
            "model.sliding_window": None,
            "model.num_sliding_layers": 0,
            "model.sliding_window_pattern": 0,
        }
        return none if window is None else {}
    size = int(str(window).strip("() ").split(",")[0]) + 1
    skip = given["--window-attn-skip-freq"]
    pattern = int(skip) if skip is not None and str(skip).isdigit() else 0
    sliding = layers - layers // pattern if pattern else layers
    if skip is not None and not pattern:
        sliding = zeros_and_ones(str(skip))[1]
    return {
        "model.sliding_window": size,
        "model.num_sliding_layers": sliding,
        "model.sliding_window_pattern": pattern,
    }


def _write_biases(facts: Facts) -> dict[str, Any]:
    if all(facts[stated] for stated in _BIASES):
        return {}
    words = {"--disable-bias-linear": True}
    return words | ({"--add-qkv-bias": True} if facts["model.qkv_bias"] else {})


_BIASES = ("model.qkv_bias", "model.attention_output_bias", "model.mlp_bias")


def _read_biases(given: Given) -> dict[str, Any]:
    """Biases of linear layers, which the router has too; a bias for choosing is one of its own."""
    everywhere = not given["--disable-bias-linear"]
    router = bool(given["--num-experts"]) and (everywhere or given["--moe-router-enable-expert-bias"])
    return {
        "model.qkv_bias": everywhere or given["--add-qkv-bias"],
        "model.attention_output_bias": everywhere,
        "model.mlp_bias": everywhere,
        "model.router_bias": router,
    }


def _setting(words: tuple[Word, ...], stated: tuple[str, ...], write: Any, read: Any) -> EngineSetting:
    return EngineSetting(words=words, fields=stated, write=write, read=read)


_STATED: tuple[EngineSetting, ...] = (
    value("--num-layers", "model.num_layers", aliases=("--encoder-num-layers",)),
    value("--hidden-size", "model.hidden_size"),
    _setting(
        (Word(name="--ffn-hidden-size", kind="int", states="model.intermediate_size"),),
        ("model.intermediate_size",),
        lambda facts: {"--ffn-hidden-size": facts["model.intermediate_size"]},
        _read_width,
    ),
    _setting(
        (
            Word(name="--num-attention-heads", kind="int", states="model.num_attention_heads"),
            Word(name="--kv-channels", kind="int", states="model.head_dim"),
            Word(name="--group-query-attention", kind="flag", default=False),
            Word(name="--num-query-groups", kind="int", default=1, states="model.num_key_value_heads"),
        ),
        ("model.num_attention_heads", "model.num_key_value_heads", "model.head_dim"),
        _write_heads,
        _read_heads,
    ),
    _setting(
        (
            Word(name="--normalization", default="LayerNorm"),
            Word(name="--norm-epsilon", kind="float", default=1e-5, aliases=("--layernorm-epsilon",)),
            Word(name="--apply-layernorm-1p", kind="flag", default=False),
        ),
        ("model.norm", "model.norm_epsilon"),
        _write_norm,
        _read_norm,
    ),
    _setting(
        (Word(name="--qk-layernorm", kind="flag", default=False),),
        ("model.qk_norm",),
        lambda facts: {"--qk-layernorm": True} if facts["model.qk_norm"] or _latent(facts) else {},
        lambda given: {"model.qk_norm": given["--qk-layernorm"] and not given["--multi-latent-attention"]},
    ),
    _setting(
        (
            Word(name="--swiglu", kind="flag", default=False, states="model.gated_mlp"),
            Word(name="--squared-relu", kind="flag", default=False),
            Word(name="--quick-geglu", kind="flag", default=False),
            Word(name="--glu-linear-offset", kind="float", default=0.0),
            Word(name="--no-bias-gelu-fusion", kind="flag", default=False),
            Word(name="--activation-func-clamp-value", kind="float"),
        ),
        ("model.gated_mlp", "model.activation", "model.swiglu_limit"),
        _write_activation,
        _read_activation,
    ),
    POSITIONS,
    _KIND_SETTING,
    _setting(
        (Word(name="--window-size", kind="any"), Word(name="--window-attn-skip-freq", kind="any")),
        ("model.sliding_window", "model.num_sliding_layers", "model.sliding_window_pattern"),
        _write_windows,
        _read_windows,
    ),
    value(
        "--softmax-type", "model.attention_sinks", "text",
        default="vanilla", names={False: "vanilla", True: "learnable"},
        when=lambda facts: bool(facts["model.attention_sinks"]),
    ),
    _setting(
        (
            Word(name="--disable-bias-linear", kind="flag", default=False),
            Word(name="--add-qkv-bias", kind="flag", default=False),
        ),
        (*_BIASES, "model.router_bias"),
        _write_biases,
        _read_biases,
    ),
    flag("--untie-embeddings-and-output-weights", "model.tie_word_embeddings", on=False, off=True),
    _VOCABULARY,
    EXPERTS,
    fixed("model.norms_per_layer", always=2),
    fixed("model.scale_embeddings", always=False),
    fixed("model.query_pre_attn_scalar", always=None),
    fixed("model.attn_logit_softcapping", always=None),
    fixed("model.final_logit_softcapping", always=None),
    fixed("model.rotary.sliding_theta", always=None),
    *(fixed(f"model.{name}", always=False) for name in ("attention_gate", "shared_expert_gate")),
    fixed("model.layer_pattern", always=""),
    fixed("model.residual_streams", always=1),
    fixed("model.key_value_products", always=2),
    fixed("model.unmodelled", always=()),
)  # fmt: skip
MODEL_SETTINGS: tuple[EngineSetting, ...] = (*_STATED, *_fixed_sizes(_STATED))
"""In the order in which they are written."""
