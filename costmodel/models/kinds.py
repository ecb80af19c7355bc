"""Kinds of layers: in words, for people, and that of modules which predict further tokens."""

from __future__ import annotations

from dataclasses import replace

from costmodel.models.spec import LayerKind, ModelSpec, decoder_of, layer_order, layer_runs


def layer_kinds(model: ModelSpec) -> str:
    """Kinds of layers of a model whose layers are not one kind after the other, for people.

    >>> from costmodel.models.catalog import model
    >>> layer_kinds(model("qwen3-next-80b-a3b"))
    '36 × Gated DeltaNet + experts, 12 × attention + experts'
    """
    return ", ".join(f"{run.count} × {kind_title(model, run.kind)}" for run in layer_runs(model))


def kind_title(model: ModelSpec, kind: LayerKind) -> str:
    """What a layer of this kind is made of, for people.

    >>> from costmodel.models.catalog import model
    >>> [kind_title(model("deepseek-v3"), run.kind) for run in layer_runs(model("deepseek-v3"))]
    ['attention + feed-forward', 'attention + experts']
    """
    if kind.tower:
        return model.tower.sense if model.tower else ""
    titles = {
        "recurrence": model.recurrence.title if model.recurrence else "",
        "none": "",
    }
    mixer = titles.get(kind.attention, model.attention.title_of(kind.attention))
    block = "" if kind.mlp == "none" else model.feed_forward(kind.mlp).title
    return " + ".join(filter(None, (mixer, block)))


def model_of_layer(model: ModelSpec, kind: LayerKind) -> ModelSpec:
    """The model as a layer of this kind has it: itself, or with the one size of heads that the layer has.

    >>> from costmodel.models.catalog import model
    >>> gemma = model("gemma-4-31b")
    >>> [model_of_layer(gemma, run.kind).head_dim for run in layer_runs(gemma)]
    [256, 512]
    """
    heads = model.global_heads
    if heads is None or kind.tower:
        return model
    alone = replace(model, global_heads=None, layer_pattern="")
    if kind.attention != "global":
        return alone
    return replace(
        alone,
        num_key_value_heads=heads.num_key_value_heads,
        head_dim=heads.head_dim,
        key_value_products=heads.key_value_products,
    )


def mtp_kind(model: ModelSpec) -> LayerKind:
    """Kind of the layer in a module that predicts one further token: that of the model's last layer.

    Of models whose layers are one block each it has both, attention and the last of their feed-forwards;
    attention of several reaches says which it has: that which reads compressed entries sees its window alone.

    >>> from costmodel.models.catalog import model
    >>> [kind_title(model(name), mtp_kind(model(name))) for name in ("deepseek-v3", "nemotron-3-super")]
    ['attention + experts', 'attention + experts']

    Source: ``get_gpt_mtp_block_spec`` of megatron-core (the last layer's specification); Nemotron 3's
    ``mtp_hybrid_override_pattern`` (``*E``); ratio 0 of modules in Megatron-Bridge's
    ``deepseek_v4_bridge.py``.
    """
    decoder = decoder_of(model)
    kinds = [run.kind for run in layer_runs(decoder)]
    last = kinds[layer_order(decoder)[-1][0]]
    if reach := model.attention.predicting_reach:
        return replace(last, attention=reach)
    if last.attention == "none":
        mixing = [kind for kind in kinds if kind.attention not in ("none", "recurrence")]
        return replace(mixing[-1], mlp=last.mlp) if mixing else last
    blocks = [kind.mlp for kind in kinds if kind.mlp != "none"]
    return replace(last, mlp=blocks[-1]) if last.mlp == "none" and blocks else last
