"""Writing text that came from outside (model names, cluster names) into other languages, safely.

Every export goes through one of these: nothing a user wrote can end a string, start a command or a comment.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any


def shell(value: object) -> str:
    """Quote one word of a shell command.

    >>> shell("a b; rm -rf /"), shell(8)
    ("'a b; rm -rf /'", '8')
    """
    return shlex.quote(one_line(str(value)))


def one_line(text: str) -> str:
    """Give a text without line breaks or control characters, for comments.

    >>> one_line("llama" + chr(10) + "rm")
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


def yaml(value: Any, indent: int = 0) -> str:
    """Write plain data as block YAML; strings are double-quoted JSON, which YAML reads alike.

    >>> print(yaml({"a": [1, {"b": "x: y"}]}), end="")
    a:
      - 1
      - b: "x: y"
    """
    pad = "  " * indent
    if isinstance(value, dict):
        return "".join(f"{pad}{_key(key)}:{_after(item, indent)}" for key, item in value.items())
    lines = []
    for item in value:
        if isinstance(item, (dict, list)) and item:
            block = yaml(item, indent + 1)
            lines.append(f"{pad}- {block[len(pad) + 2 :]}")
        else:
            lines.append(f"{pad}- {_scalar(item)}\n")
    return "".join(lines)


def _key(key: str) -> str:
    """A key, bare when it is a plain word."""
    return key if re.fullmatch(r"[A-Za-z_][\w./-]*", key) else json.dumps(key)


def _after(item: Any, indent: int) -> str:
    """What follows a key: a nested block, a text block or a scalar."""
    if isinstance(item, (dict, list)) and item:
        return "\n" + yaml(item, indent + 1)
    return f" {_scalar(item)}\n"


def _scalar(item: Any) -> str:
    """One scalar as JSON."""
    return json.dumps(item, ensure_ascii=True)
