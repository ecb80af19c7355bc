"""Text into an indexed dataset, by a Hugging Face tokenizer: once, before a run, a few documents at a time.

What is written is Megatron's form (`executor.data.indexed`), so a run, Megatron-LM and NeMo read the same
files. Whoever wants no such copy has a run tokenize on its way (`executor.data.stream`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from executor.data.contents import every_text, look_through
from executor.data.documents import documents, files_of
from executor.data.hub import full_name, is_hub
from executor.data.indexed import write_indexed
from executor.data.tokenizer import Tokenizer, open_tokenizer
from topology.base.errors import InputError

AT_ONCE = 1000  # documents that are in memory together


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
    known = open_tokenizer(tokenizer, end=end)
    read, skipped, every = Counter[str](), 0, list[Iterator[str]]()
    for name in map(str, texts):
        if is_hub(name):
            full = full_name(name, {})
            contents = look_through(full, field=field, lanes=1)
            every.append(every_text(full, contents))
            read[full] += len(contents.files)
            continue
        files, others = files_of([Path(name)])
        every.append(text for path in files for _, text in documents(path, field))
        read.update(str(path.parent) for path in files)
        skipped += others
    tokens = encoded(known, chain.from_iterable(every))
    lengths = write_indexed(index, tokens, vocab_size=known.vocab_size)
    return Tokenized(
        index=str(index),
        documents=len(lengths),
        tokens=sum(lengths),
        document_end=known.end,
        vocab_size=known.vocab_size,
        files=dict(read),
        skipped=skipped,
    )


def encoded(known: Tokenizer, texts: Iterator[str]) -> Iterator[npt.NDArray[np.int32]]:
    """Token ids of each document, in their order."""
    count = 0
    while some := list(islice(texts, AT_ONCE)):
        count += len(some)
        yield from known.encode(some)
    if not count:
        raise InputError(
            what="there is no document",
            cause="the files have no rows or lines",
            fix="give files that hold text",
        )
