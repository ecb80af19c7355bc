"""JSON of any length, value by value: bounded bytes, bounded values, gzip without bombs, nothing kept.

A trace of a million events is 300 MB of text and would be gigabytes of dicts. Its list of events is walked
here one at a time; whatever else stands beside it is small.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from topology.base.errors import InputError, shortened
from topology.base.files import LONGEST_PATH, open_regular
from topology.base.units import GIB, MIB

MAX_TEXT_BYTES = 2 * GIB
"""Of a trace when it is unpacked: some five million events."""
MAX_PACKED_BYTES = GIB
LARGEST_VALUE = 16 * MIB
"""Characters of one value that is decoded as a whole: the properties of a thousand groups are far below."""
LARGEST_RATIO = 400
"""Unpacked over packed beyond the first block: traces reach 10 to 40, and a bomb a thousand."""
BLOCK_BYTES = MIB
GZIP_MAGIC = b"\x1f\x8b"

CUT_OFF_FIX = "copy the file once more; if its source is cut off too, let the recorder write to its end"
_SPACE = re.compile(r"[ \t\r\n]*")
_NEXT = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_DECODER = json.JSONDecoder()
Place = tuple[str, ...]
"""Keys that lead to a value; `*` stands for each item of a list."""


def unpacked(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Blocks of a file as text bytes, whether it is packed by gzip or not.

    Raises:
        InputError: It is larger than a trace can be, damaged, or a bomb.
    """
    first = stream.read(2)
    stream.seek(0)
    read = given = 0
    engine = zlib.decompressobj(wbits=31) if first == GZIP_MAGIC else None
    whole = True
    while block := stream.read(BLOCK_BYTES):
        read += len(block)
        if read > (MAX_PACKED_BYTES if engine else MAX_TEXT_BYTES):
            raise _too_large(name, read)
        if engine is None:
            yield block
            continue
        while block:
            try:
                text = engine.decompress(block, BLOCK_BYTES)
            except zlib.error as error:
                raise InputError(f"{name} is damaged", f"gzip: {error}", "copy it once more") from None
            given += len(text)
            if given > MAX_TEXT_BYTES or given > LARGEST_RATIO * max(read, BLOCK_BYTES // 4):
                raise _too_large(name, given)
            if text:
                yield text
            block, whole = engine.unconsumed_tail, engine.eof
            if engine.eof:  # members of gzip may follow each other
                block, engine = engine.unused_data.lstrip(b"\0"), zlib.decompressobj(wbits=31)
    if engine is not None and (rest := engine.flush(BLOCK_BYTES)):
        yield rest
    if not whole:
        cause = f"its gzip stops after {read:,} bytes ({given:,} unpacked), before the end of the data"
        raise InputError(f"{name} is cut off", cause, CUT_OFF_FIX)


def _too_large(name: str, size: int) -> InputError:
    cause = f"it unpacks to more than {size:,} bytes, and a trace to at most {MAX_TEXT_BYTES:,}"
    return InputError(f"{name} is too large", cause, "record fewer steps: schedule(active=2)")


class JsonWalk:
    """One JSON document, walked once.

    `spread` are the places of containers whose members are given one by one; all others are given whole.
    """

    def __init__(self, blocks: Iterator[bytes], name: str, spread: Collection[Place]) -> None:
        self._blocks = blocks
        self._name = name
        self._spread = frozenset(spread)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._at = 0
        self._gone = 0
        """Characters that were walked and let go."""
        self._more = True

    def __iter__(self) -> Iterator[tuple[Place, Any]]:
        """Places and values, in the document's order."""
        self._fill()
        if self._text.startswith("\ufeff"):
            self._at = 1
        yield from self._walk(())

    def _fill(self) -> bool:
        """Read further; what was walked is let go. False where nothing is left."""
        wanted = max(1, len(self._text) - self._at)
        parts, got = [self._text[self._at :]], 0
        self._gone, self._at = self._gone + self._at, 0
        while self._more and got < wanted:
            block = next(self._blocks, None)
            self._more = block is not None
            part = self._utf8.decode(block or b"", final=block is None)
            parts.append(part)
            got += len(part)
        self._text = "".join(parts)
        return got > 0

    def _char(self) -> str:
        """The next character that is no space, at which the walk now stands; empty at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._fill():
                return self._text[self._at : self._at + 1]

    def _value(self) -> Any:
        """The value here, decoded as a whole."""
        self._char()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                if end < len(self._text) or not self._more:
                    self._at = end
                    return value
            except RecursionError:
                raise self._damaged("its values are nested too deeply") from None
            except json.JSONDecodeError as error:
                if not self._more or len(self._text) - self._at > LARGEST_VALUE:
                    self._at = min(error.pos, len(self._text))
                    raise self._damaged(error.msg[:120]) from None
            except ValueError as error:
                raise self._damaged(str(error)[:120]) from None
            if len(self._text) - self._at > LARGEST_VALUE:
                raise self._damaged(f"one value has more than {LARGEST_VALUE:,} characters")
            self._fill()

    def _walk(self, place: Place) -> Iterator[tuple[Place, Any]]:
        """The value here, or its members where it is spread."""
        char = self._char()
        if place not in self._spread or char not in "{[" or not char:
            yield place, self._value()
        elif char == "{":
            yield from self._members(place)
        else:
            self._at += 1
            inside = (*place, "*")
            yield from self._items(inside) if inside not in self._spread else self._containers(inside)

    def _members(self, place: Place) -> Iterator[tuple[Place, Any]]:
        self._at += 1
        if self._char() == "}":
            self._at += 1
            return
        while True:
            if self._char() != '"':
                raise self._damaged("a key was expected")
            key = str(self._value())
            if self._char() != ":":
                raise self._damaged("a colon was expected")
            self._at += 1
            yield from self._walk((*place, key))
            if self._closes("}"):
                return

    def _containers(self, inside: Place) -> Iterator[tuple[Place, Any]]:
        if self._char() == "]":
            self._at += 1
            return
        while True:
            yield from self._walk(inside)
            if self._closes("]"):
                return

    def _items(self, inside: Place) -> Iterator[tuple[Place, Any]]:
        """Items of a long list: the hot loop."""
        if self._char() == "]":
            self._at += 1
            return
        decode, follows = _DECODER.raw_decode, _NEXT.match
        while True:
            value = self._value()
            yield inside, value
            text, at = self._text, self._at
            while (comma := follows(text, at)) is not None:
                try:
                    value, at = decode(text, comma.end())
                except (ValueError, RecursionError):
                    break
                if at >= len(text):
                    at = comma.start()
                    break
                self._at = at
                yield inside, value
            self._at = at
            if self._closes("]"):
                return

    def _closes(self, bracket: str) -> bool:
        """Step over a comma, or over the bracket that closes."""
        char = self._char()
        if char not in {",", bracket}:
            raise self._damaged(f"a comma or {bracket} was expected")
        self._at += 1
        return char == bracket

    def _damaged(self, why: str) -> InputError:
        at = self._gone + self._at
        if not self._more and not self._text[self._at :].strip():
            cause = f"its JSON stops after {at:,} characters, before the end of the document"
            return InputError(f"{self._name} is cut off", cause, CUT_OFF_FIX)
        cause = f"{why.rstrip('.')} at character {at:,}"
        return InputError(
            f"{self._name} is no JSON that can be read", cause, "name the file as it was written"
        )


def walk_json(path: str | Path, spread: Collection[Place]) -> Iterator[tuple[Place, Any]]:
    """Places and values of a JSON file, packed or not. Raises InputError as `unpacked`, and for damage."""
    name = shortened(str(path), LONGEST_PATH)
    try:
        stream = open_regular(path)
    except FileNotFoundError:
        raise InputError(f"{name} does not exist", "no such file", "check the path") from None
    except (OSError, ValueError) as error:
        cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(f"{name} cannot be read", cause, "check the path and its permissions") from None
    with stream:
        yield from JsonWalk(unpacked(stream, name), name, spread)
