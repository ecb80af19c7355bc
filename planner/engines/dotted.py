"""Files whose words are dotted keys: nested data (JSON, YAML, TOML) and assignments to a configuration."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

MOST_KEYS = 10_000


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested data.

    >>> nested({"a.b": 1, "a.c": 2})
    {'a': {'b': 1, 'c': 2}}
    """
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *groups, last = name.split(".")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return tree


def flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Nested data as dotted keys.

    >>> flat({"a": {"b": 1}})
    {'a.b': 1}
    """
    if not isinstance(data, Mapping):
        return {prefix: data}
    keys: dict[str, Any] = {}
    for name, value in data.items():
        if len(keys) > MOST_KEYS:
            break
        inner = f"{prefix}.{name}" if prefix else str(name)
        keys |= flat(value, inner) if isinstance(value, Mapping) and value else {inner: value}
    return keys


def assignments(text: str, root: str) -> dict[str, Any]:
    """Values assigned to attributes of `root` in a Python text, nothing of which is run.

    A literal is its value, a call the name of what is called.

    >>> assignments("config.a.b = 4; config.c = FullAC.Config()", "config")
    {'a.b': 4, 'c': 'FullAC'}
    """
    values: dict[str, Any] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            name = ast.unparse(node.targets[0])
            if name.startswith(f"{root}."):
                values[name.removeprefix(f"{root}.")] = _literal(node.value)
    return values


def _literal(node: ast.expr) -> Any:
    """The value of an expression, or its name."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).removesuffix(".Config")
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
