"""Configuration files as settings: JSON, TOML and YAML, by parsers that build nothing else.

YAML is read as events: tags (``!include``) are passed over, an alias is what its anchor marks, and no object
is ever constructed. Tables that others merge (``<<``) are templates: what they say themselves comes last. A
JSON template, whose values a script replaces, is read with those values unknown.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from planner.formats.settings import MOST_SETTINGS, Scalar, Setting
from topology.base.decode import json_value
from topology.base.errors import InputError, shortened

if TYPE_CHECKING:
    import yaml

MOST_NESTED = 40
LONGEST_LIST = 64
"""Entries of a list that are kept; longer ones are data, not settings."""
LONGEST_VALUE = 4000
_PLACEHOLDER = re.compile(r"(:\s*|[\[,]\s*)([A-Z][A-Z0-9_]*)(?=\s*[,}\]])")
_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:')
_TOML_KEY = re.compile(r"^\s*(?:\[+\s*([^\]]+?)\s*\]+|([\w\"'.-]+)\s*=)", re.MULTILINE)
_COMMANDS = ("command", "args", "arguments", "entrypoint")
"""Keys whose list is the words of a command."""
_OF_FLAGS = re.compile(r"(?:^|[a-z]_?)[aA]rg(?:ument)?s$")
"""How a key ends whose list may be flags: ``extraArgs``, ``server_args``."""
_FLAG = re.compile(r"--?[A-Za-z]")
_SPECIAL = re.compile(r"[-+]?(?:\d[\d_]*)")
_FLOAT = re.compile(r"[-+]?(?:\d[\d_]*)?\.?\d+(?:[eE][-+]?\d+)?")
_WORDS: dict[str, Scalar] = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
    "null": None,
    "~": None,
    "": None,
}


def json_settings(text: str, where: str) -> tuple[list[Setting], bool]:
    """Settings of a JSON document, and whether it is a template."""
    template = False
    try:
        value = json_value(text)
    except (ValueError, RecursionError) as error:
        filled, count = _PLACEHOLDER.subn(r"\1null", text)
        try:
            value = json_value(filled) if count else None
        except (ValueError, RecursionError):
            value = None
        if value is None:
            raise _unreadable(where, "JSON", str(error)) from None
        template = True
    lines = _key_lines(text)
    return flattened(value, lambda name: lines.get(name.rpartition(".")[2], 1)), template


def _key_lines(text: str) -> dict[str, int]:
    """The first line of every key."""
    key_lines: dict[str, int] = {}
    at, line = 0, 1
    for match in _KEY.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        key_lines.setdefault(match.group(1), line)
        if len(key_lines) > MOST_SETTINGS:
            break
    return key_lines


def toml_settings(text: str, where: str) -> list[Setting]:
    r"""Settings of a TOML document; a table without keys is itself one that is on.

    >>> [(each.name, each.value) for each in toml_settings("[model]\nname = 'x'\n[model.ac]\n", "a.toml")]
    [('model.name', 'x'), ('model.ac', True)]
    """
    if any(line.count(".") > 100 for line in text.split("\n")):
        raise _unreadable(where, "TOML", "a line has more than 100 dots")
    try:
        value = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise _unreadable(where, "TOML", str(error)) from None
    lines: dict[str, int] = {}
    headers: dict[str, int] = {}
    table, at, line = "", 0, 1
    for match in _TOML_KEY.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        skipped = text.count(
            "\n", match.start(), match.start() + len(match.group()) - len(match.group().lstrip())
        )
        if match.group(1):
            table = match.group(1)
            headers[table] = line + skipped
        else:
            lines.setdefault(f"{table}.{match.group(2)}".lstrip("."), line + skipped)
    settings = flattened(value, lambda name: lines.get(name, 1))
    bare = [name for name in headers if not any(setting.name.startswith(f"{name}.") for setting in settings)]
    return [*settings, *(Setting(name=name, value=True, line=headers[name]) for name in bare)]


def flattened(value: Any, line_of: Any) -> list[Setting]:
    """Every leaf of tables and lists as a setting."""
    settings: list[Setting] = []
    waiting: list[tuple[str, Any, int]] = [("", value, 0)]
    while waiting and len(settings) < MOST_SETTINGS:
        name, node, depth = waiting.pop()
        if depth > MOST_NESTED:
            continue
        if isinstance(node, dict):
            inner = [(f"{name}.{key}".lstrip("."), part, depth + 1) for key, part in node.items()]
            waiting.extend(reversed(inner))
        elif isinstance(node, list):
            _list(name, node, depth, waiting, settings, line_of)
        else:
            settings.append(Setting(name=name, value=_scalar(node), line=line_of(name)))
    return settings


def _list(
    name: str, node: list[Any], depth: int, waiting: list[Any], settings: list[Setting], line_of: Any
) -> None:
    """A list: of plain values one setting, of tables those of each."""
    parts = node[:LONGEST_LIST]
    if any(isinstance(part, dict | list) for part in parts):
        waiting.extend((name, part, depth + 1) for part in reversed(parts))
    else:
        text = ",".join(str(_scalar(part)) for part in parts)
        settings.append(Setting(name=name, value=text[:LONGEST_VALUE], line=line_of(name)))


def _scalar(value: Any) -> Scalar:
    """A leaf as plain data; dates become text."""
    if isinstance(value, str):
        return value[:LONGEST_VALUE]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**30:
        return None
    return value if isinstance(value, bool | int | float) or value is None else str(value)[:LONGEST_VALUE]


def yaml_settings(text: str, where: str) -> list[Setting]:
    """Settings of a YAML document (of several, of all)."""
    import yaml

    if not text.strip():
        return []
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    reader = _Events()
    try:
        for event in yaml.parse(text, Loader=loader):
            reader.take(event)
            if len(reader.read) >= MOST_SETTINGS or len(reader.stack) > MOST_NESTED:
                break
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _unreadable(where, "YAML", " ".join(str(error).split())) from None
    return reader.settings()


class _Events:
    """Settings from a stream of YAML events."""

    def __init__(self) -> None:
        self.read: list[Setting] = []
        self.stack: list[tuple[str, str, list[str]]] = []
        """Open collections: kind, name, plain parts of a list."""
        self.key: str | None = None
        self.anchors: dict[str, tuple[int, int, str] | Scalar] = {}
        """By anchor: a value, or the first and last setting of a table and its name."""
        self.opened: list[tuple[str, int]] = []
        """Anchor of every open collection, and the settings before it."""
        self.merged: dict[int, dict[str, None]] = {}
        """Anchors that a table merges, by its depth."""
        self.templates: set[str] = set()

    def settings(self) -> list[Setting]:
        """What was read, templates last."""
        late = {
            number
            for name in self.templates
            if isinstance(place := self.anchors.get(name), tuple)
            for number in range(*place[:2])
        }
        plain = [setting for number, setting in enumerate(self.read) if number not in late]
        return [*plain, *(self.read[number] for number in sorted(late))][:MOST_SETTINGS]

    def take(self, event: yaml.Event) -> None:
        """One event."""
        kind = type(event).__name__
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            merges = "<<" if self.key == "<<" else ""
            self.stack.append((merges or kind[0], self.stack[-1][1] if merges else self.name(), []))
            self.opened.append((getattr(event, "anchor", None) or "", len(self.read)))
            self.key = None
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self.end(event)
        elif kind == "AliasEvent":
            self.alias(event)
        elif kind == "ScalarEvent":
            self.scalar(event)

    def name(self) -> str:
        """The name of what comes next."""
        outer = self.stack[-1][1] if self.stack else ""
        return outer if self.key is None else f"{outer}.{self.key}".lstrip(".")

    def end(self, event: yaml.Event) -> None:
        """A collection ends; a list of plain values is one setting."""
        kind, name, parts = self.stack.pop() if self.stack else ("", "", [])
        anchor, start = self.opened.pop() if self.opened else ("", 0)
        if kind == "S" and parts:
            key = name.rpartition(".")[2].removesuffix("[]")
            command = key in _COMMANDS or (_OF_FLAGS.search(key) and any(_FLAG.match(part) for part in parts))
            text = (shlex.join(parts) if command else ",".join(parts[:LONGEST_LIST]))[:LONGEST_VALUE]
            self.read.append(Setting(name=name, value=text, line=_line(event)))
        for merged in self.merged.pop(len(self.stack), ()):  # what the table says itself came first
            self.copy(merged, name, {setting.name for setting in self.read[start:]})
        if anchor:
            self.anchors[anchor] = (start, len(self.read), name)
        self.key = None

    def alias(self, event: Any) -> None:
        """What an anchor marks, once more under the name that is open."""
        known = self.anchors.get(event.anchor)
        merges = bool(self.stack) and (self.key == "<<" or self.stack[-1][0] == "<<")
        if merges:
            depth = len(self.stack) - (1 if self.key == "<<" else 2)
            self.merged.setdefault(depth, {})[event.anchor] = None
            self.templates.add(event.anchor)
        elif self.stack and self.stack[-1][0] != "S" and self.key is None:
            self.key = str(known)[:200]
            return
        elif isinstance(known, tuple):
            self.copy(event.anchor, self.name())
        elif self.stack and self.stack[-1][0] == "S":
            self.stack[-1][2].append(str(known))
        elif self.stack:
            self.read.append(Setting(name=self.name(), value=known, line=_line(event)))
        self.key = None

    def copy(self, anchor: str, name: str, but: Collection[str] = ()) -> None:
        """The settings of a table that an anchor marks, under another name, but some."""
        place = self.anchors.get(anchor)
        left = MOST_SETTINGS - len(self.read)
        if isinstance(place, tuple) and left > 0:
            start, end, prefix = place
            for setting in self.read[start : min(end, start + left)]:
                inside = f"{name}{setting.name[len(prefix) :]}".lstrip(".")[:LONGEST_VALUE]
                if inside not in but:
                    self.read.append(Setting(name=inside, value=setting.value, line=setting.line))

    def scalar(self, event: Any) -> None:
        """A key, a value, or an entry of a list."""
        text = str(event.value or "")
        plain = event.style in (None, "")
        value = plain_value(text) if plain else text[:LONGEST_VALUE]
        if event.anchor:
            self.anchors[event.anchor] = value
        if not self.stack:
            return
        kind, _, parts = self.stack[-1]
        if kind == "S":
            parts.append(text[:LONGEST_VALUE])
        elif self.key is None:
            self.key = text[:200]
        else:
            self.read.append(Setting(name=self.name(), value=value, line=_line(event)))
            self.key = None


def _line(event: Any) -> int:
    mark = getattr(event, "start_mark", None)
    return int(mark.line) + 1 if mark is not None else 1


def plain_value(text: str) -> Scalar:
    """What an unquoted word of YAML means.

    >>> plain_value("70_000"), plain_value("3E-4"), plain_value("yes"), plain_value("bf16")
    (70000, 0.0003, True, 'bf16')
    """
    word = text.strip()
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if len(word) <= 30 and _SPECIAL.fullmatch(word):
        return int(word.replace("_", ""))
    if len(word) <= 30 and _FLOAT.fullmatch(word):
        return float(word.replace("_", ""))
    return text[:LONGEST_VALUE]


def _unreadable(where: str, kind: str, cause: str) -> InputError:
    """A file that is not what it looks like."""
    return InputError(
        f"{where} is not valid {kind}", shortened(cause, 200), "correct the syntax at that place"
    )
