"""From a valid input to a hostile one: changes of trees (JSON, TOML) and of text (dumps, tables), each told.

A mutation is known by its generator's seed; what it did is a list of short sentences, so that a fault can be
read without the whole input.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias

_Place: TypeAlias = "tuple[Any, Any, _Place | None]"
RAW = "\x01raw:"
"""Mark of a text that is written into JSON without quotes: what Python's own writer cannot say."""
CANARY = "CANARY/secret.toml"
"""A path that no input may open; the sandbox puts its own folder in place of CANARY."""

NUMBERS: tuple[Any, ...] = (
    0, -0.0, -1, 1, 2, 3, 7, 63, 0.5, 1.5, 1e-9, 1e-320, 2**31 - 1, 2**31, 2**53 + 1, 2**62, 2**63, 2**64, 10**18, -(2**63),
    1e18, 1e30, 1e300, 1e308, -1e308, 10**30, 10**400, 999999999, 100_000, 1_000_000, float("nan"), float("inf"),
    -float("inf"), RAW + "9" * 5000, RAW + "1e999", RAW + "1" + "0" * 308, True,
)  # fmt: skip
TEXTS = (
    "", " ", "0", "-1", "nan", "inf", "-inf", "1e308", "1e999", "four", "7.5", "9" * 400, "0x10", "1_000", "١٢", "½", "²", "8 GB/s",
    "1e400 GB/s", "-5 Gbit/s", "nan GB", "N/A", "\ud800", "\x00", "\x1b[31m", "a\nb", "\u202e", "é" * 300, "x" * 3000, "/dev/zero", CANARY, "../" * 40,
    "/etc/passwd", "file:///etc/passwd", "'; touch CANARY/made; '", "$(touch CANARY/made)", "`id`", "{}", "[]", "null", "None", "True",
    "n[0-99999999]", "n[9-0]", "a,b", "a/b", "\\", '"', "%s%n", "=cmd()",
)  # fmt: skip
ODD: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": 0}, [1, "a"], {"a": {"b": []}})
DEEP = tuple(RAW + left * depth + right * depth for left, right in (("[", "]"), ('{"a":', "}")) for depth in (50, 2000, 100_000))  # fmt: skip


def hostile_value(random: Random) -> Any:
    """One value that a careless reader trips over."""
    kind = random.random()
    if kind < 0.5:
        return random.choice(NUMBERS)
    if kind < 0.8:
        return random.choice(TEXTS)
    return _copied(random.choice(ODD)) if kind < 0.99 else random.choice(DEEP)


def brief(value: object) -> str:
    """A value in at most eighty letters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}…({len(text)} letters)"


def mutated_tree(tree: Any, random: Random, story: list[str]) -> Any:
    """A copy of a tree of dicts and lists after one to four changes."""
    found = _copied(tree)
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        places: list[_Place] = []
        _find_places(found, None, places)
        if places:
            found = _changed(found, random.choice(places), places, random, story)
    return found


def _copied(tree: Any) -> Any:
    """A copy of plain values, several times faster than `copy.deepcopy` makes it."""
    return pickle.loads(pickle.dumps(tree, -1))  # noqa: S301 - what was written on the same line


def _find_places(node: Any, parent: _Place | None, found: list[_Place]) -> None:
    """Add every (container, key, place of the container) of a tree, at most a few thousand."""
    keys = (
        [*node][:200] if isinstance(node, dict) else range(len(node))[:200] if isinstance(node, list) else ()
    )
    for key in keys:
        place = (node, key, parent)
        found.append(place)
        if isinstance(node[key], dict | list):
            _find_places(node[key], place, found)


def _path(place: _Place | None) -> str:
    """Where a place is, as a user would write it."""
    if place is None:
        return "$"
    node, key, parent = place
    return f"{_path(parent)}.{key}" if isinstance(node, dict) else f"{_path(parent)}[{key}]"


def is_number(value: object) -> bool:
    """Whether a value can be divided and multiplied by a thousand as a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _changed(
    tree: Any,
    place: _Place,
    places: Sequence[_Place],
    random: Random,
    story: list[str],
) -> Any:
    """Apply one change at one place."""
    node, key, _ = place
    path = _path(place)
    value, kind = node[key], random.random()
    if kind < 0.5:
        node[key] = hostile_value(random)
    elif kind < 0.6:
        del node[key]
        story.append(f"del {path}")
        return tree
    elif kind < 0.7 and is_number(value):
        node[key] = random.choice(
            (-value, value * 1000, value + 1, value - 1, value / 3, float(value), str(value), value * 2**40)
        )
    elif kind < 0.76:
        node[key] = [value]
    elif kind < 0.84 and isinstance(value, list):
        node[key] = (
            (value * random.choice((2, 100, 2_000)))[:2_000]
            if random.random() < 0.5
            else value[: len(value) // 2]
        )
    elif kind < 0.92:
        node[key] = _copied(random.choice([other[0][other[1]] for other in places]))
    elif isinstance(node, dict):
        node[random.choice(("extra", "", "__class__", "name", key + "s", "\ud800", RAW))] = hostile_value(
            random
        )
        story.append(f"add a key beside {path}")
        return tree
    else:
        node.append(hostile_value(random))
    story.append(f"{path} = {brief(node[key])}")
    return tree


def json_of(tree: Any) -> str:
    """JSON text, NaN and infinities included, with raw parts as they are."""
    text = json.dumps(tree)
    if "\\u0001raw:" not in text:
        return text
    text = json.dumps(_keyed(tree))
    return re.sub(r'"\\u0001raw:((?:[^"\\]|\\.)*)"', lambda found: json.loads(f'"{found[1]}"'), text)


def _keyed(tree: Any) -> Any:
    """Integers of more digits than Python writes, as raw text."""
    if isinstance(tree, dict):
        return {str(key).replace(RAW, "raw"): _keyed(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_keyed(value) for value in tree]
    return tree


def toml_of(tree: dict[str, Any]) -> str:
    """A tree as TOML: its plain values, then a table for each list of tables."""
    plain = {key: value for key, value in tree.items() if not _is_tables(value)}
    lines = [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in plain.items()]
    for key, tables in tree.items():
        for table in tables if _is_tables(tables) else ():
            lines += [
                "",
                f"[[{_toml_key(key)}]]",
                *(f"{_toml_key(k)} = {_toml_value(v)}" for k, v in table.items()),
            ]
    return "\n".join(lines) + "\n"


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(str(k))} = {_toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, str) and value.startswith(RAW):
        return value.removeprefix(RAW)
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(str(value), repr(value))
    return (
        "''"
        if value is None
        else json.dumps(value, ensure_ascii=isinstance(value, str) and not value.isprintable())
    )


def mutated_text(text: str, random: Random, story: list[str]) -> str:
    """A text after one to three changes of its lines, words and letters."""
    for _ in range(random.choice((1, 1, 2, 3))):
        change = random.choice(_TEXT_CHANGES)
        story.append((change.__doc__ or "").rstrip("."))
        text = change(text, random, story)
    return text


def _drop_lines(text: str, random: Random, story: list[str]) -> str:
    """Drop lines."""
    lines = text.split("\n")
    start = random.randrange(len(lines))
    return "\n".join(lines[:start] + lines[start + random.choice((1, 1, 2, 10)) :])


def _repeat_line(text: str, random: Random, story: list[str]) -> str:
    """Repeat a line."""
    lines = text.split("\n")
    at = random.randrange(len(lines))
    return "\n".join(lines[:at] + [lines[at]] * random.choice((2, 2, 3, 60)) + lines[at + 1 :])


def _swap_lines(text: str, random: Random, story: list[str]) -> str:
    """Swap two lines."""
    lines = text.split("\n")
    a, b = random.randrange(len(lines)), random.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return "\n".join(lines)


def _cut(text: str, random: Random, story: list[str]) -> str:
    """Cut the end off."""
    return text[: random.randrange(len(text) + 1)]


def _number(text: str, random: Random, story: list[str]) -> str:
    """Replace a number."""
    return _replaced(text, r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", random, story, lambda: str(random.choice(NUMBERS)).removeprefix(RAW) if random.random() < 0.7 else random.choice(TEXTS))  # fmt: skip


def _word(text: str, random: Random, story: list[str]) -> str:
    """Replace a word."""
    words = re.findall(r"[\w-]+", text)
    return _replaced(text, r"[\w-]+", random, story, lambda: random.choice(words) if words and random.random() < 0.5 else random.choice(TEXTS))  # fmt: skip


def _letters(text: str, random: Random, story: list[str]) -> str:
    """Replace letters."""
    at = random.randrange(len(text) + 1)
    return text[:at] + random.choice(("", "\x00", "\t", "\n", "\r", "[", "]", '"', "<", ">", ",", ":", "-", "\ud800", "é")) + text[at + random.choice((0, 1)) :]  # fmt: skip


def _replaced(text: str, pattern: str, random: Random, story: list[str], new: Callable[[], str]) -> str:
    """Replace one match of a pattern."""
    spans = [found.span() for found in re.finditer(pattern, text[:200_000])]
    if not spans:
        return text
    (start, end), put = random.choice(spans), new()
    story[-1] = f"{brief(text[max(0, start - 30) : start])} {brief(text[start:end])} → {brief(put)}"
    return text[:start] + put + text[end:]


_TEXT_CHANGES = (
    _drop_lines,
    _repeat_line,
    _swap_lines,
    _cut,
    _number,
    _number,
    _number,
    _word,
    _word,
    _letters,
)


def mutated_cells(row: dict[str, str], random: Random, story: list[str]) -> dict[str, str]:
    """A row of a table after one to three changed cells."""
    found = dict(row)
    for _ in range(random.choice((1, 1, 2, 3))):
        name = random.choice(list(found))
        value = (
            random.choice(TEXTS) if random.random() < 0.5 else str(random.choice(NUMBERS)).removeprefix(RAW)
        )
        if random.random() < 0.1:
            value = random.choice(list(row.values()))
        found[name] = value
        story.append(f"{name} = {brief(value)}")
    return found
