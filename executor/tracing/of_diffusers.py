"""Models of `diffusers` by their configuration: denoisers take a sample, a time, and what conditions them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topology.base.decode import read_json
from topology.base.errors import InputError, shown

SAMPLES, TEXT_TOKENS, TIME_IDS = 8, 77, 6
"""Images; tokens of CLIP's text encoder; sizes and crops that SDXL conditions on."""


def build(name: str) -> tuple[Any, str]:
    """The module of a configuration, and its usual inputs; empty where nobody can say.

    Raises:
        InputError: If it names no class of diffusers.
    """
    import diffusers  # type: ignore[import-not-found, unused-ignore]

    place = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    config = read_json(place)
    value = config.get("_class_name", "") if isinstance(config, dict) else ""
    kind = getattr(diffusers, str(value), None)
    if kind is None or not isinstance(config, dict):
        raise InputError(
            what=f"diffusers has no model {shown(str(value))}",
            cause="it is none of its names",
            fix="give the config.json of one model, as unet/config.json",
        )
    model = kind.from_config(config)
    usual = _USUAL.get(str(value), lambda _: {})(model.config)
    return (_called(model, tuple(usual)), ",".join(usual.values())) if usual else (model, "")


def _unet(config: Any) -> dict[str, str]:
    """A U-Net: latents, time, states of the text encoder; pooled text and sizes where it takes them."""
    width = config.cross_attention_dim
    unet = {
        "sample": f"{SAMPLES}x{config.in_channels}x{config.sample_size}x{config.sample_size}",
        "timestep": f"{SAMPLES}",
        "encoder_hidden_states": f"{SAMPLES}x{TEXT_TOKENS}x{width}",
    }
    if config.addition_embed_type != "text_time":
        return unet
    pooled = config.projection_class_embeddings_input_dim - TIME_IDS * config.addition_time_embed_dim
    return {**unet, "text_embeds": f"{SAMPLES}x{pooled}", "time_ids": f"{SAMPLES}x{TIME_IDS}"}


def _dit(config: Any) -> dict[str, str]:
    """A diffusion transformer of classes: latents, time, class."""
    size = f"{SAMPLES}x{config.in_channels}x{config.sample_size}x{config.sample_size}"
    return {"hidden_states": size, "timestep": f"{SAMPLES}:long", "class_labels": f"{SAMPLES}:long"}


_ADDED = ("text_embeds", "time_ids")
_USUAL: Mapping[str, Any] = {"UNet2DConditionModel": _unet, "DiTTransformer2DModel": _dit}


def _called(model: Any, names: tuple[str, ...]) -> Any:
    """A model that takes its inputs in order and gives what it predicts."""
    import torch

    class Called(torch.nn.Module):
        """The denoiser alone; its loss is one pass over what it predicts."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: Any) -> Any:
            """What it predicts of the noise."""
            words = dict(zip(names, given, strict=False))
            added = {name: words.pop(name) for name in _ADDED if name in words}
            more = {"added_cond_kwargs": added} if added else {}
            return self.model(**words, **more, return_dict=False)[0]

    return Called()
