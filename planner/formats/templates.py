"""Templates of scripts and commands: their places are filled from the tables that are given beside them.

Ansible and cloud-init write ``{{ name }}`` and ``{{ name | default(2) }}``; recipes of containers ``{name}``
in a command, with a table of defaults. A place that no table fills is a variable that only a run knows, so
that nothing stands in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from planner.formats.settings import Scalar, Setting

_PLACE = re.compile(
    r"(?<!\$)\{\{-?[ \t]*(?!(?:end|else|define|template|include|block|range|with)\b)"
    r"(?P<name>[A-Za-z_][\w.]*)[ \t]*"
    r"(?:\|[ \t]*default\((?P<default>[^()\n]*)\)[ \t]*)?(?:\|[^{}\n]*)?-?\}\}"
)
"""A place of Jinja; one of Helm begins with a dot, one of a workflow with a dollar."""
_CONDITION = re.compile(
    r"\{%-?[ \t]*if[ \t]+(?P<name>[A-Za-z_]\w*)(?P<defined>[ \t]+is[ \t]+defined)?[ \t]*-?%\}(?P<body>[^%]*)"
    r"\{%-?[ \t]*endif[ \t]*-?%\}"
)
_QUOTES = "'\""
_TAG = re.compile(r"\{%[^%\n]*%\}")
_FLAG_OF_PLACE = re.compile(
    r"(?P<flag>(?:^|\s)--?[A-Za-z][\w.-]*(?:[ \t]+|=))\{(?P<name>[a-z_]\w*)\}(?=[\s\\\"']|$)"
)
"""A flag whose value is a place of one brace."""


def is_template(text: str) -> bool:
    """Whether a text has places to be filled.

    >>> is_template("vllm serve {{ model }}"), is_template("image: {{ .Values.image }}"), is_template("${a}")
    (True, False, False)
    """
    return _PLACE.search(text) is not None or _FLAG_OF_PLACE.search(text) is not None


def values_of_tables(settings: Iterable[Setting]) -> dict[str, Scalar]:
    """Values of tables by the last part of their keys, of keys that have one value.

    >>> rows = {"defaults.tp": 2, "a.port": 1, "b.port": 2, "defaults.model": "{model}"}
    >>> values_of_tables([Setting(name=name, value=value, line=1) for name, value in rows.items()])
    {'tp': 2}
    """
    values: dict[str, set[Scalar]] = {}
    for setting in settings:
        if not isinstance(setting.value, str) or "{" not in setting.value:
            values.setdefault(setting.name.rpartition(".")[2], set()).add(setting.value)
    return {
        name: value
        for name, each in values.items()
        if len(each) == 1 and (value := next(iter(each))) is not None
    }


def filled(text: str, values: Mapping[str, Scalar]) -> str:
    """The text with the places that are known filled; others are variables of a shell, with their defaults.

    >>> text = "vllm serve {{ model }} -tp {tp} --port {{ port | default(8000) }} --seed {{ seed }}"
    >>> filled(text, {"model": "a/b", "tp": 2})
    'vllm serve a/b -tp 2 --port ${port:-8000} --seed ${seed}'
    >>> filled("serve{% if eager is defined %} --enforce-eager{% endif %}", {})
    'serve'
    """

    def place(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        known = values.get(name.rpartition(".")[2])
        if known is not None:
            return _text(known)
        variable = name.replace(".", "_")
        return (
            f"${{{variable}}}" if default is None else f"${{{variable}:-{default.strip(chr(34) + chr(39))}}}"
        )

    def condition(match: re.Match[str]) -> str:
        known = values.get(match["name"])
        holds = known is not None if match["defined"] else known not in (None, False)
        return match["body"] if holds else ""

    text = _PLACE.sub(place, _TAG.sub("", _CONDITION.sub(condition, text)))
    return _FLAG_OF_PLACE.sub(
        lambda match: match["flag"] + _text(values.get(match["name"], f"${{{match['name']}}}")), text
    )


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
