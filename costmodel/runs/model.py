"""The model that a row of measured runs trained.

Its name decides: a catalogued model has the details that no column holds (experts, latent or windowed
attention, head size), and the row's sizes must be its own. Published benchmarks often leave layers out, pad
the vocabulary or train longer sequences than the release; these stay what the row says. Any other name is
built from the columns alone, with full attention.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from costmodel.models.spec import ModelSpec, with_layers
from costmodel.runs.cells import Row, UnsupportedRunError, count, yes_no_cell
from costmodel.runs.model_names import named_model, refuse_hybrid
from costmodel.stack import SoftwareStack
from topology.base.errors import InputError, shown

DEFAULT_VOCABULARY = 51_200  # GPT-2's vocabulary padded for tensor parallelism, what rows leave out most
MOST_PADDING = 8192  # rows that a vocabulary is padded by: to a multiple of 128 on each of 64 ranks


def with_sizes(row: Row) -> Row:
    """The row; where it states no sizes of the model, with those of the catalogued one that it names.

    >>> with_sizes({"model": "llama-3.1-8b"})["hidden_size"], with_sizes({"model": "ours"})
    ('4096', {'model': 'ours'})
    """
    pair = named_model(row.get("model", ""))
    if pair is None or any(row.get(name) for name in STATED):
        return row
    known = pair[0]
    sizes = {
        "num_layers": known.num_layers,
        "hidden_size": known.hidden_size,
        "intermediate_size": known.moe_intermediate_size if known.is_moe else known.intermediate_size,
        "num_attention_heads": known.num_attention_heads,
        "num_key_value_heads": known.num_key_value_heads,
        "num_experts": known.num_experts,
        "num_experts_per_token": known.num_experts_per_token,
        "gated_mlp": int(known.gated_mlp),
    }
    return {**row, **{name: str(size) for name, size in sizes.items() if size is not None}}


STATED = ("num_layers", "hidden_size", "num_attention_heads")
"""Sizes that every row states whose model is not catalogued."""


def model_of(row: Row, stack: SoftwareStack) -> ModelSpec:
    """The row's model: the catalogued one of its name, or a plain GPT or Llama of its columns.

    Layers that are no transformer's stand in no column: only a catalogued model has them.
    """
    pair = named_model(row.get("model", ""))
    if pair is None or pair[0].recurrence is None or (_differing(row, pair[0]) and not pair[1]):
        refuse_hybrid(row)
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
    pair = named_model(row["model"])
    if pair is None:
        return _plain(row, modern=modern)
    known, own_name = pair
    differences = _differing(row, known)
    if not differences:
        return _like(known, row)
    if own_name:
        raise UnsupportedRunError(f"{shown(row['model'])} is {known.name}, yet {', '.join(differences)}")
    return _plain(row, modern=modern)


def _differing(row: Row, known: ModelSpec) -> list[str]:
    """Sizes that the row states and the catalogued model does not have, each with both numbers."""
    width = known.moe_intermediate_size if known.is_moe else known.intermediate_size
    stated = {
        "hidden_size": known.hidden_size,
        "intermediate_size": width,
        "num_attention_heads": known.num_attention_heads,
        "num_key_value_heads": known.num_key_value_heads,
        "num_experts_per_token": known.num_experts_per_token,
        **({} if known.kv_lora_rank else {"head_dim": known.head_dim}),  # latent heads have several sizes
    }
    pairs = [(name, count(row, name, 0), size) for name, size in stated.items() if row.get(name)]
    pairs.append(("num_experts", count(row, "num_experts", 0), known.num_experts))
    pairs.append(
        ("gated_mlp", int(yes_no_cell(row, "gated_mlp", default=known.gated_mlp)), int(known.gated_mlp))
    )
    differences = [
        f"{name} = {value}, not {published}" for name, value, published in pairs if value != published
    ]
    layers, vocabulary = count(row, "num_layers"), count(row, "vocab_size", known.vocab_size)
    if layers > known.num_layers:
        differences.append(f"num_layers = {layers}, not {known.num_layers} or fewer")
    if not 0 <= vocabulary - known.vocab_size < MOST_PADDING:
        differences.append(f"vocab_size = {vocabulary}, not {known.vocab_size} or padded")
    return differences


def _like(known: ModelSpec, row: Row) -> ModelSpec:
    """The catalogued model with the row's layers, vocabulary and context."""
    layers, sequence = count(row, "num_layers"), count(row, "sequence_length")
    leading = min(known.num_dense_layers, 1) if layers < known.num_layers else known.num_dense_layers
    return replace(
        with_layers(known, layers, min(leading, layers)),
        name=row["model"],
        vocab_size=count(row, "vocab_size", known.vocab_size),
        tie_word_embeddings=yes_no_cell(row, "tie_word_embeddings", default=known.tie_word_embeddings),
        max_sequence_length=max(known.max_sequence_length, sequence),
        learned_positions=max(known.learned_positions, sequence) if known.learned_positions else 0,
    )


def _plain(row: Row, *, modern: bool) -> ModelSpec:
    """A GPT (layer norms, biases) or, gated, a Llama of these columns; all of its attention is full."""
    heads, hidden = count(row, "num_attention_heads"), count(row, "hidden_size")
    experts = count(row, "num_experts", 0)
    width = count(row, "intermediate_size", 4 * hidden)
    gated = yes_no_cell(row, "gated_mlp", default=modern)
    return ModelSpec(
        name=row["model"] or "unnamed",
        num_layers=count(row, "num_layers"),
        hidden_size=hidden,
        intermediate_size=width,
        num_attention_heads=heads,
        num_key_value_heads=count(row, "num_key_value_heads", heads),
        head_dim=count(row, "head_dim", max(1, hidden // heads)),
        vocab_size=count(row, "vocab_size", DEFAULT_VOCABULARY),
        max_sequence_length=count(row, "sequence_length"),
        tie_word_embeddings=yes_no_cell(row, "tie_word_embeddings", default=not gated),
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
