"""Files as what they start: templates filled, containers and workspaces as the commands that they start."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.audit.container_variables import script_of_container
from planner.audit.kaito import script_of_workspace
from planner.formats.kinds import kind_of
from planner.formats.settings import Scalar
from planner.formats.structured import yaml_settings
from planner.formats.templates import filled, is_template, values_of_tables
from topology.base.errors import InputError

_SERVES = re.compile(r"\b(?:vllm|sglang|trtllm-serve)\b")
"""Words of a command that serves."""
MOST_CHARACTERS = 300_000
"""Of a file that may be rewritten: a launch file has some thousands."""


def as_started(texts: Mapping[str, str]) -> dict[str, str]:
    """Every text as what it starts; one that starts it plainly is itself."""
    small = {name: text for name, text in texts.items() if len(text) <= MOST_CHARACTERS}
    templates = [name for name, text in small.items() if _fills(name, text)]
    values = _values(small) if templates else {}
    result = {**texts, **{name: filled(small[name], values) for name in templates}}
    scripts = {name: script_of_container(result[name]) or script_of_workspace(result[name]) for name in small}
    return {**result, **{name: script for name, script in scripts.items() if script}}


def _fills(name: str, text: str) -> bool:
    """Whether a text is a template of a script, or of commands of a recipe."""
    if not is_template(text):
        return False
    kind = kind_of(text, name)
    return kind == "shell" or (kind == "yaml" and _SERVES.search(text) is not None)


def _values(texts: Mapping[str, str]) -> dict[str, Scalar]:
    """What the tables of files fill places with: those of YAML, the template's own among them."""
    settings = []
    for name, text in texts.items():
        if kind_of(text, name) == "yaml":
            try:
                settings += yaml_settings(text, name)
            except InputError:
                continue
    return values_of_tables(settings)
