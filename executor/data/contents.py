"""What a text corpus consists of: its files as they were when a run began, cut into pieces of like size.

Files are looked at, not read: their sizes, what tables say of their rows, where lines begin at the cuts, and
a checksum of both ends. A run keeps this beside its settings, so that ranks need not look again, and so that
files which have changed since are not taken for the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

from executor.data.compressed import COMPRESSED, suffix_of
from executor.data.documents import (
    LARGEST_BYTES,
    LINES,
    NotJsonError,
    documents,
    files_of,
    not_text,
    require_held,
    text_of_line,
)
from executor.data.hub import hub_name, is_hub, look_through_split, rows_of
from executor.data.pieces import (
    END,
    TAIL_BYTES,
    Contents,
    Piece,
    TextFile,
    mark_of,
    pieces_of,
    require_same,
    with_turns,
)
from executor.data.tables import TABLES, starts_of
from topology.base.decode import read_json, structure, unstructure
from topology.base.errors import InputError
from topology.base.files import open_regular
from topology.base.units import MIB

TEXTS_FILE = "texts.json"
PIECES_PER_LANE = 16  # so that lanes, which get whole ones, are alike within some percent
MOST_FILES = 50_000
SMALL_BYTES = 16 * MIB  # of a compressed file: of a larger one it is taken that all turns find a document


def file_in_corpus(name: str, file: TextFile) -> Path:
    """Where a file of a corpus lies: in the folder that the corpus is, or it is the corpus."""
    if is_hub(name):
        return Path(file.name if "://" in file.name else Path(hub_name(name).path) / file.name)
    return Path(name) / file.name if file.name else Path(name)


def look_through(name: str, *, field: str, lanes: int) -> Contents:
    """Look at the files of a corpus.

    Raises InputError for files that cannot be read or hold no such text, that end in the middle, and for a
    corpus without documents.
    """
    if is_hub(name):
        return look_through_split(name, field=field, lanes=lanes)
    root = Path(name)
    paths, skipped = files_of([root])
    if len(paths) > MOST_FILES:
        raise InputError(
            what=f"{name} has too many files",
            cause=f"{len(paths)}, at most {MOST_FILES} are read while a run trains",
            fix="join them (JSON lines, Parquet), or write tokens first: plan tokenize",
        )
    try:
        total = sum(path.stat().st_size for path in paths)
        files = tuple(
            _text_file(path, root, field=field, share=PIECES_PER_LANE * lanes / max(total, 1))
            for path in paths
        )
    except OSError as error:
        raise not_text(root, str(error)) from error
    contents = with_turns(Contents(lanes=lanes, field=field, files=files, skipped=skipped))
    contents = replace(contents, files=tuple(_filled(name, contents, file) for file in contents.files))
    if not any(True for piece in pieces_of(contents) for _ in documents_of(name, contents, piece)):
        raise InputError(
            what=f"{name} holds no document",
            cause=f"{len(files)} files, {total} bytes",
            fix="give files that hold text",
        )
    return contents


def documents_of(
    name: str, contents: Contents, piece: Piece, start: int | None = None
) -> Iterator[tuple[int, str]]:
    """Documents of a piece with their places, from place `start` on; a file that has changed is refused."""
    if contents.hub is not None:
        return rows_of(name, contents, piece, start)
    file = contents.files[piece.file]
    path = file_in_corpus(name, file)
    require_same(path, file.size_bytes)
    begin = piece.start if start is None else start
    return documents(path, contents.field, begin, piece.stop, turn=piece.turn, turns=piece.turns)


def every_text(name: str, contents: Contents) -> Iterator[str]:
    """All documents of a corpus, in the order of its files."""
    for number, file in enumerate(contents.files):
        for _, text in documents_of(name, contents, Piece(number, 0, file.bounds[-1], 1.0)):
            yield text


def _filled(name: str, contents: Contents, file: TextFile) -> TextFile:
    """A file in no more turns than it has documents, where it is small."""
    if file.turns == 1 or file.size_bytes > SMALL_BYTES:
        return file
    there = sum(1 for _ in islice(documents(file_in_corpus(name, file), contents.field), file.turns))
    return replace(file, turns=max(1, there))


def _text_file(path: Path, root: Path, *, field: str, share: float) -> TextFile:
    """Look at one file, which has `share` pieces for each of its bytes."""
    size = path.stat().st_size
    count = max(1, round(size * share))
    if path.suffix in TABLES:
        bounds = _row_bounds(starts_of(path, field), count)
    elif suffix_of(path) not in LINES:
        require_held(path, size)
        bounds = (0, 1)
    elif path.suffix in COMPRESSED:
        bounds = (0, END) if any(True for _ in documents(path, field)) else (0,)
    else:
        bounds = _line_bounds(path, size, count, field)
    return TextFile(
        name=path.relative_to(root).as_posix() if path != root else "",
        size_bytes=size,
        mark=mark_of(path, size),
        bounds=bounds,
    )


def _row_bounds(starts: list[int], count: int) -> tuple[int, ...]:
    """Cut rows into pieces, at a group of rows where one begins near: reading begins at those."""
    total = starts[-1]
    count = max(1, min(count, total))
    half = total / count / 2
    cuts = {0, total}
    groups = iter(starts)
    below = 0
    above = next(groups)
    for number in range(1, count):
        at = number * total // count
        while above < at:
            below, above = above, next(groups)
        value = min(below, above, key=lambda start: abs(start - at))
        cuts.add(value if abs(value - at) <= half else at)
    return tuple(sorted(cuts))


def _line_bounds(path: Path, size: int, count: int, field: str) -> tuple[int, ...]:
    """Cut a file of lines where lines begin, after a look at its first and last one."""
    if not size:
        return (0,)
    cuts, count = {0, size}, min(count, size)
    with open_regular(path) as stream:
        for number in range(1, count):
            place = stream.seek(number * size // count - 1)
            require_held(path, len(stream.readline(LARGEST_BYTES + 1)), f"the line at byte {place}")
            cuts.add(min(stream.tell(), size))
    next(iter(documents(path, field)), None)
    last = _last_line(path, size)
    try:
        if last:
            text_of_line(last, field, f"{path}, its last line")
    except (UnicodeDecodeError, NotJsonError) as error:
        raise InputError(
            what=f"{path} ends in the middle",
            cause=error.cause if isinstance(error, NotJsonError) else f"its last line: {error}",
            fix="write it again, one JSON object a line",
        ) from error
    return tuple(sorted(cuts))


def _last_line(path: Path, size: int) -> bytes:
    """The last line that is not blank, as far as a document may go."""
    length = TAIL_BYTES
    while True:
        length = min(length, size)
        with open_regular(path) as stream:
            stream.seek(size - length)
            last_line = stream.read(length).rstrip()
        if b"\n" in last_line or length in (size, LARGEST_BYTES):
            return last_line.rsplit(b"\n", 1)[-1]
        length = min(length * 8, LARGEST_BYTES)


# ── what a run keeps ──────────────────────────────────────────────────────────────────────────────────────


def texts_json(values: Mapping[str, Contents]) -> str:
    """Contents of a run's corpora by name, as the run keeps them."""
    return json.dumps({name: unstructure(contents) for name, contents in values.items()})


def kept_contents(folder: Path) -> dict[str, Contents]:
    """What a run has kept of its corpora; nothing where it has begun with none."""
    path = folder / TEXTS_FILE
    result = structure(read_json(path), dict[str, Contents], str(path)) if path.is_file() else {}
    for name, contents in result.items():
        for file in contents.files:
            if (
                not file.bounds
                or file.bounds[0]
                or any(stop <= start for start, stop in pairwise(file.bounds))
            ):
                raise InputError(
                    what=f"{path} does not describe texts",
                    cause=f"pieces of {file.name or name} do not follow one another",
                    fix="remove it: the next start of plan run writes it anew",
                )
    return result


def require_unchanged(name: str, before: Contents, now: Contents) -> None:
    """Refuse a corpus of which other files are there than when the run began."""
    if before.sha256 == now.sha256 and before.field == now.field:
        return
    there, here = ({file.name: file for file in contents.files} for contents in (before, now))
    seen = [{name: (file.size_bytes, file.mark) for name, file in files.items()} for files in (there, here)]
    other = next((name for name in sorted({*there, *here}) if seen[0].get(name) != seen[1].get(name)), "")
    if before.field != now.field:
        cause = f"its texts were in {before.field!r}, now in {now.field!r}"
    elif other not in here or other not in there:
        cause = f"{other} is {'gone' if other in there else 'new'}: {len(there)} files then, {len(here)} now"
    else:
        sizes = f"{there[other].size_bytes} bytes then, {here[other].size_bytes} now"
        cause = f"{file_in_corpus(name, here[other])} has other bytes: {sizes}"
    raise InputError(
        what=f"{name} is not what the run began with",
        cause=cause,
        fix="put the files back, or begin a run of its own with another --run-dir",
    )
