"""Documents of files: a text file each, lines of JSON, rows of tables; of folders, the files that hold any.

Every document has a place in its file, where reading can begin again without what is before it: the first
byte of its line, the number of its row, 0 for a text file. Places in a compressed file are those in what it
stands for, which is decompressed up to there again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from executor.data.compressed import COMPRESSED, opened, suffix_of
from executor.data.tables import TABLES, text_rows
from executor.data.tokenizer import is_unicode
from topology.base.errors import InputError
from topology.base.files import open_regular
from topology.base.units import MIB

LINES = (".jsonl", ".json", ".ndjson")
TEXT = ".txt"  # of a folder; a file that is named is text unless its name says otherwise
ABOUT = (
    *("dataset_info.json", "state.json", "dataset_dict.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
)
"""Files of a folder in which a dataset or a tokenizer that was saved says of itself."""
LARGEST_BYTES = 64 * MIB
"""Of a document, which is held whole: no line or text file beyond it is read."""
BLANK_BYTES = MIB
"""Of blank lines in a compressed file, where a small one may stand for any number of them."""


class NotJsonError(InputError):
    """A line is no JSON: a file of something else, or cut off."""


def files_of(texts: Sequence[Path]) -> tuple[list[Path], int]:
    """The files to read, a folder's in the order of their names, and how many of its others are left out."""
    paths, skipped = list[Path](), 0
    for path in texts:
        if not path.exists():
            raise not_text(path, "there is no such file or folder")
        if not path.is_dir():
            paths.append(path)
            continue
        inside = sorted(item for item in path.rglob("*") if item.is_file() and item.name not in ABOUT)
        held = [path for path in inside if path.suffix in TABLES or suffix_of(path) in (*LINES, TEXT)]
        if not held:
            raise not_text(path, f"no file in it ends with {', '.join((*TABLES, *LINES, TEXT))}")
        paths += held
        skipped += len(inside) - len(held)
    return paths, skipped


def documents(
    path: Path, field: str, start: int = 0, stop: int | None = None, *, turn: int = 0, turns: int = 1
) -> Iterator[tuple[int, str]]:
    """Documents from place `start` on, those before place `stop`, each with its place; read as asked for.

    Of a compressed file of lines the `turn`-th of every `turns` lines, whatever `start` is.
    """
    if path.suffix in TABLES:
        yield from text_rows(path, field, start, stop)
        return
    try:
        if suffix_of(path) not in LINES:
            if start == 0:
                yield 0, _whole(path)
        elif path.suffix in COMPRESSED:
            yield from _dealt_lines(path, field, start, turn=turn, turns=turns)
        else:
            yield from _lines(path, field, start, stop)
    except (OSError, UnicodeDecodeError) as error:
        raise not_text(path, str(error)) from error


def _lines(path: Path, field: str, start: int, stop: int | None) -> Iterator[tuple[int, str]]:
    """Lines that can be gone to."""
    with open_regular(path) as stream:
        stream.seek(start)
        at, number = start, 0
        while (stop is None or at < stop) and (line := stream.readline(LARGEST_BYTES + 1)):
            number += 1
            where = f"line {number}" if start == 0 else f"the line at byte {at}"
            require_held(path, len(line), where)
            if line.strip():
                yield at, text_of_line(line, field, f"{path}, {where}")
            at += len(line)


def _dealt_lines(path: Path, field: str, start: int, *, turn: int, turns: int) -> Iterator[tuple[int, str]]:
    """Lines of a compressed file: all are read and counted, and those that are wanted are looked into."""
    with opened(path) as stream:
        at = blank = 0
        for number in count():
            line = stream.readline(LARGEST_BYTES + 1)
            if not line:
                return
            require_held(path, len(line), f"line {number + 1}")
            if line.isspace():
                blank += len(line)
                if blank > BLANK_BYTES:
                    raise not_text(path, f"{BLANK_BYTES // MIB} MiB of it are blank, up to line {number + 1}")
            elif at >= start and number % turns == turn:
                yield at, text_of_line(line, field, f"{path}, line {number + 1}")
            at += len(line)


def _whole(path: Path) -> str:
    """A text file."""
    with opened(path) as stream:
        raw = stream.read(LARGEST_BYTES + 1)
    require_held(path, len(raw))
    return raw.decode().replace("\r\n", "\n").replace("\r", "\n")


def require_held(path: Path, size_bytes: int, where: str = "the file") -> None:
    """Refuse a document that is too large to be held whole."""
    if size_bytes > LARGEST_BYTES:
        raise InputError(
            what=f"a document of {path} is too large",
            cause=f"{where} has more than {LARGEST_BYTES // MIB} MiB, and a document is held whole",
            fix="write it as JSON lines or a table, in documents of less",
        )


def not_text(path: Path, cause: str) -> InputError:
    """Say that there are no documents."""
    return InputError(
        what=f"{path} cannot be read as text",
        cause=cause,
        fix="give UTF-8 text (one document a file), JSON lines, Parquet or Arrow, or a folder of these; "
        "text and lines may be compressed (.gz, .zst)",
    )


def text_of_line(line: bytes, field: str, where: str) -> str:
    """The text of one JSON line."""
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise NotJsonError(
            what="a document is not JSON", cause=f"{where}: {error}", fix="write one JSON object a line"
        ) from error
    text = row.get(field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        keys = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise InputError(
            what=f"a document has no text in {field!r}",
            cause=f"{where} has {keys[:200]}",
            fix="name the key that holds the text: --field NAME, --text-field NAME of plan run",
        )
    if b"\\u" in line and not is_unicode(text):
        raise InputError(
            what="a document is not Unicode",
            cause=f"{where}: it has half of a surrogate pair",
            fix="write the text anew, with characters beyond U+FFFF whole",
        )
    return text
