"""Writing text that came from outside (model names, cluster names) into other languages, safely.

Every export goes through one of these: nothing a user wrote can end a string, start a command or a comment.
"""

from __future__ import annotations

import functools
import math
import re
import shlex
from typing import Any


def shell(value: object) -> str:
    """Quote one word of a shell command.

    >>> shell("a b; rm -rf /"), shell(8)
    ("'a b; rm -rf /'", '8')
    """
    return shlex.quote(single_line(str(value)))


def single_line(text: str) -> str:
    """Give a text without line breaks or control characters, for comments.

    >>> single_line("llama" + chr(10) + "rm")
    'llama rm'
    """
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def slug(text: str, most: int = 40) -> str:
    """Give a name that every scheduler accepts: lower-case letters, digits and single hyphens.

    >>> slug("Llama 3.1/70B $(reboot)")
    'llama-3-1-70b-reboot'
    """
    cleaned = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:most].strip("-")
    return cleaned if cleaned[:1].isalpha() else f"plan-{cleaned}".strip("-")


class LiteralBlock(str):
    """A text of several lines that YAML shows as lines: a file within a file."""

    __slots__ = ()


def yaml(*documents: Any) -> str:
    r"""Write plain data as documents of block YAML: strings double-quoted as in JSON, words as keys bare.

    >>> print(yaml({"a": [1, {"b": "x: y"}]}, {"c": LiteralBlock("1\n2\n")}), end="")
    a:
      - 1
      - b: "x: y"
    ---
    c: |
      1
      2
    """
    import yaml as library

    settings: dict[str, Any] = {"Dumper": _dumper(), "sort_keys": False, "width": math.inf}
    return "---\n".join(library.dump(document, **settings) for document in documents)


@functools.cache
def _dumper() -> type[Any]:
    """PyYAML's, with items of a list indented, nothing written by reference, and strings in double quotes."""
    import yaml as library

    class Dumper(library.SafeDumper):  # type: ignore[misc]  # PyYAML has no types here
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
            super().increase_indent(flow, indentless=False)

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
            return True

        def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> Any:
            node = super().represent_mapping(tag, mapping, flow_style)
            for key, _ in node.value:
                key.style = None if _WORD.fullmatch(key.value) else '"'
            return node

    text = "tag:yaml.org,2002:str"
    Dumper.add_representer(str, lambda dumper, data: dumper.represent_scalar(text, data, style='"'))
    Dumper.add_representer(LiteralBlock, lambda dumper, data: dumper.represent_scalar(text, data, style="|"))
    return Dumper


_WORD = re.compile(r"[A-Za-z_][\w./-]*")
"""A key that needs no quotes."""
