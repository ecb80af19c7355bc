"""Models with a small vision tower before their decoder."""

from __future__ import annotations

from dataclasses import replace

from costmodel.models.spec import ModelSpec
from costmodel.models.tower import Tower


def seeing(model: ModelSpec, layers: int = 3, width: int = 256, *, window_patches: int = 0) -> ModelSpec:
    """The model with a tower of so many layers: patches of 588 numbers, four a token, 64 tokens an image."""
    joined = 4 * width * model.hidden_size
    tower = Tower(
        num_layers=layers,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=4,
        patch_values=588,
        stem_parameters=588 * width,
        join=((4 * width, model.hidden_size),),
        join_parameters=joined,
        merge=4,
        image_tokens=64,
        any_size=True,
        window_patches=window_patches,
        full_layers=min(1, layers) if window_patches else 0,
    )
    return replace(model, name=f"{model.name} that sees", num_layers=model.num_layers + layers, tower=tower)
