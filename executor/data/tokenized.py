"""Text into an indexed dataset, by a Hugging Face tokenizer: once, before a run, a few documents at a time.

A tokenizer is its ``tokenizer.json``. Every document ends with the end-of-document token, which is the one
that ``tokenizer_config.json`` beside it calls its end of sequence, unless another is named. What is written
is Megatron's form (`executor.data.indexed`), so a run, Megatron-LM and NeMo read the same files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from executor.data.indexed import write_indexed
from executor.data.tables import TABLES, rows
from topology.base.errors import InputError

AT_ONCE = 1000  # documents that are in memory together
CONFIG = "tokenizer_config.json"
LINES = (".jsonl", ".json", ".ndjson")
TEXT = ".txt"  # of a folder; a file that is named is text unless its name says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """What was written: the index, its documents and tokens, and the token that ends each document.

    `files` counts those that were read, by their folder; `skipped` those of folders that hold no documents.
    """

    index: str
    documents: int
    tokens: int
    document_end: int
    vocab_size: int
    files: Mapping[str, int]
    skipped: int = 0


def tokenize(
    texts: Sequence[Path], tokenizer: Path, index: Path, *, field: str = "text", end: int | None = None
) -> Tokenized:
    """Write documents as `index`: text files (one each), lines and rows of tables (one each, by `field`).

    Raises InputError for files that are no text or no JSON, and where no end-of-document token is known.
    """
    known = _tokenizer(tokenizer)
    size = known.get_vocab_size(with_added_tokens=True)
    last = _end_of(known, tokenizer) if end is None else end
    if not 0 <= last < size:
        raise InputError(
            what="the end of documents is not a token",
            cause=f"token {last}, {tokenizer} has {size}",
            fix=f"give one of 0 to {size - 1}: --document-end ID",
        )
    files, skipped = _files(texts)
    documents = (text for path in files for text in _documents(path, field))
    lengths = write_indexed(index, _encoded(known, documents, last), vocab_size=size)
    return Tokenized(
        index=str(index),
        documents=len(lengths),
        tokens=sum(lengths),
        document_end=last,
        vocab_size=size,
        files=dict(Counter(str(path.parent) for path in files)),
        skipped=skipped,
    )


def _encoded(known: Any, documents: Iterator[str], last: int) -> Iterator[Sequence[int]]:
    """Token ids of each document, closed by its end; nothing else is added to the text."""
    count = 0
    while some := list(islice(documents, AT_ONCE)):
        count += len(some)
        for encoded in known.encode_batch(some, add_special_tokens=False):
            yield [*encoded.ids, last]
    if not count:
        raise InputError(
            what="there is no document to write",
            cause="the files have no rows or lines",
            fix="give files that hold text",
        )


def _tokenizer(path: Path) -> Any:
    """Read a tokenizer."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InputError(
            what="the tokenizers library is not installed",
            cause=f"{path} is a Hugging Face tokenizer",
            fix="pip install tokenizers",
        ) from error
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        return Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # of a library in Rust: it raises bare ones
        raise InputError(
            what=f"{file} is not a tokenizer",
            cause=str(error),
            fix="give the tokenizer.json of the model, or the folder that has it",
        ) from error


def _end_of(known: Any, path: Path) -> int:
    """The token that the tokenizer's configuration calls its end of sequence."""
    folder = path if path.is_dir() else path.parent
    name: object = None
    try:
        said = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("eos_token")
        name = said.get("content") if isinstance(said, dict) else said
    except (OSError, ValueError, AttributeError):
        said = None
    found = known.token_to_id(name) if isinstance(name, str) else None
    if found is None:
        raise InputError(
            what="which token ends a document is not known",
            cause=f"{folder / CONFIG} names no eos_token that the tokenizer has",
            fix="give its id: --document-end ID",
        )
    return int(found)


def _files(texts: Sequence[Path]) -> tuple[list[Path], int]:
    """The files to read, a folder's in the order of their names, and how many of its others are left out."""
    found, skipped = list[Path](), 0
    for path in texts:
        if not path.exists():
            raise _not_text(path, "there is no such file or folder")
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(one for one in path.rglob("*") if one.is_file() and _is_data(one))
        held = [one for one in inside if one.suffix in (*LINES, *TABLES, TEXT)]
        if not held:
            raise _not_text(path, f"no file in it ends with {', '.join((*TABLES, *LINES, TEXT))}")
        found += held
        skipped += len(inside) - len(held)
    return found, skipped


def _documents(path: Path, field: str) -> Iterator[str]:
    """Documents of a file, read as they are asked for."""
    if path.suffix in TABLES:
        yield from rows(path, field)
        return
    try:
        if path.suffix not in LINES:
            yield path.read_text(encoding="utf-8")
            return
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _text_of(line, field, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise _not_text(path, str(error)) from error


def _is_data(path: Path) -> bool:
    """Whether a file of a folder holds documents: a dataset that was saved says of itself in others."""
    return path.name not in ("dataset_info.json", "state.json", "dataset_dict.json", CONFIG)


def _not_text(path: Path, cause: str) -> InputError:
    """Say that there are no documents."""
    return InputError(
        what=f"{path} cannot be read as text",
        cause=cause,
        fix="give UTF-8 text (one document a file), JSON lines, Parquet or Arrow, or a folder of these",
    )


def _text_of(line: str, field: str, where: str) -> str:
    """The text of one JSON line."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(
            what="a document is not JSON", cause=f"{where}: {error}", fix="write one JSON object a line"
        ) from error
    text = row.get(field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        keys = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise InputError(
            what=f"a document has no text in {field!r}",
            cause=f"{where} has {keys[:200]}",
            fix="name the key that holds the text: --field NAME",
        )
    return text
