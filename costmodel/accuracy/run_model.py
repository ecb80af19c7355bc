"""The model that a row of measured runs trained.

A model with the sizes of a catalogued one that has experts, latent or windowed attention, or an unusual
head size takes those details from there, whatever its number of layers: published benchmarks often truncate
models to fit a node.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from costmodel.accuracy.cells import Row, UnsupportedRunError, count, flag
from costmodel.models.catalog import models
from costmodel.models.spec import ModelSpec
from costmodel.stack import SoftwareStack
from topology.base.errors import InputError

DEFAULT_VOCABULARY = 51_200  # GPT-2's vocabulary padded for tensor parallelism, what rows leave out most


def model_of(row: Row, stack: SoftwareStack) -> ModelSpec:
    """The row's model: details of a catalogued one of these sizes, or a plain GPT or Llama of them."""
    try:
        return _sized_model(
            tuple(sorted((name, row.get(name, "")) for name in _SIZES)), stack.timing.flash_attention
        )
    except InputError as impossible:
        raise UnsupportedRunError(f"{impossible.what}: {impossible.cause}") from impossible


_SIZES = (
    "model",
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "gated_mlp",
    "tie_word_embeddings",
    "num_experts",
    "num_experts_per_token",
    "sequence_length",
)


@functools.lru_cache(maxsize=4096)
def _sized_model(sizes: tuple[tuple[str, str], ...], modern: bool) -> ModelSpec:
    """Build a model from the size columns of a row."""
    row = dict(sizes)
    heads, hidden = count(row, "num_attention_heads"), count(row, "hidden_size")
    experts = count(row, "num_experts", 0)
    width = count(row, "intermediate_size", 4 * hidden)
    gated = flag(row, "gated_mlp", default=modern)
    known = _catalogued(hidden, heads, width, experts, gated=gated)
    layers = count(row, "num_layers")
    vocabulary = count(row, "vocab_size", known.vocab_size if known else DEFAULT_VOCABULARY)
    tied = flag(row, "tie_word_embeddings", default=known.tie_word_embeddings if known else not gated)
    if known:
        truncated = layers < known.num_layers
        dense = min(known.num_dense_layers, 1) if truncated else known.num_dense_layers
        sliding = known.num_sliding_layers * layers // known.num_layers
        return replace(
            known,
            name=row["model"] or known.name,
            num_layers=layers,
            num_key_value_heads=count(row, "num_key_value_heads", known.num_key_value_heads),
            vocab_size=vocabulary,
            tie_word_embeddings=tied,
            num_dense_layers=min(dense, layers),
            num_sliding_layers=sliding,
        )
    return ModelSpec(
        name=row["model"] or "unnamed",
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=width,
        num_attention_heads=heads,
        num_key_value_heads=count(row, "num_key_value_heads", heads),
        head_dim=count(row, "head_dim", max(1, hidden // heads)),
        vocab_size=vocabulary,
        max_sequence_length=count(row, "sequence_length"),
        tie_word_embeddings=tied,
        gated_mlp=gated,
        norm="rmsnorm" if gated else "layernorm",
        learned_positions=0 if gated else count(row, "sequence_length"),
        qkv_bias=not gated,
        attention_output_bias=not gated,
        mlp_bias=not gated,
        num_experts=experts,
        num_experts_per_token=count(row, "num_experts_per_token", 0),
        moe_intermediate_size=width if experts else 0,
    )


def _catalogued(hidden: int, heads: int, width: int, experts: int, *, gated: bool) -> ModelSpec | None:
    """The first catalogued model of these sizes whose details sizes do not tell, if any."""
    for known in models().values():
        plain = known.head_dim * known.num_attention_heads == known.hidden_size and not known.sliding_window
        if plain and not known.is_moe:
            continue
        inner = known.moe_intermediate_size if known.is_moe else known.intermediate_size
        same = (known.hidden_size, known.num_attention_heads, inner, known.num_experts, known.gated_mlp)
        if same == (hidden, heads, width, experts, gated):
            return known
    return None
