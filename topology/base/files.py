"""The one way in for files: regular ones alone, of bounded size, known again by size and checksum.

A device or a pipe has no end, or nobody at the other one: whatever opens it waits or fills the memory. What
is opened here is looked at first. Libraries that open a path themselves are given one that was looked at.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from topology.base.errors import InputError, shortened
from topology.base.units import MIB

MAX_FILE_BYTES = 64 * MIB
"""Dumps of the largest fabrics and tables of runs stay below it; a larger file is the wrong file."""
LONGEST_PATH = 250
"""Characters of a path that a message repeats."""
LONGEST_LINE = MIB
"""Bytes of a line of JSON that we add to a file."""
LONGEST_INTEGER = 308
"""Digits of an integer that a float can still hold."""
WHOLE_BYTES = 16 * MIB
"""Of a file whose checksum is of all its bytes; of a larger one it is of blocks spread over it."""
BLOCKS, BLOCK_BYTES = 64, 64 * 1024
"""Of a large file's checksum, both ends among them: 4 MiB, read in milliseconds."""


def require_regular(path: str | Path) -> Path:
    """Return the path of a regular file, for a library that opens it itself.

    Raises:
        InputError: It is a directory, a device, a pipe or a socket.
        OSError: There is none, or it may not be looked at.
    """
    file = Path(path)
    _require_regular(file, file.stat().st_mode)
    return file


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file to be read. Raises as `require_regular` does."""
    file = require_regular(path)
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _require_regular(file, os.fstat(descriptor).st_mode)  # it may have been replaced since
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(file: Path, mode: int) -> None:
    """Refuse what is opened otherwise than a file."""
    name = shortened(str(file), LONGEST_PATH)
    if stat.S_ISDIR(mode):
        raise InputError(f"{name} is a directory", "a file was expected", "name a file inside it")
    if not stat.S_ISREG(mode):
        fix = "save it to a file and name that"
        raise InputError(f"{name} is not a regular file", "it is a device, a pipe or a socket", fix)


def read_bytes(path: str | Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the bytes of a regular file, of which it may have so many. Raises as `require_regular` does."""
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        content = stream.read(most_bytes + 1) if size <= most_bytes else b""
    if max(size, len(content)) > most_bytes:
        name = shortened(str(path), LONGEST_PATH)
        cause = f"it has more than the {most_bytes:,} bytes that such a file can have"
        raise InputError(f"{name} is too large", cause, "name the file that describes it")
    return content


def read_text(path: str | Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a UTF-8 file, or say in three lines why it cannot be read."""
    name = shortened(str(path), LONGEST_PATH)
    try:
        return read_bytes(path, most_bytes).decode("utf-8")
    except FileNotFoundError:
        raise InputError(f"{name} does not exist", "no such file", "check the path") from None
    except UnicodeDecodeError as error:
        cause = f"byte {error.start} is not UTF-8"
        raise InputError(f"{name} is not a text file", cause, "save it as UTF-8") from None
    except (OSError, ValueError) as error:
        cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
        fix = "check the path and its permissions"
        raise InputError(f"{name} cannot be read", cause, fix) from None


def read_ends(path: str | Path, most_bytes: int) -> tuple[str, int]:
    """The text of a file, and how many bytes between its ends were left out, of one that is too long.

    Both ends are cut at ends of lines; half of what can be read is of each.
    """
    file = Path(path)
    size = file.stat().st_size if file.is_file() else 0
    if size <= most_bytes:
        return read_text(path, most_bytes), 0
    half = most_bytes // 2
    try:
        with open_regular(file) as stream:
            head = stream.read(half)
            stream.seek(size - half)
            tail = stream.read(half)
        head, tail = head[: head.rfind(b"\n") + 1], tail[tail.find(b"\n") + 1 :]
        return (head + tail).decode("utf-8"), size - len(head) - len(tail)
    except (OSError, ValueError):
        name = shortened(str(path), LONGEST_PATH)
        cause = f"it has {size:,} bytes, and its first and last {half:,} are not lines of UTF-8"
        raise InputError(f"{name} is not a text file", cause, "name a log that is text") from None


# ── files that grow by lines ──────────────────────────────────────────────────────────────────────────────


def open_lines(path: Path) -> TextIO:
    """Open a file of lines to be added to; a line that was cut short is ended first, so that none is lost.

    A file that has another name too is copied: what is added must not reach whoever gave it that.

    Raises:
        InputError: It is a link, a directory, a device, a pipe or a socket.
        OSError: It cannot be written.
    """
    if path.is_symlink():
        raise InputError(f"{path} is a link", "lines are added to a file of its own", "remove the link")
    if path.exists():
        status = require_regular(path).stat()
        if status.st_nlink > 1:
            _copy_apart(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)
    try:
        status = os.fstat(descriptor)
        _require_regular(path, status.st_mode)
        if status.st_size and os.pread(descriptor, 1, status.st_size - 1) != b"\n":
            os.write(descriptor, b"\n")
        return os.fdopen(descriptor, "a", encoding="utf-8")
    except BaseException:
        os.close(descriptor)
        raise


def _copy_apart(path: Path) -> None:
    """Give a file its bytes to itself, under its name alone."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open_regular(path) as source, beside.open("xb") as copied:
            while block := source.read(MIB):
                copied.write(block)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def json_rows(path: Path, *, last_bytes: int = MAX_FILE_BYTES) -> Iterator[dict[str, Any]]:
    """Objects of a file of JSON lines, in their order; lines that were cut short are left out.

    A file that is not there has none. Raises InputError for what is no regular file.

    Args:
        path: The file, as `open_lines` adds to it.
        last_bytes: How much of its end is read.
    """
    try:
        stream = open_regular(path)
    except OSError:
        return
    with stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - last_bytes))
        while line := stream.readline(LONGEST_LINE):
            row = json_row(line)
            if row is not None:
                yield row


def json_row(line: bytes | str) -> dict[str, Any] | None:
    r"""The object of one JSON line; None where the line was cut short or is something else.

    >>> json_row(b'{"step": 3}\n'), json_row(b'{"step": 4, "lo'), json_row("7")
    ({'step': 3}, None, None)
    """
    try:
        row = json.loads(line, parse_int=_held)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _held(digits: str) -> int:
    """An integer that a float holds, too. Raises ValueError for a longer one."""
    if len(digits) > LONGEST_INTEGER:
        raise ValueError(digits[:10])
    return int(digits)


# ── known again ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMark:
    """What a file is known again by: its size in bytes and a checksum of its bytes, or of blocks of them."""

    size_bytes: int
    sha256: str

    def __str__(self) -> str:
        """Return both in one word."""
        return f"{self.size_bytes}:{self.sha256}"


def file_mark(path: Path) -> FileMark:
    """Mark of a regular file; of a large one both ends and blocks between them are read."""
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        sha256 = hashlib.sha256()
        if size <= WHOLE_BYTES:
            while block := stream.read(MIB):
                sha256.update(block)
        else:
            for number in range(BLOCKS):
                stream.seek(number * (size - BLOCK_BYTES) // (BLOCKS - 1))
                sha256.update(stream.read(BLOCK_BYTES))
    return FileMark(size_bytes=size, sha256=sha256.hexdigest()[:16])
