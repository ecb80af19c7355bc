"""How many parameters the sizes of a model make: checked against every published count.

Legend: ``H`` hidden size.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.models.feed_forward import block_parameters
from costmodel.models.kinds import model_of_layer, mtp_kind
from costmodel.models.spec import (
    LayerKind,
    ModelSpec,
    decoder_of,
    encoder_of,
    layer_runs,
    recurrence_of,
)
from costmodel.models.streams import BLOCKS, connection_parameters, last_sum_parameters
from costmodel.models.tower import Tower
from topology.base.units import BILLION


def norm_parameters(model: ModelSpec, width: int) -> int:
    """Parameters of one normalisation over `width`: a scale, and a shift for layer norms."""
    return width * (1 if model.norm.startswith("rms") else 2)


def layer_parameters(model: ModelSpec, kind: LayerKind) -> int:
    """Parameters of one layer of this kind, all experts included."""
    if kind.tower and model.tower:
        encoder = encoder_of(model.tower)
        return layer_parameters(encoder, layer_runs(encoder)[0].kind) + model.tower.layer_extra
    norms = norms_of(model, kind) * norm_parameters(model, model.hidden_size)
    norms += BLOCKS * connection_parameters(model.hidden_size, model.residual_streams)
    return mixer_parameters(model, kind) + norms + block_parameters(model.feed_forward(kind.mlp))


def norms_of(model: ModelSpec, kind: LayerKind) -> int:
    """Norms over the hidden size in a layer of this kind; a block alone has its half of them."""
    alone = "none" in (kind.attention, kind.mlp)
    return model.norms_per_layer // 2 if alone else model.norms_per_layer


def mixer_parameters(model: ModelSpec, kind: LayerKind) -> int:
    """Parameters of what mixes the tokens of a layer of this kind."""
    if kind.attention == "none":
        return 0
    if kind.attention == "recurrence":
        return recurrence_of(model).parameters(model.hidden_size)
    attention = model_of_layer(model, kind).attention
    return attention.parameters + attention.further_parameters(kind.attention)


def embedding_parameters(model: ModelSpec) -> int:
    """Parameters of the token embedding and, where positions are learned, theirs; of the tower's two ends."""
    return (model.vocab_size + model.learned_positions) * model.hidden_size + tower_end_parameters(model)


def tower_end_parameters(model: ModelSpec) -> int:
    """Parameters of what stands before and after the layers of a tower, none without one."""
    return model.tower.end_parameters if model.tower else 0


def head_parameters(model: ModelSpec) -> int:
    """Parameters of the final norm and of the output projection (none if tied), and of the last sum."""
    projection = 0 if model.tie_word_embeddings else model.vocab_size * model.hidden_size
    last = last_sum_parameters(model.hidden_size, model.residual_streams)
    return projection + norm_parameters(model, model.hidden_size) + last


def mtp_parameters(model: ModelSpec) -> int:
    """Parameters of one module that predicts a further token, embedding and head not counted again.

    2·H² of the projection, a layer of the model's last kind, three norms over the hidden size: of the hidden
    state, of the embedding, and before the head.

    >>> from costmodel.models.catalog import model
    >>> mtp_parameters(model("deepseek-v3"))
    11610068224
    """
    H, last = model.hidden_size, last_sum_parameters(model.hidden_size, model.residual_streams)
    return 2 * H**2 + layer_parameters(model, mtp_kind(model)) + 3 * norm_parameters(model, H) + last


def parameter_count(model: ModelSpec) -> int:
    """All parameters of the model, as published (multi-token prediction modules excluded).

    >>> from costmodel.models.catalog import model
    >>> parameter_count(model("llama-3.1-70b"))
    70553706496
    """
    if model.module:
        return model.module.parameters
    layers = sum(run.count * layer_parameters(model, run.kind) for run in layer_runs(model))
    return embedding_parameters(model) + layers + head_parameters(model)


def without_tower(model: ModelSpec) -> ModelSpec:
    """The language model alone, which says what of the model is left out."""
    if (tower := model.tower) is None:
        return model
    alone = replace(decoder_of(model), left_out="")
    size = (parameter_count(model) - parameter_count(alone)) / BILLION
    words = f"{tower.named} of {tower.num_layers} layers and what joins it ({size:.1f} B parameters)"
    more = f"{words} and {model.left_out}" if model.left_out else words
    return replace(alone, left_out=more, encoder=tower)


def encoder_parameters(tower: Tower) -> tuple[int, int]:
    """Parameters of a tower that ranks split (its layers, and what joins it), and those that each holds."""
    encoder = encoder_of(tower)
    layers = sum(run.count * layer_parameters(encoder, run.kind) for run in layer_runs(encoder))
    return layers + tower.num_layers * tower.layer_extra + tower.join_parameters, tower.stem_parameters


def active_parameter_count(model: ModelSpec) -> int:
    """Parameters that one token passes through: only the chosen experts of each layer, and no tower."""
    model = decoder_of(model)
    idle = sum(run.count * model.feed_forward(run.kind.mlp).idle_parameters for run in layer_runs(model))
    return parameter_count(model) - idle
