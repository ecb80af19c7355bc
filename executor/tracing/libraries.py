"""Modules by the names of the libraries that have them, with random weights: nothing is fetched.

`transformers:PATH` is a config.json or its folder, `transformers:TYPE` a type with the sizes of its
configuration class; a name that was fetched before is found where the library keeps it. `torchvision:NAME`
and `timm:NAME` are those of the libraries, `diffusers:PATH` is a config.json whose class it names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from topology.base.errors import InputError, shown

IMAGES, LONGEST_TEXT = "8x3x224x224", 2048
WITH_LOSS = ("ForCausalLM", "ForMaskedLM")


def build(library: str, name: str) -> tuple[Any, str]:
    """The module, and the inputs that are usual for it; empty where nobody can say.

    Raises:
        InputError: If the library has none of that name here.
    """
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    return _BUILDERS[library](name)


def _transformers(name: str) -> tuple[Any, str]:
    import torch
    import transformers

    config = _config(transformers, name)
    config.use_cache = False
    said = (getattr(config, "architectures", None) or [""])[0]
    kind = getattr(transformers, said, None)
    model = kind(config) if kind else transformers.AutoModel.from_config(config)
    scored = type(model).__name__.endswith(WITH_LOSS)

    class Called(torch.nn.Module):
        """Takes its inputs in order, and gives its loss, or the first tensor that it computes."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, first: Any) -> Any:
            """Its loss on what it is given to predict; of others, their first output."""
            words = {model.main_input_name: first}
            if config.is_encoder_decoder:
                words["decoder_input_ids"] = first
            return self.model(**words, **({"labels": first} if scored else {}))[0]

    return Called(), _usual(config, model.main_input_name)


def _config(transformers: Any, name: str) -> Any:
    place = Path(name)
    types = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if not place.exists() and name in types:
        return transformers.AutoConfig.for_model(name)
    try:
        return transformers.AutoConfig.from_pretrained(str(place), local_files_only=True)
    except (OSError, ValueError):
        raise InputError(
            what=f"transformers has no configuration of {shown(name)} here",
            cause="it is no readable file, no type of model, and was not fetched before",
            fix="give its config.json: transformers:PATH, or a type with usual sizes: transformers:bert",
        ) from None


def _usual(config: Any, main: str) -> str:
    """Eight samples of what a configuration says of its inputs."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if main == "input_ids":
        return f"8x{min(getattr(text, 'max_position_embeddings', None) or 512, LONGEST_TEXT)}:long"
    size = getattr(config, "image_size", None)
    if main == "pixel_values" and isinstance(size, int):
        return f"8x{getattr(config, 'num_channels', 3)}x{size}x{size}"
    return ""


def _torchvision(name: str) -> tuple[Any, str]:
    import torchvision  # type: ignore[import-not-found, unused-ignore]

    if name not in torchvision.models.list_models():
        raise _unknown("torchvision", name, "torchvision.models.list_models() has them")
    return torchvision.models.get_model(name, weights=None), IMAGES


def _timm(name: str) -> tuple[Any, str]:
    import timm  # type: ignore[import-not-found, unused-ignore]

    if not timm.is_model(name):
        raise _unknown("timm", name, "timm.list_models() has them")
    model = timm.create_model(name, pretrained=False)
    size = model.pretrained_cfg.get("input_size", (3, 224, 224))
    return model, "8x" + "x".join(map(str, size))


def _diffusers(name: str) -> tuple[Any, str]:
    import diffusers  # type: ignore[import-not-found, unused-ignore]

    from topology.base.decode import read_json

    place = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    config = read_json(place)
    said = config.get("_class_name", "") if isinstance(config, dict) else ""
    kind = getattr(diffusers, str(said), None)
    if kind is None or not isinstance(config, dict):
        raise _unknown("diffusers", str(said), "give the config.json of one model, as unet/config.json")
    return kind.from_config(config), ""


def _unknown(library: str, name: str, fix: str) -> InputError:
    return InputError(f"{library} has no model {shown(name)}", "it is none of its names", fix)


_BUILDERS: Mapping[str, Callable[[str], tuple[Any, str]]] = {
    "transformers": _transformers,
    "torchvision": _torchvision,
    "timm": _timm,
    "diffusers": _diffusers,
}
