"""One question in two spellings, flags and a command line; and specs that fit into a URL.

The dashboard keeps its whole state in the URL, and shows the command that gives the same plan.
"""

from __future__ import annotations

import base64
import binascii
import json
import shlex
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from planner.questions.flags import FLAG_OF_FIELD, Flags
from topology.base.decode import structure, unstructure
from topology.base.errors import InputError

T = TypeVar("T")

MOST_PACKED_CHARACTERS = 16_000
MOST_UNPACKED_BYTES = 256_000


def flags_of_words(words: Sequence[str], base: Flags | None = None) -> Flags:
    """Apply the words of a command line to flags; settings of the same field replace each other.

    >>> flags_of_words(["--gpus", "64", "--set", "layout.tp=4"], Flags(gpus="32", settings=("layout.tp=8",)))
    ... # doctest: +ELLIPSIS
    Flags(model=None, gpus='64', ... settings=('layout.tp=4',))
    """
    flags = base or Flags()
    names = {flag: name for name, flag in FLAG_OF_FIELD.items()}
    for flag, value in zip(words[::2], words[1::2], strict=False):
        if flag == "--set":
            flags = replace(flags, settings=_with_setting(flags.settings, value))
        elif flag in names:
            changed: dict[str, Any] = {names[flag]: value}
            flags = replace(flags, **changed)
    return flags


def apply_change(flags: Flags, change: str) -> Flags:
    """Apply a change as the planner words it: flags to add, or settings to drop.

    >>> apply_change(Flags(settings=("layout.tp=8", "layout.pp=2")), "drop --set layout.tp").settings
    ('layout.pp=2',)
    >>> apply_change(Flags(gpus="8"), "--gpus 16").gpus
    '16'
    """
    words = shlex.split(change)
    if words[:2] != ["drop", "--set"]:
        return flags_of_words(words, flags)
    dropped = {_field_of(word) for word in words[2:]}
    kept = tuple(
        setting
        for setting in flags.settings
        if _field_of(setting) not in dropped and (dropped or not _field_of(setting).startswith("layout."))
    )
    return replace(flags, settings=kept)


def _with_setting(settings: Sequence[str], setting: str) -> tuple[str, ...]:
    """Add a setting, instead of the one of the same field."""
    field = _field_of(setting)
    return (*(other for other in settings if _field_of(other) != field), setting)


def _field_of(setting: str) -> str:
    """Field that a setting is about; a bare name is a layout field."""
    field = setting.partition("=")[0].strip()
    return field if "." in field else f"layout.{field}"


def pack(spec: object) -> str:
    """A spec as text that can stand in a URL."""
    text = json.dumps(unstructure(spec), separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def unpack(text: str, as_type: type[T]) -> T:
    """Read a packed spec; anything but one is refused, and nothing large is unpacked."""
    try:
        packed = base64.urlsafe_b64decode(text[:MOST_PACKED_CHARACTERS] + "=" * (-len(text) % 4))
        data = zlib.decompressobj().decompress(packed, MOST_UNPACKED_BYTES)
        content: Any = json.loads(data)
    except (ValueError, binascii.Error, zlib.error, RecursionError):
        raise InputError(
            what="the link is damaged",
            cause=f"it does not hold a {as_type.__name__}",
            fix="open the link in full",
        ) from None
    return structure(content, as_type, "the link")
