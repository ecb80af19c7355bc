"""Kinds of layers in words, for people."""

from __future__ import annotations

from costmodel.models.spec import LayerKind, ModelSpec, layer_runs


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
        **{reach: f"{reach} attention" for reach in ("window", "heavy", "sparse")},
    }
    blocks = {"dense": "feed-forward", "moe": "experts", "none": ""}
    return " + ".join(filter(None, (titles.get(kind.attention, "attention"), blocks[kind.mlp])))
