"""Sizes that a model can have: a `ModelSpec` asks when it is made."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

from costmodel.models.attention import ATTENTION_KINDS
from costmodel.models.feed_forward import FEED_FORWARD_KINDS
from costmodel.models.pattern import LETTERS, letters_of
from topology.base.errors import InputError, shown

LARGEST_SIZE = 10**8  # no published size comes near; a larger number is a typing error
WeightFormat = Literal["", "bf16", "fp8", "int8", "int4", "fp4", "other"]
"""What a checkpoint is quantised to: not stated, one of these, or in a way that is not known."""
MOST_LAYERS = 1024  # the deepest published transformer has 1,000 (DeepNet, arXiv 2203.00555)

_POSITIVE = (
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_sequence_length",
    "residual_streams",
)
_COUNTS = (
    "norms_per_layer",
    "learned_positions",
    "num_sliding_layers",
    "sliding_window_pattern",
    *(name for kind in ATTENTION_KINDS for name in kind.counts),
    *(name for kind in FEED_FORWARD_KINDS for name in kind.counts),
    "num_dense_layers",
    "num_nextn_predict_layers",
)


def check_sizes(model: Any) -> None:
    """Raise an InputError for a size no model can have, or for sizes that contradict each other."""
    required = _POSITIVE + model.attention.sizes + model.feed_forward().sizes
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
        cause = (
            f"num_experts_per_token {model.num_experts_per_token} is above num_experts {model.num_experts}"
        )
        raise _impossible(model, cause, "give num_experts_per_token of at most num_experts")
    routing = model.routing
    if not 1 <= routing.topk_group <= routing.n_group or model.num_experts % routing.n_group:
        cause = (
            f"{model.num_experts} experts in {routing.n_group} groups, {routing.topk_group} of them chosen"
        )
        raise _impossible(
            model, cause, "give n_group that divides num_experts and topk_group of at most n_group"
        )
    if unknown := set(model.layer_pattern) - set(LETTERS):
        cause = f"layer_pattern has {shown(min(unknown))}"
        raise _impossible(model, cause, f"give one of {''.join(LETTERS)} for every layer")
    _check_recurrence(model)
    _check_attention(model)
    for name in ("num_dense_layers", "num_sliding_layers"):
        if not 0 <= getattr(model, name) <= model.num_layers:
            cause = f"{name} {getattr(model, name)} of num_layers {model.num_layers}"
            raise _impossible(model, cause, f"give {name} of at most num_layers")


def is_unmeasured(model: Any) -> bool:
    """Whether its layers have kernels of which only the roofline is known."""
    records = (model.attention, model.recurrence, model.feed_forward())
    return bool(model.module) or not all(record.is_measured for record in records if record)


def tied_parameters(model: Any) -> int:
    """Parameters of the first stage that the last one uses too."""
    if model.module:
        return int(model.module.tied_parameters)
    return int(model.vocab_size * model.hidden_size) if model.tie_word_embeddings else 0


def _check_recurrence(model: Any) -> None:
    """Refuse a pattern and a mixer that do not belong together, and sizes that no recurrence has."""
    letters = letters_of(model.layer_pattern, model.num_layers) if model.layer_pattern else ""
    mixers, blocks = {LETTERS[c][0] for c in letters}, {LETTERS[c][1] for c in letters}
    if (model.recurrence is not None) != ("recurrence" in mixers):
        cause = (
            f"layer_pattern {shown(model.layer_pattern)} with{'' if model.recurrence else 'out'} a recurrence"
        )
        raise _impossible(model, cause, "give both, or neither")
    for kind in ATTENTION_KINDS:
        if kind.letters and kind.describes(model) == mixers.isdisjoint(kind.reaches()):
            joined = "with" if kind.describes(model) else "without"
            cause = f"layer_pattern {shown(model.layer_pattern)} {joined} {kind.named}"
            raise _impossible(model, cause, "give both, or neither")
    if letters and (model.is_moe != ("moe" in blocks) or model.num_dense_layers):
        counts = f"num_experts = {model.num_experts}, num_dense_layers = {model.num_dense_layers}"
        cause = f"{counts} beside layer_pattern {shown(model.layer_pattern)}"
        raise _impossible(model, cause, "say in the pattern alone which layers have experts")
    if (r := model.recurrence) is None:
        return
    for name in ("key_heads", "value_heads", "key_dim", "value_dim", "chunk"):
        if not 0 < getattr(r, name) <= LARGEST_SIZE:
            cause = f"{name} = {getattr(r, name)} of its {r.title}"
            raise _impossible(model, cause, f"give {name} between 1 and {LARGEST_SIZE}")
    if not 0 <= r.conv_kernel <= LARGEST_SIZE or r.value_heads % r.key_heads:
        cause = f"conv_kernel {r.conv_kernel}, {r.value_heads} value heads of {r.key_heads} key heads"
        raise _impossible(model, cause, "give a number of value heads that the key heads divide")


def _check_attention(model: Any) -> None:
    """Refuse sizes that no attention of its kind has."""
    kind = model.attention
    for part in (getattr(model, name) for name in kind.parts):
        for name in (field.name for field in fields(part)):
            if not 0 < getattr(part, name) <= LARGEST_SIZE:
                cause = f"{name} = {getattr(part, name)} of its {kind.named}"
                raise _impossible(model, cause, f"give {name} between 1 and {LARGEST_SIZE}")
    if misfit := kind.misfit(model):
        raise _impossible(model, *misfit)


def _impossible(model: Any, cause: str, fix: str) -> InputError:
    """Build the error for a model that cannot exist."""
    return InputError(what=f"model {shown(model.name)} is not possible", cause=cause, fix=fix)
