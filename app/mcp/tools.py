"""Tools that an agent may call: commands that only read, their flags as a JSON Schema, and what a call runs.

A call is one run of the command line with `--json`, in a process of its own, in the working folder. Nothing
of a user's is executed: flags that run code, write files, listen, or keep something are no part of a schema.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from topology.base.errors import InputError, shortened, shown

TOOLS: Final = (
    "train", "estimate", "serve", "explain", "ladder", "sweep", "diff", "audit", "diagnose", "accuracy",
    "memory", "models", "gpus", "engines", "topology",
)  # fmt: skip
"""Commands that answer from what they are given."""
NO_PARTS: Final = frozenset({
    "--json", "--output", "--format", "--help", "--full",  # the form is JSON, on standard output
    "--module", "--input",  # of training: code of the user's; of a server see KEPT
    "--save-dir", "--manifest", "--deploy", "--rehearse", "--plot", "--toml", "--name", "--autoscale",
    "--start-up", "--here", "--trust-paths",
})  # fmt: skip
"""Flags that run code, write, listen, or say the form of an answer."""
KEPT: Final[Mapping[str, frozenset[str]]] = {"serve": frozenset({"--input"}), "audit": frozenset({"--input"})}
"""Flags of the list above that mean something harmless in a command: the tokens of a prompt."""
LEFT_OUT: Final[Mapping[str, frozenset[str]]] = {
    "audit": frozenset({"--anchor"}),
    "memory": frozenset({"name"}),
}
"""Of one command: a flag that keeps something under a name, an argument that a flag says too."""
MOST_CHARACTERS: Final = 4_000
"""Of one value; a file says more."""
MOST_VALUES: Final = 64
MOST_ENTRIES: Final = 10_000
"""Of a folder that a call names: each is looked at for links that lead outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One property of a tool's schema.

    Attributes:
        flag: As the command line has it; empty for an argument.
        text: What it means.
        is_switch: Whether it takes no value.
        repeats: Whether it takes several.
        is_required: Whether a call must have it.
    """

    flag: str
    text: str
    is_switch: bool
    repeats: bool
    is_required: bool

    @property
    def schema(self) -> dict[str, Any]:
        """As JSON Schema; numbers are taken as they are written, and passed on as text."""
        value: dict[str, Any] = {"type": ["string", "number"]}
        if self.is_switch:
            value = {"type": "boolean"}
        elif self.repeats:
            value = {"type": "array", "items": {"type": "string"}, "maxItems": MOST_VALUES}
        return {**value, "description": self.text}


@lru_cache(maxsize=len(TOOLS))
def parts_of(tool: str) -> Mapping[str, Part]:
    """Properties of a tool by name, arguments first."""
    from app.flags.program import parameters_of

    refused = (NO_PARTS - KEPT.get(tool, frozenset())) | LEFT_OUT.get(tool, frozenset())
    parts: dict[str, Part] = {}
    for each in parameters_of(tool):
        is_argument = each.param_type_name == "argument"
        flag = "" if is_argument else max(each.opts, key=len)
        if refused & {*each.opts}:
            continue
        name = (
            (each.name or "").replace("-", "_") if is_argument else flag.removeprefix("--").replace("-", "_")
        )
        parts[name] = Part(
            flag=flag,
            text=each.help or "",
            is_switch=not is_argument and bool(each.is_flag),
            repeats=bool(getattr(each, "multiple", False)) or each.nargs == -1,
            is_required=bool(each.required),
        )
    return parts


def schema_of(tool: str) -> dict[str, Any]:
    """JSON Schema of a tool's arguments."""
    parts = parts_of(tool)
    return {
        "type": "object",
        "properties": {name: part.schema for name, part in parts.items()},
        "required": [name for name, part in parts.items() if part.is_required],
        "additionalProperties": False,
    }


def words_of(tool: str, given: Mapping[str, Any], root: Path) -> list[str]:
    """The command line of a call.

    Args:
        tool: Its name.
        given: Its arguments, as an agent sent them: nothing is believed of them.
        root: The folder outside which no file is read.

    Raises:
        InputError: no such tool or property, a value of another type or too long, or a file outside.
    """
    if tool not in TOOLS:
        raise InputError(
            f"there is no tool {shown(tool)}", f"there are {', '.join(TOOLS)}", "call one of these"
        )
    parts = parts_of(tool)
    if unknown := sorted(set(given) - set(parts)):
        known = ", ".join(parts)
        raise InputError(f"{tool} takes no {shown(unknown[0])}", f"it takes {known}", "leave it out")
    missing = [name for name, part in parts.items() if part.is_required and name not in given]
    if missing:
        raise InputError(f"{tool} needs {missing[0]}", parts[missing[0]].text, f"add {missing[0]}")
    flags, arguments = [], []
    for name, value in given.items():
        part = parts[name]
        for text in _texts(name, value, part):
            _require_inside(name, text, root)
            if not part.flag:
                arguments.append(text)
            elif part.is_switch:
                flags.append(part.flag)
            else:
                flags.append(f"{part.flag}={text}")
    return [tool, *flags, "--json", *(["--", *arguments] if arguments else [])]


def _texts(name: str, value: Any, part: Part) -> Iterator[str]:
    """Each value of a property as text."""
    if part.is_switch:
        if not isinstance(value, bool):
            raise InputError(f"{name} is true or false", f"it was {shown(repr(value))}", "send a boolean")
        if value:
            yield ""
        return
    values = value if isinstance(value, list) else [value]
    if not part.repeats and isinstance(value, list):
        raise InputError(f"{name} takes one value", f"{len(value)} were sent", "send a text or a number")
    if len(values) > MOST_VALUES:
        raise InputError(
            f"{name} has too many values", f"{len(values):,} of at most {MOST_VALUES}", "send fewer"
        )
    for each in values:
        if isinstance(each, bool) or not isinstance(each, str | int | float):
            raise InputError(f"{name} is a text or a number", f"it was {shown(repr(each))}", "send one")
        text = str(each)
        if len(text) > MOST_CHARACTERS or "\0" in text:
            cause = f"{len(text):,} characters, of at most {MOST_CHARACTERS:,}, none of them NUL"
            raise InputError(f"{name} is no possible value", cause, "name a file in the working folder")
        if not part.flag and text.startswith("-"):
            raise InputError(
                f"{name} is no flag", f"it was {shown(text)}", "name a file, or a thing by its name"
            )
        yield text


def _leads_outside(path: Path, root: Path) -> bool:
    """Whether a folder has a link that leaves the root, or more entries than are looked at."""
    if not path.is_dir():
        return False
    for number, entry in enumerate(path.rglob("*")):
        if number >= MOST_ENTRIES:
            return True
        if entry.is_symlink() and not entry.resolve().is_relative_to(root.resolve()):
            return True
    return False


def _require_inside(name: str, text: str, root: Path) -> None:
    """Refuse what names a file outside the working folder, by itself or as a part of a list."""
    for part in {text, *re.split(r"[,=:;\s]", text)}:
        is_path = os.sep in part or part.startswith((".", "~"))
        if not part or not (is_path or (root / part).is_symlink() or (root / part).is_dir()):
            continue
        try:
            inside = (root / part).resolve().is_relative_to(root.resolve())
        except (OSError, RuntimeError, ValueError):
            inside = False
        if not inside or part.startswith("~") or _leads_outside(root / part, root):
            raise InputError(
                what=f"{name} names a file outside the working folder",
                cause=f"{shown(shortened(part))} is not under the folder that plan mcp was started in",
                fix="copy the file there, or start plan mcp --root in its folder",
            )
