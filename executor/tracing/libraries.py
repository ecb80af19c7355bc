"""Modules by the names of the libraries that have them, with random weights: nothing is fetched.

`transformers:PATH` is a config.json or its folder, `transformers:TYPE` a type with the sizes of its
configuration class; a name that was fetched before is found where the library keeps it. `torchvision:NAME`
and `timm:NAME` are those of the libraries, `diffusers:PATH` is a config.json whose class it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costmodel.models.traced import no_length
from executor.tracing import of_diffusers, of_transformers
from topology.base.errors import InputError, shown

IMAGES = "8x3x224x224"


def build(library: str, name: str, length: int = 0) -> tuple[Any, str]:
    """The module, and the inputs that are usual for it; empty where nobody can say.

    Args:
        library: Whose model it is.
        name: As that library or its file names it.
        length: Tokens of a sample, in place of the usual; 0 for those.

    Raises:
        InputError: If the library has none of that name here, or its samples have no such length.
    """
    if library == "transformers":
        return of_transformers.build(name, length)
    if length:
        raise no_length(f"{library}:{name}", length)
    return _BUILDERS[library](name)


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


def _unknown(library: str, name: str, fix: str) -> InputError:
    return InputError(f"{library} has no model {shown(name)}", "it is none of its names", fix)


_BUILDERS: Mapping[str, Callable[[str], tuple[Any, str]]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "diffusers": of_diffusers.build,
}
