"""The one way in for files: what has no end or nobody behind it is refused, and what grows by lines stays whole."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from topology.base.errors import InputError, LibraryPanicError, panics_raised
from topology.base.files import (
    WHOLE_BYTES,
    file_mark,
    json_rows,
    open_lines,
    open_regular,
    read_bytes,
    read_text,
    require_regular,
)


@contextmanager
def special(folder: Path, kind: str) -> Iterator[Path]:
    """A path that is no regular file."""
    path = folder / "special"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
            yield path
    else:
        yield path


KINDS = ("pipe", "directory", "device", "link to a device", "socket")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "read",
    [require_regular, open_regular, read_bytes, read_text, file_mark, lambda path: list(json_rows(path))],
)
def test_only_regular_files_are_opened(kind: str, read: Callable[[Path], object], tmp_path: Path) -> None:
    """At once, in three lines, whoever asks."""
    with special(tmp_path, kind) as path, pytest.raises(InputError) as caught:
        read(path)
    assert "is a directory" in caught.value.what or "is not a regular file" in caught.value.what


@pytest.mark.parametrize("kind", KINDS)
def test_lines_are_added_to_regular_files_alone(kind: str, tmp_path: Path) -> None:
    """A pipe that nobody reads would hold up whoever opens it to write."""
    with special(tmp_path, kind) as path, pytest.raises(InputError):
        open_lines(path)


def test_a_file_beyond_what_it_may_have_is_refused(tmp_path: Path) -> None:
    """By its bytes, of which one more than allowed is read: a sparse giant fills no memory."""
    giant = tmp_path / "giant"
    giant.touch()
    os.truncate(giant, 1 << 40)
    with pytest.raises(InputError, match="too large"):
        read_bytes(giant, 1000)


def test_a_line_that_was_cut_short_is_ended_and_left_out(tmp_path: Path) -> None:
    """What is added after it is whole: a disk that was full, or power that was lost, costs that one line."""
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    with open_lines(path) as lines:
        lines.write(json.dumps({"step": 3}) + "\n")
    assert [row["step"] for row in json_rows(path)] == [1, 3]
    with open_lines(path) as lines:
        lines.write(json.dumps({"step": 4}) + "\n")
    assert path.read_text().splitlines()[-2:] == ['{"step": 3}', '{"step": 4}']


@pytest.mark.parametrize("cut", range(1, 24))
def test_wherever_a_file_is_cut_no_later_line_is_lost(cut: int, tmp_path: Path) -> None:
    """Two lines of twelve bytes, cut anywhere."""
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n'[:cut])
    with open_lines(path) as lines:
        lines.write('{"step": 3}\n')
    steps = [row["step"] for row in json_rows(path)]
    assert steps == [*([1] if cut >= 11 else []), *([2] if cut >= 23 else []), 3]


def test_a_file_with_another_name_is_copied_before_lines_are_added(tmp_path: Path) -> None:
    """A hard link that somebody else has given it leads to their file."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.write_text("kept\n")
    ours.hardlink_to(theirs)
    with open_lines(ours) as lines:
        lines.write("added\n")
    assert (theirs.read_text(), ours.read_text()) == ("kept\n", "kept\nadded\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]


def test_rows_of_what_is_not_there_are_none(tmp_path: Path) -> None:
    """A run that has written nothing yet."""
    assert list(json_rows(tmp_path / "none")) == []


def test_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    """From the middle of a line on, which is left out."""
    path = tmp_path / "lines"
    path.write_text("".join(f'{{"step": {number}}}\n' for number in range(1000)))
    steps = [row["step"] for row in json_rows(path, last_bytes=100)]
    assert steps[-1] == 999
    assert steps == list(range(steps[0], 1000))
    assert len(steps) < 10


@pytest.mark.parametrize("size", [1000, WHOLE_BYTES, WHOLE_BYTES + 12345])
def test_a_mark_sees_other_ends_and_another_length(size: int, tmp_path: Path) -> None:
    """Of a large file also some of what is between."""
    path = tmp_path / "tokens"
    path.write_bytes(bytes(size))
    before = file_mark(path)
    assert before == file_mark(path)
    assert before.size_bytes == size
    for place in (0, size - 1, size // 2 if size <= WHOLE_BYTES else 5):
        with path.open("r+b") as stream:
            stream.seek(place)
            stream.write(b"x")
        assert file_mark(path) != before
        with path.open("r+b") as stream:
            stream.seek(place)
            stream.write(b"\0")
    os.truncate(path, size - 1)
    assert file_mark(path) != before


class Panic(BaseException):
    """What a library raises that is no `Exception`."""


def test_a_panic_of_a_library_can_be_caught_and_a_stop_passes() -> None:
    """By whoever catches `Exception`; Ctrl-C and an exit are left alone."""
    with pytest.raises(LibraryPanicError, match="a regex"), panics_raised():
        raise Panic("a regex")
    for kind in (KeyboardInterrupt, SystemExit, ValueError):
        with pytest.raises(kind), panics_raised():
            raise kind
