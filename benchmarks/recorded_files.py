"""What a process does to the files of a folder, recorded; and that folder built again as a crash leaves it.

Recorded are writes, renames, removals and syncs by Python's own calls. A crash is one of three: between two
of them, within a write, or a loss of power: then bytes that were not synced are gone in part or whole, and
so may be the last names, in their order, as file systems with a journal lose them.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

Kind = Literal["write", "truncate", "mkdir", "rename", "unlink", "rmdir", "sync", "sync folder"]
VARIANTS = ("between", "within", "power")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOperation:
    """One thing that is done to a file or folder; paths are relative to the folder that is recorded."""

    kind: Kind
    path: str
    to: str = ""
    at: int = 0
    content: bytes = b""


# ── recorded ──────────────────────────────────────────────────────────────────────────────────────────────


class Recorder:
    """What is done below a folder by this process, in order; a lock keeps a checkpoint's thread apart.

    Its methods stand in the place of Python's functions of their names.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.done, self.lock = root.resolve(), list[FileOperation](), threading.RLock()
        self.plain_open = io.open
        self.plain: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in WATCHED}

    def place(self, path: Any, folder: int | None = None) -> str | None:
        """A path relative to the folder; None for what lies elsewhere."""
        is_open = isinstance(path, int)
        whole = Path(f"/proc/self/fd/{path}").readlink() if is_open else Path(os.fsdecode(path))
        if folder is not None and not whole.is_absolute():
            whole = Path(f"/proc/self/fd/{folder}").readlink() / whole
        whole = Path(os.path.normpath(whole.absolute()))
        return whole.relative_to(self.root).as_posix() if whole.is_relative_to(self.root) else None

    def add(self, kind: Kind, place: str | None, **fields: Any) -> None:
        """Keep one operation, where it is of the folder."""
        if place is not None:
            self.done.append(FileOperation(kind=kind, path=place, **fields))

    def opening(self, place: str | None, *, empties: bool, makes: bool) -> None:
        """Keep what an opening does to a file."""
        if place is not None and empties:
            self.add("truncate", place)
        elif place is not None and makes and not os.path.lexists(self.root / place):
            self.add("write", place)

    def opened(self, file: Any, mode: str = "r", *arguments: Any, **fields: Any) -> Any:
        """As `open`."""
        with self.lock:
            place = self.place(file) if set(mode) & set("wax+") else None
            if not isinstance(file, int):
                self.opening(place, empties="w" in mode, makes=True)
            stream = self.plain_open(file, mode, *arguments, **fields)
        return stream if place is None else RecordedFile(stream, self, place)

    def open(self, path: Any, flags: int, *arguments: Any, **fields: Any) -> Any:
        """As `os.open`."""
        with self.lock:
            place = self.place(path, fields.get("dir_fd"))
            self.opening(place, empties=bool(flags & os.O_TRUNC), makes=bool(flags & os.O_CREAT))
            return self.plain["open"](path, flags, *arguments, **fields)

    def write(self, descriptor: int, content: Any) -> Any:
        """As `os.write`, of descriptors that add."""
        with self.lock:
            place, at = self.place(descriptor), os.fstat(descriptor).st_size
            self.add("write", place, at=at, content=bytes(content))
            return self.plain["write"](descriptor, content)

    def pwrite(self, descriptor: int, content: Any, at: int) -> Any:
        """As `os.pwrite`."""
        with self.lock:
            self.add("write", self.place(descriptor), at=at, content=bytes(content))
            return self.plain["pwrite"](descriptor, content, at)

    def ftruncate(self, descriptor: int, length: int) -> None:
        """As `os.ftruncate`."""
        with self.lock:
            self.add("truncate", self.place(descriptor), at=length)
            self.plain["ftruncate"](descriptor, length)

    def fsync(self, descriptor: int) -> None:
        """As `os.fsync`."""
        with self.lock:
            is_folder = Path(f"/proc/self/fd/{descriptor}").is_dir()
            self.add("sync folder" if is_folder else "sync", self.place(descriptor))
            self.plain["fsync"](descriptor)

    def rename(self, source: Any, to: Any, **fields: Any) -> None:
        """As `os.rename`."""
        with self.lock:
            places = self.place(source), self.place(to)
            self.plain["rename"](source, to, **fields)
            self.add("rename", places[0], to=places[1])

    replace = rename

    def unlink(self, path: Any, **fields: Any) -> None:
        """As `os.unlink`."""
        self._changed("unlink", path, **fields)

    remove = unlink

    def rmdir(self, path: Any, **fields: Any) -> None:
        """As `os.rmdir`."""
        self._changed("rmdir", path, **fields)

    def mkdir(self, path: Any, *arguments: Any, **fields: Any) -> None:
        """As `os.mkdir`."""
        self._changed("mkdir", path, *arguments, **fields)

    def _changed(self, kind: Kind, path: Any, *arguments: Any, **fields: Any) -> None:
        """Do it, and keep it where it did not fail."""
        with self.lock:
            place = self.place(path, fields.get("dir_fd"))
            self.plain[kind](path, *arguments, **fields)
            self.add(kind, place)


WATCHED = (
    *("open", "write", "pwrite", "ftruncate", "fsync"),
    *("rename", "replace", "unlink", "remove", "rmdir", "mkdir"),
)


class RecordedFile:
    """A file that is written: what is written is recorded with its place."""

    def __init__(self, inner: Any, recorder: Recorder, place: str) -> None:
        self.inner, self.recorder, self.path = inner, recorder, place
        self.end = os.fstat(inner.fileno()).st_size  # of a file that is added to, or of a text
        self.counts = isinstance(inner, io.TextIOBase) or "a" in inner.mode

    def write(self, content: Any) -> Any:
        """Write, and record it."""
        with self.recorder.lock:
            raw = content.encode() if isinstance(content, str) else bytes(content)
            self.recorder.add(
                "write", self.path, at=self.end if self.counts else self.inner.tell(), content=raw
            )
            self.end += len(raw)
            return self.inner.write(content)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the file's own."""
        return getattr(self.inner, name)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.inner.close()

    def __iter__(self) -> Iterator[Any]:
        """Its lines."""
        return iter(self.inner)


@contextlib.contextmanager
def recording(root: Path) -> Iterator[Recorder]:
    """Record what this process does below a folder."""
    recorder = Recorder(root)
    try:
        io.open = builtins.open = recorder.opened  # type: ignore[assignment]
        for name in WATCHED:
            setattr(os, name, getattr(recorder, name))
        yield recorder
    finally:
        io.open = builtins.open = recorder.plain_open
        for name, function in recorder.plain.items():
            setattr(os, name, function)


# ── cut ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPoint:
    """After how many operations a process was cut off, how, and the seed of what is drawn."""

    number: int
    variant: str
    seed: int


def cut_points(done: Sequence[FileOperation], count: int, seed: int) -> list[CutPoint]:
    """As many cuts, spread evenly over operations; of more than there are each is drawn with other seeds."""
    each = -(-count // len(VARIANTS))
    numbers = [
        index * (len(done) + 1) // each if each <= len(done) else index % (len(done) + 1)
        for index in range(each)
    ]
    cuts = [
        CutPoint(number=number, variant=variant, seed=seed + index // (len(done) + 1))
        for index, number in enumerate(numbers)
        for variant in VARIANTS
    ]
    return cuts[:count]


def built(done: Sequence[FileOperation], cut: CutPoint, root: Path) -> None:
    """Make the folder that a cut leaves. Nothing is there yet."""
    root.mkdir(parents=True)
    draw = random.Random(f"{cut.seed} {cut.number} {cut.variant}")
    before = list(done[: cut.number])
    if cut.variant == "within" and cut.number < len(done) and done[cut.number].kind == "write":
        torn = done[cut.number]
        before.append(replace(torn, content=torn.content[: draw.randrange(len(torn.content) + 1)]))
    if cut.variant == "power":
        before = _after_power_loss(before, draw)
    files, folders = dict[str, bytearray](), set[str]()
    for operation in before:
        _apply(operation, files, folders)
    for folder in sorted(folders):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / name).write_bytes(content)


def _after_power_loss(before: Sequence[FileOperation], draw: random.Random) -> list[FileOperation]:
    """What is left of operations when power is lost: of bytes what was synced and a part of others.

    A sync puts the names before it on the disk, too; how many of those after it are there is drawn. A file
    is known by where its first bytes were written, whatever it is called later.
    """
    synced = max((i for i, each in enumerate(before) if each.kind in ("sync", "sync folder")), default=-1)
    kept = before[: draw.randint(synced + 1, len(before))]
    last_sync = {each.path: number for number, each in enumerate(before) if each.kind == "sync"}
    result, cut_short = list[FileOperation](), set[str]()
    for number, each in enumerate(kept):
        if each.kind == "truncate":
            cut_short.discard(each.path)
        if each.kind != "write" or number <= last_sync.get(each.path, -1):
            result.append(each)
        elif each.path not in cut_short:
            length = draw.choice((len(each.content), 0, draw.randrange(len(each.content) + 1)))
            if length < len(each.content):
                cut_short.add(each.path)
            result.append(replace(each, content=each.content[:length]))
    return result


def _apply(operation: FileOperation, files: dict[str, bytearray], folders: set[str]) -> None:
    """Do one operation to files by name, and to the names of folders."""
    name = operation.path
    if operation.kind in ("write", "truncate"):
        content = files.setdefault(name, bytearray())
        if len(content) < operation.at:
            content.extend(bytes(operation.at - len(content)))
        if operation.kind == "truncate":
            del content[operation.at :]
        else:
            content[operation.at : operation.at + len(operation.content)] = operation.content
    elif operation.kind == "mkdir":
        folders.add(name)
    elif operation.kind == "rmdir":
        folders.discard(name)
    elif operation.kind == "unlink":
        files.pop(name, None)
    elif operation.kind == "rename" and name in files:
        files[operation.to] = files.pop(name)
    elif operation.kind == "rename":
        for inside in [each for each in files if each.startswith(f"{name}/")]:
            files[operation.to + inside.removeprefix(name)] = files.pop(inside)
        for inside in [each for each in folders if each == name or each.startswith(f"{name}/")]:
            folders.remove(inside)
            folders.add(operation.to + inside.removeprefix(name))
