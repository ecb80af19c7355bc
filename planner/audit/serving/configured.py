"""A model whose ``config.json`` is among the files of a server: that of the folder which the server loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from costmodel.accuracy.checkpoint_names import checkpoint_model
from costmodel.models.hf.config import model_of_config
from costmodel.models.spec import ModelSpec
from topology.base.decode import as_text, json_value
from topology.base.errors import InputError

CONFIG = "config.json"


def configs_of(texts: Mapping[str, str]) -> dict[str, str]:
    """Texts that are configurations of models, by name."""
    return {
        name: text for name, text in texts.items() if PurePath(name).name == CONFIG and '"model_type"' in text
    }


def configured_model(named: str, configs: Mapping[str, str], assumed: list[str]) -> ModelSpec | None:
    """The model of a folder that a server loads; None where no file is its configuration.

    A single configuration is that of a name that is not known here, and it is said.

    Args:
        named: What the server loads.
        configs: Configurations among its files, by name.
        assumed: What was taken for granted, which is added to.

    Raises:
        InputError: The configuration describes no model that is known.
    """
    folder = PurePath(named).name
    chosen = next((name for name in configs if folder and PurePath(name).parent.name == folder), None)
    if chosen is None and len(configs) == 1 and not _is_known(named):
        chosen = next(iter(configs))
        assumed.append(f"{chosen} describes {named}: it is the only configuration among the files")
    if chosen is None:
        return None
    content = json_value(configs[chosen], named_constants=True)
    if not isinstance(content, dict):
        return None
    return model_of_config(content, name=as_text(folder), source=as_text(chosen))


def _is_known(named: str) -> bool:
    """Whether a name is that of a model here."""
    try:
        checkpoint_model(named)
    except InputError:
        return False
    return True
