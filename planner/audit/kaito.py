"""Workspaces of KAITO: the preset that one serves, on how many machines, as the command that it starts.

KAITO (Kubernetes AI Toolchain Operator) starts vLLM with tensor ranks over the GPUs of a machine and stages
over machines; options of its configuration's table ``vllm`` are flags.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from topology.hardware.datasheets import machines_in_text

_WORKSPACE = re.compile(r"^apiVersion:[ \t]*kaito\.sh/", re.MULTILINE)
_GPUS = "$GPUS_OF_MACHINE"
"""GPUs of a machine that is not known: a variable that only a run knows."""
_FLAG = re.compile(r"[a-z][a-z0-9_-]*")


def script_of_workspace(text: str) -> str:
    """The script of what a workspace serves; "" of other files."""
    if _WORKSPACE.search(text) is None:
        return ""
    import yaml

    try:
        documents = [document for document in yaml.safe_load_all(text) if isinstance(document, dict)]
    except yaml.YAMLError:
        return ""
    space = next((each for each in documents if each.get("kind") == "Workspace"), {})
    resource, inference = _table(space.get("resource")), _table(space.get("inference"))
    preset = _table(inference.get("preset")).get("name")
    machines = machines_in_text(str(resource.get("instanceType", "")))
    if not preset:
        return ""
    options = dict(_options(documents, str(inference.get("config", "")), yaml))
    gpus = str(machines[0].gpus_per_node) if len(machines) == 1 else _GPUS
    degrees: dict[str, object] = {"tensor-parallel-size": gpus}
    if isinstance(count := resource.get("count"), int) and count > 1:
        degrees |= {"pipeline-parallel-size": count, "nnodes": count}
    words = [word for name, value in {**degrees, **options}.items() for word in _words(name, value)]
    lines = [f"# {line}".rstrip(" \\") for line in text.split("\n")]
    place = next((at for at, line in enumerate(lines) if str(preset) in line), 1) or 1
    lines[0] = "#!/bin/sh"
    lines[place] = " ".join(("vllm serve", shlex.quote(str(preset)), *words))
    return "\n".join([*lines, f"# {resource.get('instanceType')}"])


def _options(documents: list[dict[str, Any]], name: str, yaml: Any) -> Iterator[tuple[str, object]]:
    """Options of the engine in the ConfigMap that a workspace names."""
    for document in documents:
        if document.get("kind") != "ConfigMap" or _table(document.get("metadata")).get("name") != name:
            continue
        for content in _table(document.get("data")).values():
            try:
                inner = yaml.safe_load(content) if isinstance(content, str) else None
            except yaml.YAMLError:
                continue
            yield from _table(_table(inner).get("vllm")).items()


def _words(name: object, value: object) -> Iterator[str]:
    """An option as words of a command; what is off, or 0 of an offload, is not said."""
    if not isinstance(name, str) or not _FLAG.fullmatch(name) or value is None or value is False:
        return
    yield f"--{name.replace('_', '-')}"
    if value is not True:
        yield _GPUS if value == _GPUS else shlex.quote(str(value))


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
